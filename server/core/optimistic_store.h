// Store over a RecordTable: one optimistic statement for the whole batch,
// then, for the items it did not settle, one read, the pure decision and a
// write that is guarded by all that the decision read.
#ifndef IDEMPOTENCY_SERVER_CORE_OPTIMISTIC_STORE_H_
#define IDEMPOTENCY_SERVER_CORE_OPTIMISTIC_STORE_H_

#include <memory>
#include <vector>

#include "server/core/clock.h"
#include "server/core/metrics.h"
#include "server/core/record_table.h"
#include "server/core/store.h"

namespace idempotency {

class OptimisticStore final : public Store {
 public:
  // `clock` measures how long a grant took, so that its answer tells the lease
  // that is left. `clock` and `metrics` must outlive the store.
  OptimisticStore(std::unique_ptr<RecordTable> table, const Clock& clock,
                  Metrics& metrics);

  std::vector<ClaimAnswer> ClaimBatch(Batch<ClaimCommand> claims) override;
  std::vector<absl::StatusOr<FinalizeOutcome>> FinalizeBatch(
      Batch<FinalizeCommand> finalizes) override;
  ClaimAndFinalizeAnswers ClaimAndFinalize(
      Batch<ClaimCommand> claims, Batch<FinalizeCommand> finalizes) override;
  std::vector<absl::StatusOr<LookupOutcome>> LookupBatch(
      Batch<LookupCommand> lookups) override;
  std::vector<absl::StatusOr<ReleaseOutcome>> ReleaseBatch(
      Batch<ReleaseCommand> releases) override;
  absl::StatusOr<std::vector<bool>> FindChanged(
      Batch<Watched> watched) override;
  absl::StatusOr<FleetRules> ReadRules() override;

 private:
  // Answers what the optimistic statement, which gave `recorded`, settled, and
  // decides the rest.
  std::vector<absl::StatusOr<FinalizeOutcome>> SettleFinalizes(
      Batch<FinalizeCommand> finalizes, absl::StatusOr<Times> recorded);

  std::unique_ptr<RecordTable> table_;
  const Clock& clock_;
  Metrics& metrics_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_OPTIMISTIC_STORE_H_
