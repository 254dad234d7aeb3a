// What the coordinator promises about the changes of a record and about what is
// told of it, for whoever watches a table of records. Shares no decision with
// the server: it has its own idea of when a record counts as none, of when a
// lease is over, and of what policies say.
//
// The names of the promises: S1 a fencing token has one owner; S2 fencing
// tokens, attempts and versions grow; S3 one live owner; S4 a claim that is
// repeated is no new grant; S6 a recorded response never changes; S7 only the
// owner ends an attempt; S11 another request changes nothing; S12 a release is
// for good; S16 a takeover is told; S18 nothing is forgotten early.
// Of answers: S5 nobody is kept waiting by himself; S8 a Lookup tells what is.
#ifndef IDEMPOTENCY_TESTS_SUPPORT_RECORD_RULES_H_
#define IDEMPOTENCY_TESTS_SUPPORT_RECORD_RULES_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "server/core/types.h"

namespace idempotency {

inline bool IsUnfinished(const Record& record) {
  return record.state == RecordState::kUnfinished;
}

inline bool CountsAsNone(const Record* row, absl::Time now) {
  return row == nullptr ||
         (row->expires_at <= now && !(row->held && IsUnfinished(*row)));
}

inline bool IsGivenUp(const Record& record) {
  return record.gave_up != GaveUp::kNo;
}

inline bool IsOver(const Record& record, absl::Time now) {
  return IsGivenUp(record) || record.lease_expires_at <= now;
}

// Told of each broken promise: its name, and what happened.
using BrokenPromise =
    absl::FunctionRef<void(const std::string& promise, const std::string&)>;

// What was once sent with the claim token of a record.
struct Asked {
  bool resolves = false;        // a claim with resolve_in_doubt
  bool never_executed = false;  // a Release of that disposition
};

// One change of a record that was committed at `now` of the database's clock.
// Null: no row.
void CheckChange(const Record* before, const Record* after, absl::Time now,
                 const Asked& asked, BrokenPromise broken);

// The same of its lease and of its expiry: what its policy says. For a clock
// that was not set back while the change was made.
void CheckTimes(const Record* before, const Record* after, absl::Time now,
                BrokenPromise broken);

// ---- May a claim be told so of `row`, which is what there is at `now`?

// S5
bool MayTellInProgress(const Record* row, const ClaimCommand& claim,
                       absl::Time now);
// S11
bool MayTellMismatch(const Record* row, const ClaimCommand& claim,
                     absl::Time now);
// S16: held, and by nobody who can resolve it.
bool MayTellInDoubt(const Record* row, const ClaimCommand& claim,
                    absl::Time now);
// S9, S11, but for the response itself.
bool MayReplay(const Record* row, const ClaimCommand& claim, absl::Time now);

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SUPPORT_RECORD_RULES_H_
