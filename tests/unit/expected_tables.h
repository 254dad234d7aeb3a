// The tables of outcomes as ordered rows, worded as in the manual of the API.
// Of each table the first row that fits holds.
#ifndef IDEMPOTENCY_TESTS_UNIT_EXPECTED_TABLES_H_
#define IDEMPOTENCY_TESTS_UNIT_EXPECTED_TABLES_H_

#include <string_view>

#include "server/core/errors.h"
#include "tests/unit/situations.h"

namespace idempotency::expected {

// ---- What the tables ask about.

struct Facts {
  bool absent = false;
  bool unfinished = false;
  bool final = false;
  bool released = false;
  bool given_up = false;
  bool running = false;
  bool held = false;
  bool took_over = false;
};

inline Facts FactsOf(const Situation& s) {
  const bool unfinished = s.row == Row::kUnfinished;
  const bool given_up = unfinished && s.gave_up != GaveUp::kNo;
  const bool running = unfinished && !given_up && s.lease == Lease::kRunning;
  const bool past = s.expiry == Expiry::kNow || s.expiry == Expiry::kPast;
  const bool never_expires = s.held && unfinished && !running;
  const bool absent = s.row == Row::kNone || (past && !never_expires);
  return {.absent = absent,
          .unfinished = unfinished && !absent,
          .final = s.row == Row::kFinal && !absent,
          .released = s.row == Row::kReleased && !absent,
          .given_up = given_up,
          .running = running,
          .held = s.held,
          .took_over = s.took_over};
}

// ---- Claim.

enum class ClaimVerdict {
  kFirstGrant,
  kGrantAfterRelease,
  kGrantedAgain,
  kTakeover,
  kReplay,
  kMismatch,
  kInProgress,
  kInDoubt,
  kClaimReleased,
};

// What a renewal gets in a row, which never acquires.
enum class ForRenewal {
  kSame,
  kSuperseded,              // R
  kSupersededIfOtherGrant,  // R if the fencing token is another
  kNotFound,
};

struct ClaimRow {
  std::string_view record;
  bool (*fits)(const Facts&, const ClaimChoice&);
  ForRenewal renewal;
  ClaimVerdict answer;
};

inline constexpr ClaimRow kClaimRows[] = {
    {"absent (R)", [](const Facts& f, const ClaimChoice&) { return f.absent; },
     ForRenewal::kNotFound, ClaimVerdict::kFirstGrant},
    {"released by this claim token",
     [](const Facts& f, const ClaimChoice& c) {
       return f.released && c.same_token;
     },
     ForRenewal::kSame, ClaimVerdict::kClaimReleased},
    {"released (R)",
     [](const Facts& f, const ClaimChoice&) { return f.released; },
     ForRenewal::kSuperseded, ClaimVerdict::kGrantAfterRelease},
    {"other request hash",
     [](const Facts&, const ClaimChoice& c) { return !c.same_hash; },
     ForRenewal::kSame, ClaimVerdict::kMismatch},
    {"final", [](const Facts& f, const ClaimChoice&) { return f.final; },
     ForRenewal::kSame, ClaimVerdict::kReplay},
    {"given up by this claim token",
     [](const Facts& f, const ClaimChoice& c) {
       return f.given_up && c.same_token;
     },
     ForRenewal::kSame, ClaimVerdict::kClaimReleased},
    {"unfinished, this claim token (R if the fencing token is another)",
     [](const Facts& f, const ClaimChoice& c) {
       return f.unfinished && c.same_token;
     },
     ForRenewal::kSupersededIfOtherGrant, ClaimVerdict::kGrantedAgain},
    {"running, other token (R)",
     [](const Facts& f, const ClaimChoice&) { return f.running; },
     ForRenewal::kSuperseded, ClaimVerdict::kInProgress},
    {"abandoned, held, no resolve_in_doubt (R)",
     [](const Facts& f, const ClaimChoice& c) {
       return f.held && !c.resolve_in_doubt;
     },
     ForRenewal::kSuperseded, ClaimVerdict::kInDoubt},
    {"abandoned (R)", [](const Facts&, const ClaimChoice&) { return true; },
     ForRenewal::kSuperseded, ClaimVerdict::kTakeover},
};

// ---- Finalize.

enum class FinalizeVerdict { kRecorded, kGivenUp, kAsTheFirstTime, kRefused };

struct FinalizeRow {
  std::string_view record;
  bool (*fits)(const Facts&, const FinalizeChoice&, OnServerError);
  FinalizeVerdict answer;
  Reason reason = Reason::kInternal;  // with kRefused
};

inline constexpr FinalizeRow kFinalizeRows[] = {
    {"unfinished, this token, status < 500 or the policy records it",
     [](const Facts& f, const FinalizeChoice& c, OnServerError rule) {
       return f.unfinished && c.same_token &&
              (c.status_code < 500 || rule == OnServerError::kRecord);
     },
     FinalizeVerdict::kRecorded},
    {"unfinished, this token, status >= 500, not recorded",
     [](const Facts& f, const FinalizeChoice& c, OnServerError) {
       return f.unfinished && c.same_token;
     },
     FinalizeVerdict::kGivenUp},
    {"final, this token, same response",
     [](const Facts& f, const FinalizeChoice& c, OnServerError) {
       return f.final && c.same_token && c.same_response;
     },
     FinalizeVerdict::kAsTheFirstTime},
    {"final, this token, other response",
     [](const Facts& f, const FinalizeChoice& c, OnServerError) {
       return f.final && c.same_token;
     },
     FinalizeVerdict::kRefused, Reason::kAlreadyFinalized},
    {"another token's, in any state, the same response too",
     [](const Facts& f, const FinalizeChoice& c, OnServerError) {
       return !f.absent && !c.same_token;
     },
     FinalizeVerdict::kRefused, Reason::kClaimSuperseded},
    {"released by this token",
     [](const Facts& f, const FinalizeChoice&, OnServerError) {
       return f.released;
     },
     FinalizeVerdict::kRefused, Reason::kClaimReleased},
    {"absent",
     [](const Facts&, const FinalizeChoice&, OnServerError) { return true; },
     FinalizeVerdict::kRefused, Reason::kRecordNotFound},
};

// ---- Release.

enum class ReleaseVerdict {
  kFreed,
  kUnknown,     // given up: it may have acted
  kDidNothing,  // given up: it speaks for itself only
  kRepeat,      // released=true, and nothing of the record changes
  kNothing,     // released=false
  kSuperseded,
  kFinalized,
};

struct ReleaseRow {
  std::string_view record;
  bool (*fits)(const Facts&, const ReleaseChoice&);
  ReleaseVerdict answer;
};

inline constexpr ReleaseRow kReleaseRows[] = {
    {"unfinished, this token, NEVER_EXECUTED (given up or not)",
     [](const Facts& f, const ReleaseChoice& c) {
       return f.unfinished && c.same_token &&
              c.disposition == Disposition::kNeverExecuted;
     },
     ReleaseVerdict::kFreed},
    {"given up by this token, any other disposition",
     [](const Facts& f, const ReleaseChoice& c) {
       return f.unfinished && f.given_up && c.same_token;
     },
     ReleaseVerdict::kRepeat},
    {"unfinished, this token, OUTCOME_UNKNOWN",
     [](const Facts& f, const ReleaseChoice& c) {
       return f.unfinished && c.same_token &&
              c.disposition == Disposition::kOutcomeUnknown;
     },
     ReleaseVerdict::kUnknown},
    {"unfinished, this token, NOT_EXECUTED, attempt that had not taken over",
     [](const Facts& f, const ReleaseChoice& c) {
       return f.unfinished && c.same_token && !f.took_over;
     },
     ReleaseVerdict::kFreed},
    {"unfinished, this token, NOT_EXECUTED, attempt that had taken over",
     [](const Facts& f, const ReleaseChoice& c) {
       return f.unfinished && c.same_token;
     },
     ReleaseVerdict::kDidNothing},
    {"released by this token",
     [](const Facts& f, const ReleaseChoice& c) {
       return f.released && c.same_token;
     },
     ReleaseVerdict::kRepeat},
    {"absent, or released by another token",
     [](const Facts& f, const ReleaseChoice&) {
       return f.absent || f.released;
     },
     ReleaseVerdict::kNothing},
    {"unfinished, another token's (running, lapsed or given up)",
     [](const Facts& f, const ReleaseChoice&) { return f.unfinished; },
     ReleaseVerdict::kSuperseded},
    {"final", [](const Facts&, const ReleaseChoice&) { return true; },
     ReleaseVerdict::kFinalized},
};

}  // namespace idempotency::expected

#endif  // IDEMPOTENCY_TESTS_UNIT_EXPECTED_TABLES_H_
