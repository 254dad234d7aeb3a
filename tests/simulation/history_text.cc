#include "tests/simulation/history_text.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/core/errors.h"

namespace idempotency {
namespace {

const char* StateText(const Record& row) {
  switch (row.state) {
    case RecordState::kFinal:
      return "final";
    case RecordState::kReleased:
      return "released";
    case RecordState::kUnfinished:
      break;
  }
  return row.gave_up == GaveUp::kNo ? "unfinished" : "given up";
}

// A word where it is one, else the first bytes of it.
std::string TextOfDigest(const std::string& digest) {
  constexpr std::size_t kBytesShown = 4;
  if (digest.find(' ') != std::string::npos) return "response " + digest;
  return "response " + absl::BytesToHexString(digest.substr(0, kBytesShown));
}

}  // namespace

std::string TimeText(absl::Time time) {
  constexpr std::int64_t kHour = 3'600'000'000;
  if (time == absl::InfiniteFuture()) return "never";
  return absl::StrFormat(
      "%.6f", static_cast<double>(absl::ToUnixMicros(time) % kHour) / 1e6);
}

std::string TextOfToken(const Uuid& token) {
  std::string text = "t";
  for (const std::uint8_t byte : token.bytes) {
    if (byte != 0) absl::StrAppend(&text, absl::Hex(byte, absl::kZeroPad2));
  }
  return text;
}

std::string TextOfRow(const Record* row) {
  if (row == nullptr) return "none";
  return absl::StrCat(
      StateText(*row), row->held ? " held" : "", " of ",
      TextOfToken(row->claim_token),
      " fencing=", row->fencing_token % 10000000000, " attempt=", row->attempt,
      " version=", row->version % 10000000000, " lease until ",
      TimeText(row->lease_expires_at), " expires ", TimeText(row->expires_at),
      " freed=", row->freed_count, " by ", row->policy.name,
      row->state == RecordState::kFinal
          ? " " + TextOfDigest(row->response_digest)
          : "");
}

std::string TextOfCall(const ClaimCommand& claim) {
  return absl::StrCat(
      claim.renew_fencing_token != 0 ? "renewal by " : "Claim by ",
      TextOfToken(claim.claim_token),
      claim.resolve_in_doubt ? " resolving" : "");
}

std::string TextOfCall(const FinalizeCommand& finalize) {
  return absl::StrCat("Finalize by ", TextOfToken(finalize.claim_token), " ",
                      TextOfDigest(finalize.response_digest));
}

std::string TextOfCall(const LookupCommand&) { return "Lookup"; }

std::string TextOfCall(const ReleaseCommand& release) {
  constexpr const char* kNames[] = {"not executed", "unknown",
                                    "never executed"};
  return absl::StrCat("Release by ", TextOfToken(release.claim_token), " ",
                      kNames[static_cast<int>(release.disposition)]);
}

std::string NameOfAnswer(const absl::Status& status) {
  return HasReason(status) ? std::string(ReasonName(ReasonOf(status)))
                           : absl::StatusCodeToString(status.code());
}

const char* NameOfAnswer(const ClaimOutcome& outcome) {
  constexpr const char* kNames[] = {"Claimed", "Replay", "InProgress",
                                    "Mismatch", "InDoubt"};
  return kNames[outcome.index()];
}

}  // namespace idempotency
