// The counters themselves: buckets, names with a bound, and what the store and
// the lane count.
#include "server/core/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "server/core/outcome_counts.h"

namespace idempotency {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

inline constexpr std::array<std::uint64_t, 3> kBounds = {1, 10, 100};

TEST(HistogramTest, AValueBelongsToTheFirstBoundThatIsNotBelowIt) {
  Histogram<kBounds> histogram;
  for (const std::uint64_t value : {0, 1, 2, 10, 11, 100, 101, 5000}) {
    histogram.Observe(value);
  }
  const HistogramValues values = histogram.Values();
  EXPECT_THAT(values.counts, ElementsAre(2, 2, 2, 2));
  EXPECT_EQ(values.sum, 5225u);
}

TEST(HistogramTest, TimesThatWentBackCountAsNone) {
  TimeHistogram histogram;
  ObserveTime(histogram, std::chrono::nanoseconds(-5));
  EXPECT_EQ(histogram.Values().counts.front(), 1u);
  EXPECT_EQ(histogram.Values().sum, 0u);
}

TEST(HistogramTest, NothingIsLostBetweenThreads) {
  constexpr std::uint64_t kEach = 10'000;
  Histogram<kBounds> histogram;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (std::uint64_t value = 0; value < kEach; ++value) {
        histogram.Observe(value % 20);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const HistogramValues values = histogram.Values();
  EXPECT_THAT(values.counts, ElementsAre(4000, 18'000, 18'000, 0));
  EXPECT_EQ(values.sum, 4 * kEach * 19 / 2);
}

using Table = NamedTable<Counter, 3>;

std::map<std::string, std::uint64_t> CountsOf(const Table& table) {
  std::map<std::string, std::uint64_t> counts;
  table.ForEach([&](std::string_view name, const Counter& count) {
    EXPECT_TRUE(counts.emplace(name, count).second) << name << " twice";
  });
  return counts;
}

TEST(NamedTableTest, EachNameHasItsOwnEntry) {
  Table table;
  Count(table.At("a"));
  Count(table.At("b"));
  Count(table.At("a"), 2);
  EXPECT_THAT(CountsOf(table), ElementsAre(Pair("a", 3), Pair("b", 1)));
}

TEST(NamedTableTest, NamesBeyondTheBoundAreCountedTogether) {
  Table table;
  for (const char* name : {"a", "b", "c", "d", "e", "d", "a"}) {
    Count(table.At(name));
  }
  EXPECT_THAT(CountsOf(table), ElementsAre(Pair("a", 2), Pair("b", 1),
                                           Pair("c", 1), Pair("other", 3)));
}

TEST(NamedTableTest, ANameThatIsCalledOtherIsNotThereTwice) {
  Table table;
  Count(table.At("other"));
  for (const char* name : {"a", "b", "c", "d"}) Count(table.At(name));
  EXPECT_THAT(CountsOf(table), ElementsAre(Pair("a", 1), Pair("b", 1),
                                           Pair("c", 1), Pair("other", 2)));
}

TEST(NamedTableTest, ThreadsThatMeetANameTogetherShareItsEntry) {
  constexpr int kRounds = 2000;
  Table table;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        for (const char* name : {"a", "b", "c", "d"}) Count(table.At(name));
        table.ForEach([](std::string_view, const Counter&) {});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto counts = CountsOf(table);
  ASSERT_EQ(counts.size(), 4u);
  for (const auto& [name, count] : counts) EXPECT_EQ(count, 4u * kRounds);
}

Record RecordUnder(std::string policy) {
  Record record;
  record.policy.name = std::move(policy);
  return record;
}

TEST(OutcomeCountsTest, AClaimIsCountedUnderThePolicyOfItsRecord) {
  Metrics metrics;
  CountUnwritten(Replay(), RecordUnder("payment"), metrics);
  CountUnwritten(InProgress(), RecordUnder("order"), metrics);
  CountUnwritten(Claimed(), RecordUnder("order"), metrics);
  const auto claims = [&](const char* policy, ClaimResult result) {
    return metrics.policies.At(policy).claims[result].load();
  };
  EXPECT_EQ(claims("payment", ClaimResult::kReplay), 1u);
  EXPECT_EQ(claims("order", ClaimResult::kInProgress), 1u);
  EXPECT_EQ(claims("order", ClaimResult::kClaimedAgain), 1u);
  EXPECT_EQ(claims("order", ClaimResult::kReplay), 0u);
}

TEST(OutcomeCountsTest, OnlyANewGrantIsATakeover) {
  Metrics metrics;
  Record record = RecordUnder("order");
  CountGrant(Grant::kNew, record, metrics);
  record.abandoned = Abandoned{.reason = AbandonReason::kServerError};
  CountGrant(Grant::kNew, record, metrics);
  CountGrant(Grant::kAgain, record, metrics);
  PolicyMetrics& counts = metrics.policies.At("order");
  EXPECT_EQ(counts.claims[ClaimResult::kClaimed], 2u);
  EXPECT_EQ(counts.claims[ClaimResult::kClaimedAgain], 1u);
  EXPECT_EQ(counts.takeovers[AbandonReason::kServerError], 1u);
  EXPECT_EQ(counts.takeovers[AbandonReason::kLeaseLapsed], 0u);
}

TEST(OutcomeCountsTest, ErrorsAreNoOutcomes) {
  Metrics metrics;
  CountFinalize(absl::UnavailableError("away"), metrics);
  CountRelease(absl::UnavailableError("away"), metrics);
  for (const Counter& count : metrics.finalizes.counters) EXPECT_EQ(count, 0u);
  for (const Counter& count : metrics.releases.counters) EXPECT_EQ(count, 0u);
}

}  // namespace
}  // namespace idempotency
