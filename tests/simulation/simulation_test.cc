// Many small worlds, each decided by a seed and checked step by step.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/simulation_seeds.h"
#include "tests/simulation/world.h"

namespace idempotency {
namespace {

using ::testing::IsEmpty;

// Sanitizers are many times slower.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kSeeds = 100;
constexpr std::uint64_t kSeedsInProcesses = 5;
#else
constexpr std::uint64_t kSeeds = 1500;
constexpr std::uint64_t kSeedsInProcesses = 40;
#endif

// Where a promise once was broken, or a checker was wrong about it.
TEST(SimulationTest, SeedsThatOnceBrokeAPromiseKeepIt) {
  for (const std::uint64_t seed :
       {4580, 12668, 21032, 21569, 25786, 39159, 185923}) {
    World world(seed, PlantedBug::kNone);
    world.Run();
    EXPECT_THAT(world.violations(), IsEmpty()) << "seed " << seed;
  }
}

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
                             "Claim: Replay from memory only",
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
                            "clock steps",
                            "connections cut",
                            "database crashes",
                            "database read-only",
                            "failovers",
                            "failovers to another clock",
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

// Lines of one time are in the order in which a hash table of the engine's has
// its keys, which nothing else depends on.
std::vector<std::string> SortedHistory(World& world) {
  world.KeepHistory();
  world.Run();
  std::vector<std::string> lines = world.History();
  std::sort(lines.begin(), lines.end());
  return lines;
}

// Whatever ran before it.
TEST(SimulationTest, ASeedDecidesEverything) {
  for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
    World one(seed, PlantedBug::kNone);
    const std::vector<std::string> history = SortedHistory(one);
    World other(seed + 100, PlantedBug::kNone);
    other.Run();
    World two(seed, PlantedBug::kNone);
    EXPECT_EQ(SortedHistory(two), history);
    EXPECT_EQ(two.counts(), one.counts());
  }
}

// The digests that a process of its own prints.
std::map<std::uint64_t, std::uint64_t> DigestsOfAnotherProcess(
    std::uint64_t seeds) {
  const std::string command =
      std::string(SIMULATE_PROGRAM) +
      " --digests --from=1 --seeds=" + std::to_string(seeds);
  const std::unique_ptr<FILE, int (*)(FILE*)> output(
      popen(command.c_str(), "r"), pclose);
  std::map<std::uint64_t, std::uint64_t> digests;
  std::uint64_t seed = 0;
  std::uint64_t digest = 0;
  std::array<char, 256> line;
  while (fgets(line.data(), line.size(), output.get()) != nullptr) {
    if (std::sscanf(line.data(), "digest %" SCNu64 " %" SCNu64, &seed,
                    &digest) == 2) {
      digests[seed] = digest;
    }
  }
  return digests;
}

// Whatever addresses things have there, which hash tables go by.
TEST(SimulationTest, ASeedIsTheSameRunInEveryProcess) {
  std::map<std::uint64_t, std::uint64_t> digests;
  for (std::uint64_t seed = 1; seed <= kSeedsInProcesses; ++seed) {
    World world(seed, PlantedBug::kNone);
    world.KeepHistory();
    world.Run();
    digests[seed] = world.Digest();
  }
  EXPECT_NE(digests[1], digests[2]);
  for (int process = 0; process < 3; ++process) {
    EXPECT_EQ(DigestsOfAnotherProcess(kSeedsInProcesses), digests);
  }
}

}  // namespace
}  // namespace idempotency
