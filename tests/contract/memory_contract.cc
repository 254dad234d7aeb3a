// The store over the in-memory table of the tests.
#include <gtest/gtest.h>

#include <memory>

#include "server/core/clock.h"
#include "server/core/metrics.h"
#include "server/core/optimistic_store.h"
#include "tests/contract/store_contract.h"
#include "tests/support/memory_table.h"

namespace idempotency {
namespace {

class MemoryContractDatabase final : public ContractDatabase {
 public:
  std::unique_ptr<Store> MakeStore() override {
    return std::make_unique<OptimisticStore>(
        std::make_unique<MemoryTable>(database_), clock_, metrics_);
  }

  std::unique_ptr<Sweeper> MakeSweeper() override {
    return std::make_unique<MemorySweeper>(database_);
  }

  void Age(const RecordId& id, absl::Duration by) override {
    ASSERT_TRUE(database_.Age(id, by)) << id.key;
    // Tokens that were given within one microsecond are ahead of the clock.
    database_.Advance(absl::Milliseconds(1));
  }

  void AgeEvidence(absl::Duration by) override { database_.AgeConflicts(by); }

  std::vector<Evidence> EvidenceOf(const RecordId& id) override {
    std::vector<Evidence> evidence;
    for (const KeptConflict& kept : database_.ConflictsOf(id)) {
      evidence.push_back(
          {.status_code = kept.status_code, .count = kept.count});
    }
    return evidence;
  }

  void AddPolicy(const Policy& policy) override {
    FleetRules rules = database_.rules();
    rules.policies[policy.name] = policy;
    database_.SetRules(std::move(rules));
  }

  void AddScope(const std::string& scope, const ScopePolicy& rule) override {
    FleetRules rules = database_.rules();
    rules.scopes[scope] = rule;
    database_.SetRules(std::move(rules));
  }

 private:
  MemoryDatabase database_;
  SystemClock clock_;
  Metrics metrics_;
};

std::unique_ptr<ContractDatabase> MakeMemoryDatabase() {
  return std::make_unique<MemoryContractDatabase>();
}

INSTANTIATE_TEST_SUITE_P(Memory, StoreContract,
                         testing::Values(StoreUnderContract{
                             "memory", &MakeMemoryDatabase}));

}  // namespace
}  // namespace idempotency
