#include "tests/benchmark/latency_histogram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace idempotency::benchmark {
namespace {

using ::testing::AllOf;
using ::testing::DoubleEq;
using ::testing::Ge;
using ::testing::Le;

// A histogram is never below the truth, and at most 0.8 % above it.
auto IsNear(double truth_ms) {
  return AllOf(Ge(truth_ms), Le(truth_ms * 1.008));
}

TEST(LatencyHistogramTest, EmptyHasNoLatency) {
  const LatencyHistogram histogram;
  EXPECT_EQ(histogram.count(), 0u);
  EXPECT_THAT(histogram.QuantileMs(0.99), DoubleEq(0));
}

TEST(LatencyHistogramTest, QuantilesOfOneToTenThousandMicroseconds) {
  LatencyHistogram histogram;
  for (int64_t us = 10'000; us >= 1; --us) histogram.Add(us * 1000);
  EXPECT_EQ(histogram.count(), 10'000u);
  EXPECT_THAT(histogram.QuantileMs(0.0001), IsNear(0.001));
  EXPECT_THAT(histogram.QuantileMs(0.5), IsNear(5));
  EXPECT_THAT(histogram.QuantileMs(0.99), IsNear(9.9));
  EXPECT_THAT(histogram.QuantileMs(1), DoubleEq(10));
}

TEST(LatencyHistogramTest, EveryMagnitudeKeepsItsPrecision) {
  for (int64_t ns = 1; ns < int64_t{1} << 39; ns = ns * 3 + 1) {
    LatencyHistogram histogram;
    histogram.Add(ns);
    histogram.Add(int64_t{1} << 39);
    EXPECT_THAT(histogram.QuantileMs(0.5),
                IsNear(static_cast<double>(ns) / 1e6));
  }
}

TEST(LatencyHistogramTest, TooLargeAndNegativeLatenciesStayInBounds) {
  LatencyHistogram histogram;
  histogram.Add(INT64_MAX);
  histogram.Add(-1);
  EXPECT_EQ(histogram.count(), 2u);
  EXPECT_THAT(histogram.QuantileMs(0.5), DoubleEq(0));
  EXPECT_THAT(histogram.max_ms(), IsNear(1'099'511));
}

}  // namespace
}  // namespace idempotency::benchmark
