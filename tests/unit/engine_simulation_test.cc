// Many short lives of two replicas, each decided by a seed and checked step by
// step.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <map>
#include <string>

#include "tests/unit/engine_world.h"
#include "tests/unit/simulation_seeds.h"

namespace idempotency {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;

// ThreadSanitizer is twenty times slower, and there is one thread.
#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSeeds = 300;
#else
constexpr std::uint64_t kSeeds = 2000;
#endif
constexpr int kSteps = 250;
// A planted bug shows long before.
constexpr std::uint64_t kSeedsForABug = 1000;

TEST(EngineSimulationTest, EveryPromiseHoldsUnderEverySeed) {
  const SeedRange seeds = SeedsToRun(kSeeds);
  std::map<std::string, int> answers;
  for (std::uint64_t seed = seeds.first; seed <= seeds.last; ++seed) {
    EngineWorld world(seed, PlantedBug::kNone);
    world.Run(kSteps);
    ASSERT_THAT(world.violations(), IsEmpty()) << "IDEMPOTENCY_SEED=" << seed;
    for (const auto& [answer, count] : world.answers()) {
      answers[answer] += count;
    }
  }
  for (const auto& [answer, count] : answers) {
    std::cout << "  " << count << " " << answer << "\n";
  }
  if (seeds.repeats_one) return;
  // Nothing that can be answered was left out.
  for (const char* answer : {"Claim: Claimed",
                             "Claim: Replay",
                             "Claim: InProgress",
                             "Claim: Mismatch",
                             "Claim: InDoubt",
                             "Claim: CLAIM_RELEASED",
                             "Claim: CLAIM_SUPERSEDED",
                             "Claim: RECORD_NOT_FOUND",
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
    EXPECT_GT(answers[answer], 0) << answer;
  }
}

TEST(EngineSimulationTest, ASeedDecidesEverything) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    EngineWorld one(seed, PlantedBug::kNone);
    EngineWorld two(seed, PlantedBug::kNone);
    one.Run(kSteps);
    two.Run(kSteps);
    EXPECT_EQ(one.answers(), two.answers());
  }
}

struct BugCase {
  PlantedBug bug;
  const char* name;
  // One of the promises that it breaks.
  const char* promise;
};

class PlantedBugTest : public ::testing::TestWithParam<BugCase> {};

TEST_P(PlantedBugTest, IsNoticed) {
  const auto broken =
      BrokenPromises(GetParam().promise, kSeedsForABug, [](std::uint64_t seed) {
        EngineWorld world(seed, GetParam().bug);
        world.Run(kSteps);
        return world.violations();
      });
  EXPECT_THAT(broken, Contains(GetParam().promise));
}

INSTANTIATE_TEST_SUITE_P(
    Bugs, PlantedBugTest,
    ::testing::Values(
        BugCase{PlantedBug::kReplaceIgnoresTheGuard, "ReplaceIgnoresTheGuard",
                "S6"},
        BugCase{PlantedBug::kFinalizeIgnoresTheOwner, "FinalizeIgnoresTheOwner",
                "S7"},
        BugCase{PlantedBug::kTakeoverIsNotTold, "TakeoverIsNotTold", "S16"},
        BugCase{PlantedBug::kLostReplyCountsAsUndone, "LostReplyCountsAsUndone",
                "S15"},
        BugCase{PlantedBug::kSweepDoesNotLookAgain, "SweepDoesNotLookAgain",
                "S18"},
        BugCase{PlantedBug::kLooksFindNothing, "LooksFindNothing", "S5"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace idempotency
