// A batch of claims on its way through the rounds. For optimistic_store.cc.
#ifndef IDEMPOTENCY_SERVER_CORE_CLAIM_RUN_H_
#define IDEMPOTENCY_SERVER_CORE_CLAIM_RUN_H_

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "server/core/clock.h"
#include "server/core/metrics.h"
#include "server/core/record_table.h"
#include "server/core/store.h"

namespace idempotency {

// Inserts new records: as RecordTable::InsertNew().
using InsertNewRecords =
    absl::FunctionRef<absl::StatusOr<Times>(Batch<ClaimCommand> creating)>;

// Store::ClaimBatch(). `insert_new` is called once a round in which some claim
// may create its record.
std::vector<ClaimAnswer> RunClaims(RecordTable& table, const Clock& clock,
                                   Metrics& metrics, Batch<ClaimCommand> claims,
                                   InsertNewRecords insert_new);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_CLAIM_RUN_H_
