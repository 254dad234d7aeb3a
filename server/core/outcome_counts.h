// Counts what the calls were answered, where it is known under which policy.
#ifndef IDEMPOTENCY_SERVER_CORE_OUTCOME_COUNTS_H_
#define IDEMPOTENCY_SERVER_CORE_OUTCOME_COUNTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "server/core/metrics.h"
#include "server/core/types.h"

namespace idempotency {

// A claim that was answered from `record` without writing it.
void CountUnwritten(const ClaimOutcome& outcome, const Record& record,
                    Metrics& metrics);
// The same for InProgress, by the name of the record's policy.
void CountInProgress(const std::string& policy, Metrics& metrics);

enum class Grant { kNew, kAgain };

// A claim whose grant is written in `record`.
void CountGrant(Grant grant, const Record& record, Metrics& metrics);

// Errors are not counted here: they have no policy, and are counted as gRPC
// carries them.
void CountFinalize(const absl::StatusOr<FinalizeOutcome>& answer,
                   Metrics& metrics);
void CountRelease(const absl::StatusOr<ReleaseOutcome>& answer,
                  Metrics& metrics);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_OUTCOME_COUNTS_H_
