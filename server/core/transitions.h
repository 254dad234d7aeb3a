// The tables of outcomes, as pure functions of (record, request, database
// time). Nothing else in the program decides who may execute.
//
// Every function takes the record as it is stored, or null when there is no
// row. `now` is a reading of the database's clock from just before the record
// was read: a lease that is over by it was over when the record was read. None
// of them reads a clock or touches anything.
#ifndef IDEMPOTENCY_SERVER_CORE_TRANSITIONS_H_
#define IDEMPOTENCY_SERVER_CORE_TRANSITIONS_H_

#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/types.h"

namespace idempotency {

// What follows for one call. `answer` may be given to the caller once `write`
// has replaced exactly the record that the decision was made on (compared by
// its claim token, fencing token and version) or, without a `write`, at once.
template <typename Outcome>
struct Decision {
  absl::StatusOr<Outcome> answer;
  std::optional<Record> write{};
  // The refused response is to be kept as evidence of a second execution
  // before the answer is given. Only with a refused Finalize.
  bool evidence = false;
};

// Whether the record counts as none: past its expiry, swept or not.
bool IsAbsent(const Record& record, absl::Time now);

// A record's state as callers see it.
VisibleState StateAt(const Record& record, absl::Time now);

// The attempt that a takeover of an unfinished record would be told of.
Abandoned AbandonedAttempt(const Record& record);

// The record that a first grant makes: the one place that lays out a record
// for both the optimistic INSERT and the overwriting of an expired row.
// REQUIRES: command.policy.ok().
Record NewRecord(const ClaimCommand& command, absl::Time now);

// What the holder of `record` is told of its grant.
Claimed GrantOf(const Record& record, absl::Time now);

// What the owner of a recorded `response` is told.
FinalizeResult ResultOf(const Response& response);

// The lease that a first grant gives, within the bounds of the policy.
// REQUIRES: command.policy.ok().
absl::Duration FirstLease(const ClaimCommand& command);

// May the claim make a record where none is? False for renewals and where the
// policy was refused.
bool MayCreate(const ClaimCommand& command);

// For a claim that would create a record where there is no row at all, the
// write has no record to replace: it is to be inserted.
Decision<ClaimOutcome> DecideClaim(const Record* record,
                                   const ClaimCommand& command, absl::Time now);

Decision<FinalizeOutcome> DecideFinalize(const Record* record,
                                         const FinalizeCommand& command,
                                         absl::Time now);

Decision<ReleaseOutcome> DecideRelease(const Record* record,
                                       const ReleaseCommand& command,
                                       absl::Time now);

// The record, or RECORD_NOT_FOUND.
absl::StatusOr<LookupOutcome> DecideLookup(const Record* record,
                                           absl::Time now);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_TRANSITIONS_H_
