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
  for (const auto* kind : {&counts.answers, &counts.events, &counts.faults}) {
    for (const auto& [name, count] : *kind) {
      std::cout << "  " << count << " " << name << "\n";
    }
  }
}

}  // namespace
}  // namespace idempotency
