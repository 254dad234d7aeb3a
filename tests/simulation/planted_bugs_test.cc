// Many small worlds of callers that execute operations once, each decided by a
// seed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <map>
#include <string>

#include "tests/unit/once_world.h"
#include "tests/unit/simulation_seeds.h"

namespace idempotency {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;

// ThreadSanitizer is twenty times slower, and there is one thread.
#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSeeds = 300;
#else
constexpr std::uint64_t kSeeds = 3'000;
#endif
// A planted bug shows long before.
constexpr std::uint64_t kSeedsForABug = 2000;

TEST(OnceSimulationTest, EveryPromiseHoldsUnderEverySeed) {
  const SeedRange seeds = SeedsToRun(kSeeds);
  std::map<std::string, int> events;
  for (std::uint64_t seed = seeds.first; seed <= seeds.last; ++seed) {
    OnceWorld world(seed, OnceBug::kNone);
    world.Run();
    ASSERT_THAT(world.violations(), IsEmpty()) << "IDEMPOTENCY_SEED=" << seed;
    for (const auto& [event, count] : world.events()) events[event] += count;
  }
  for (const auto& [event, count] : events) {
    std::cout << "  " << count << " " << event << "\n";
  }
  if (seeds.repeats_one) return;
  // Nothing that can happen was left out.
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
                            "renewed",
                            "not renewed",
                            "withdrawn",
                            "finalize refused",
                            "checkpoint stored",
                            "checkpoint lost",
                            "DISPOSITION_NOT_EXECUTED",
                            "DISPOSITION_OUTCOME_UNKNOWN"}) {
    EXPECT_GT(events[event], 0) << event;
  }
}

TEST(OnceSimulationTest, ASeedDecidesEverything) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    OnceWorld one(seed, OnceBug::kNone);
    OnceWorld two(seed, OnceBug::kNone);
    one.Run();
    two.Run();
    EXPECT_EQ(one.events(), two.events());
  }
}

struct BugCase {
  OnceBug bug;
  const char* name;
  // One of the promises that it breaks.
  const char* promise;
};

class PlantedOnceBugTest : public ::testing::TestWithParam<BugCase> {};

TEST_P(PlantedOnceBugTest, IsNoticed) {
  const auto broken =
      BrokenPromises(GetParam().promise, kSeedsForABug, [](std::uint64_t seed) {
        OnceWorld world(seed, GetParam().bug);
        world.Run();
        return world.violations();
      });
  EXPECT_THAT(broken, Contains(GetParam().promise));
}

INSTANTIATE_TEST_SUITE_P(
    Bugs, PlantedOnceBugTest,
    ::testing::Values(BugCase{OnceBug::kPermissionFromTheAnswer,
                              "PermissionFromTheAnswer", "permission"},
                      BugCase{OnceBug::kOwnResponseAfterARefusal,
                              "OwnResponseAfterARefusal", "recorded"},
                      BugCase{OnceBug::kHangUpSaysNeverExecuted,
                              "HangUpSaysNeverExecuted", "charged-twice"},
                      BugCase{OnceBug::kThrowSaysNotExecuted,
                              "ThrowSaysNotExecuted", "charged-twice"},
                      BugCase{OnceBug::kResolverSkipped, "ResolverSkipped",
                              "charged-knowingly"},
                      BugCase{OnceBug::kFunctionStartsUnasked,
                              "FunctionStartsUnasked", "permission"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace idempotency
