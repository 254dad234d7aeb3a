// The coordinator's statements, as the model of the database carries them out.
#ifndef IDEMPOTENCY_TESTS_SIMULATION_SIMULATED_TABLE_H_
#define IDEMPOTENCY_TESTS_SIMULATION_SIMULATED_TABLE_H_

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "server/core/reaper.h"
#include "server/core/record_table.h"
#include "tests/simulation/session.h"

namespace idempotency {

// A lane's table. What a failure means is decided by the server's own
// sqlstate.h. Not thread-safe; to be used in a fiber of the process.
class SimulatedTable final : public RecordTable {
 public:
  SimulatedTable(Database& database, Process& process, Weather& weather)
      : session_(database, process, weather), bug_(database.bug()) {}

  absl::StatusOr<Times> InsertNew(Batch<ClaimCommand> claims) override;
  absl::StatusOr<Times> FinalizeOwned(
      Batch<FinalizeCommand> finalizes) override;
  InsertedAndFinalized InsertAndFinalize(
      Batch<ClaimCommand> claims, Batch<FinalizeCommand> finalizes) override;
  absl::StatusOr<Snapshot> Read(Batch<RecordId> ids,
                                ReadBodies bodies) override;
  absl::StatusOr<std::vector<bool>> Replace(
      Batch<Replacement> replacements) override;
  absl::StatusOr<std::vector<bool>> KeepConflicts(
      Batch<Conflict> conflicts) override;
  absl::StatusOr<std::vector<bool>> FindChanged(
      Batch<Watched> watched) override;
  absl::StatusOr<std::vector<int>> CountConflicts(Batch<RecordId> ids) override;
  absl::StatusOr<FleetRules> ReadRules() override;

 private:
  // With the bug `trusting` it counts as done although it is not confirmed.
  absl::Status Run(std::string_view operation, bool writes, StatementWork work,
                   PlantedBug trusting = PlantedBug::kCancelledWaitIsSuccess);

  Session session_;
  const PlantedBug bug_;
};

// A replica's sweeper, likewise.
class SimulatedSweeper final : public Sweeper {
 public:
  SimulatedSweeper(Database& database, Process& process, Weather& weather)
      : session_(database, process, weather), bug_(database.bug()) {}

  absl::StatusOr<SweepReport> SweepRecords(int limit) override;
  absl::StatusOr<std::int64_t> SweepConflicts(int limit,
                                              absl::Duration kept_for) override;

 private:
  absl::StatusOr<SweepReport> Sweep(int limit, bool past_locked);

  Session session_;
  const PlantedBug bug_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_SIMULATED_TABLE_H_
