// Many small worlds, each decided by a seed and checked step by step.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <map>
#include <string>

#include "tests/simulation/simulation_seeds.h"
#include "tests/simulation/world.h"

namespace idempotency {
namespace {

using ::testing::IsEmpty;

// Sanitizers are many times slower.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kSeeds = 100;
#else
constexpr std::uint64_t kSeeds = 1500;
#endif

TEST(SimulationTest, EveryPromiseHoldsUnderEverySeed) {
  const SeedRange seeds = SeedsToRun(kSeeds);
  WorldCounts counts;
  for (std::uint64_t seed = seeds.first; seed <= seeds.last; ++seed) {
    World world(seed, PlantedBug::kNone);
    world.Run();
    ASSERT_THAT(world.violations(), IsEmpty()) << "IDEMPOTENCY_SEED=" << seed;
    counts.Add(world.counts());
  }
  std::cout << counts.operations << " operations, " << counts.steps
            << " steps\n";
  if (seeds.repeats_one) return;
  // Nothing that can happen was left out.
  for (const char* answer : {"Claim: Claimed",
                             "Claim: Replay",
                             "Claim: InProgress",
                             "Claim: Mismatch",
                             "Claim: InDoubt",
                             "Claim: CLAIM_RELEASED",
                             "Claim: CLAIM_SUPERSEDED",
                             "Claim: RECORD_NOT_FOUND",
                             "Claim: UNKNOWN_POLICY",
                             "Claim: OUTCOME_UNKNOWN",
                             "Claim: STORE_UNAVAILABLE",
                             "Claim: DEADLINE_EXCEEDED",
                             "Claim: OVERLOADED",
                             "Claim: DRAINING",
                             "Finalize: recorded",
                             "Finalize: released",
                             "Finalize: in doubt",
                             "Finalize: CLAIM_SUPERSEDED",
                             "Finalize: CLAIM_RELEASED",
                             "Finalize: ALREADY_FINALIZED",
                             "Finalize: RECORD_NOT_FOUND",
                             "Release: released",
                             "Release: not released",
                             "Release: CLAIM_SUPERSEDED",
                             "Release: ALREADY_FINALIZED",
                             "Lookup: found",
                             "Lookup: RECORD_NOT_FOUND"}) {
    EXPECT_GT(counts.answers[answer], 0U) << answer;
  }
  for (const char* event : {"Executed",
                            "Replayed",
                            "Resolved",
                            "Winner",
                            "InProgress",
                            "Mismatch",
                            "InDoubt",
                            "Unavailable",
                            "HungUp",
                            "NothingHappened",
                            "Unknown",
                            "Conflict",
                            "charged before",
                            "renewed",
                            "not renewed",
                            "sent again",
                            "withdrawn",
                            "checkpoint stored",
                            "checkpoint lost",
                            "DISPOSITION_NOT_EXECUTED",
                            "DISPOSITION_OUTCOME_UNKNOWN"}) {
    EXPECT_GT(counts.events[event], 0U) << event;
  }
  for (const char* fault : {"answers lost",
                            "backends killed",
                            "callers killed",
                            "callers paused",
                            "connections cut",
                            "database crashes",
                            "database read-only",
                            "failovers",
                            "lock waits",
                            "messages late",
                            "policies changed",
                            "replicas drained",
                            "replicas killed",
                            "replicas paused",
                            "requests duplicated",
                            "requests lost",
                            "rows lost in a failover",
                            "slow commits",
                            "standby stalls",
                            "standby waits cancelled",
                            "statements held up"}) {
    EXPECT_GT(counts.faults[fault], 0U) << fault;
  }
}

// Whatever ran before it, and in whichever order a hash table keeps its keys.
TEST(SimulationTest, ASeedDecidesEverything) {
  for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
    World one(seed, PlantedBug::kNone);
    one.KeepHistory();
    one.Run();
    World other(seed + 100, PlantedBug::kNone);
    other.Run();
    World two(seed, PlantedBug::kNone);
    two.KeepHistory();
    two.Run();
    EXPECT_EQ(one.History(), two.History());
    EXPECT_EQ(one.counts(), two.counts());
  }
}

}  // namespace
}  // namespace idempotency
