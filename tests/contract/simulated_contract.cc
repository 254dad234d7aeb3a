// The store over the simulation's model of PostgreSQL.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "server/core/metrics.h"
#include "server/core/mutex.h"
#include "server/core/optimistic_store.h"
#include "tests/contract/store_contract.h"
#include "tests/simulation/simulated_table.h"

namespace idempotency {
namespace {

class NoObserver final : public DatabaseObserver {
 public:
  void RowChanged(const RecordId&, const Version&) override {}
  void RowFellBack(const RecordId&, const Version&) override {}
  void FailedOver() override {}
};

// A world in calm weather, with a standby, that goes on while somebody waits.
struct Simulated {
  Scheduler scheduler{1};
  Weather weather;
  Database database{scheduler, weather, PlantedBug::kNone, true};
  Process process{scheduler};
  NoObserver observer;
  Metrics metrics;
  Mutex mutex;  // of all of it: some of the suite has threads

  Simulated() {
    weather.calm = true;
    database.Observe(&observer);
    database.rules.policies["default"] = {.name = "default",
                                          .lease = absl::Seconds(30),
                                          .max_lease = absl::Hours(1),
                                          .retention = absl::Hours(24)};
    database.rules.downstream_namespace.bytes.fill(0x5a);
  }

  // Runs `call` in a fiber until it returns.
  template <typename Call>
  auto Run(Call call) -> decltype(call()) {
    MutexLock lock(mutex);
    std::optional<decltype(call())> answer;
    scheduler.Spawn(Microseconds(0), [&] { answer.emplace(call()); });
    while (!answer.has_value()) scheduler.RunNext();
    return *std::move(answer);
  }
};

class SimulatedStore final : public Store {
 public:
  explicit SimulatedStore(Simulated& world)
      : world_(world),
        store_(std::make_unique<SimulatedTable>(world.database, world.process,
                                                world.weather),
               world.scheduler, world.metrics) {}

  std::vector<ClaimAnswer> ClaimBatch(Batch<ClaimCommand> claims) override {
    return world_.Run([&] { return store_.ClaimBatch(claims); });
  }
  std::vector<absl::StatusOr<FinalizeOutcome>> FinalizeBatch(
      Batch<FinalizeCommand> finalizes) override {
    return world_.Run([&] { return store_.FinalizeBatch(finalizes); });
  }
  ClaimAndFinalizeAnswers ClaimAndFinalize(
      Batch<ClaimCommand> claims, Batch<FinalizeCommand> finalizes) override {
    return world_.Run(
        [&] { return store_.ClaimAndFinalize(claims, finalizes); });
  }
  std::vector<absl::StatusOr<LookupOutcome>> LookupBatch(
      Batch<LookupCommand> lookups) override {
    return world_.Run([&] { return store_.LookupBatch(lookups); });
  }
  std::vector<absl::StatusOr<ReleaseOutcome>> ReleaseBatch(
      Batch<ReleaseCommand> releases) override {
    return world_.Run([&] { return store_.ReleaseBatch(releases); });
  }
  absl::StatusOr<std::vector<bool>> FindChanged(
      Batch<Watched> watched) override {
    return world_.Run([&] { return store_.FindChanged(watched); });
  }
  absl::StatusOr<FleetRules> ReadRules() override {
    return world_.Run([&] { return store_.ReadRules(); });
  }

 private:
  Simulated& world_;
  OptimisticStore store_;
};

class SweeperOfTheWorld final : public Sweeper {
 public:
  explicit SweeperOfTheWorld(Simulated& world)
      : world_(world), sweeper_(world.database, world.process, world.weather) {}

  absl::StatusOr<SweepReport> SweepRecords(int limit) override {
    return world_.Run([&] { return sweeper_.SweepRecords(limit); });
  }
  absl::StatusOr<std::int64_t> SweepConflicts(
      int limit, absl::Duration kept_for) override {
    return world_.Run([&] { return sweeper_.SweepConflicts(limit, kept_for); });
  }

 private:
  Simulated& world_;
  SimulatedSweeper sweeper_;
};

class SimulatedContractDatabase final : public ContractDatabase {
 public:
  std::unique_ptr<Store> MakeStore() override {
    return std::make_unique<SimulatedStore>(world_);
  }
  std::unique_ptr<Sweeper> MakeSweeper() override {
    return std::make_unique<SweeperOfTheWorld>(world_);
  }
  void Age(const RecordId& id, absl::Duration by) override {
    const RecordPtr record = world_.database.Find(id);
    ASSERT_NE(record, nullptr) << id.key;
    world_.database.Put(id, AgedRow(*record, by));
  }
  void AgeEvidence(absl::Duration by) override {
    world_.database.AgeConflicts(by);
  }
  std::vector<Evidence> EvidenceOf(const RecordId& id) override {
    std::vector<Evidence> evidence;
    for (const KeptConflict& kept :
         ConflictsAbout(world_.database.conflicts(), id)) {
      evidence.push_back(
          {.status_code = kept.status_code, .count = kept.count});
    }
    return evidence;
  }
  void AddPolicy(const Policy& policy) override {
    world_.database.rules.policies[policy.name] = policy;
  }
  void AddScope(const std::string& scope, const ScopePolicy& rule) override {
    world_.database.rules.scopes[scope] = rule;
  }

 private:
  Simulated world_;
};

std::unique_ptr<ContractDatabase> MakeSimulatedDatabase() {
  return std::make_unique<SimulatedContractDatabase>();
}

INSTANTIATE_TEST_SUITE_P(Simulated, StoreContract,
                         testing::Values(StoreUnderContract{
                             "simulated", &MakeSimulatedDatabase}));

}  // namespace
}  // namespace idempotency
