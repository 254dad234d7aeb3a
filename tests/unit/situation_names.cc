#include <string>

#include "tests/unit/situations.h"

namespace idempotency {
namespace {

std::string Flag(bool value, const char* name) {
  return value ? std::string(", ") + name : std::string();
}

}  // namespace

std::string NameOf(Row row) {
  static const char* const kNames[] = {"no row", "unfinished", "final",
                                       "released"};
  return kNames[static_cast<int>(row)];
}

std::string NameOf(Lease lease) {
  static const char* const kNames[] = {"running", "ends now", "over"};
  return kNames[static_cast<int>(lease)];
}

std::string NameOf(Expiry expiry) {
  static const char* const kNames[] = {"far", "near", "now", "past", "never"};
  return kNames[static_cast<int>(expiry)];
}

std::string NameOf(Keep keep) {
  static const char* const kNames[] = {"retention", "permanent",
                                       "permanent until final"};
  return kNames[static_cast<int>(keep)];
}

std::string NameOf(GaveUp gave_up) {
  static const char* const kNames[] = {"no", "outcome unknown", "server error",
                                       "did nothing"};
  return kNames[static_cast<int>(gave_up)];
}

std::string NameOf(OnAbandoned on_abandoned) {
  static const char* const kNames[] = {"take over", "hold"};
  return kNames[static_cast<int>(on_abandoned)];
}

std::string NameOf(OnServerError on_server_error) {
  static const char* const kNames[] = {"release", "record", "hold"};
  return kNames[static_cast<int>(on_server_error)];
}

std::string NameOf(Renewal renewal) {
  static const char* const kNames[] = {"no", "this grant", "other grant"};
  return kNames[static_cast<int>(renewal)];
}

std::string NameOf(LeaseAsked lease) {
  static const char* const kNames[] = {"unset", "too short", "short", "long",
                                       "too long"};
  return kNames[static_cast<int>(lease)];
}

std::string NameOf(CheckpointSent checkpoint) {
  static const char* const kNames[] = {"none", "lower", "equal", "higher"};
  return kNames[static_cast<int>(checkpoint)];
}

std::string NameOf(PolicyFound policy) {
  static const char* const kNames[] = {"take over", "hold", "refused"};
  return kNames[static_cast<int>(policy)];
}

std::string NameOf(Disposition disposition) {
  static const char* const kNames[] = {"not executed", "outcome unknown",
                                       "never executed"};
  return kNames[static_cast<int>(disposition)];
}

std::string Describe(const Situation& s) {
  if (s.row == Row::kNone) return "record: none";
  return "record: " + NameOf(s.row) + ", lease " + NameOf(s.lease) +
         ", expiry " + NameOf(s.expiry) + ", gave up " + NameOf(s.gave_up) +
         Flag(s.took_over, "took over") + Flag(s.checkpoint, "checkpoint") +
         Flag(s.held, "held") + ", abandoned " + NameOf(s.on_abandoned) +
         ", 5xx " + NameOf(s.on_server_error) + ", keep " + NameOf(s.keep);
}

std::string Describe(const ClaimChoice& c) {
  return std::string("claim: ") + (c.same_token ? "this" : "other") +
         " token, " + (c.same_hash ? "same" : "other") + " hash, renewal " +
         NameOf(c.renewal) + Flag(c.resolve_in_doubt, "resolve_in_doubt") +
         ", policy " + NameOf(c.policy) + ", lease " + NameOf(c.lease) +
         ", checkpoint " + NameOf(c.checkpoint);
}

std::string Describe(const FinalizeChoice& c) {
  return std::string("finalize: ") + (c.same_token ? "this" : "other") +
         " token, status " + std::to_string(c.status_code) + ", " +
         (c.same_response ? "same" : "other") + " response" +
         Flag(c.body_omitted, "body omitted") +
         Flag(c.headers_omitted, "headers omitted");
}

std::string Describe(const ReleaseChoice& c) {
  return std::string("release: ") + (c.same_token ? "this" : "other") +
         " token, " + NameOf(c.disposition);
}

}  // namespace idempotency
