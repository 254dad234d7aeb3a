// Refused responses, which are kept as the only proof that work was done
// twice.
#ifndef IDEMPOTENCY_SERVER_CORE_EVIDENCE_H_
#define IDEMPOTENCY_SERVER_CORE_EVIDENCE_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "server/core/metrics.h"
#include "server/core/record_table.h"
#include "server/core/types.h"

namespace idempotency {

// Keeps the responses of the `finalizes` at the positions `refused`, which are
// in ascending order, and counts them. Where that fails, the answer becomes
// one that does not tell the refusal: without its evidence it must not reach
// the caller.
void KeepEvidence(RecordTable& table, Batch<FinalizeCommand> finalizes,
                  const std::vector<std::size_t>& refused, Metrics& metrics,
                  std::vector<absl::StatusOr<FinalizeOutcome>>& answers);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_EVIDENCE_H_
