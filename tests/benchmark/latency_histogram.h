// Latencies in a fixed amount of memory, each known to within 0.8 %.
#ifndef TESTS_BENCHMARK_LATENCY_HISTOGRAM_H_
#define TESTS_BENCHMARK_LATENCY_HISTOGRAM_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace idempotency::benchmark {

// Each power of two is cut into 128 equal buckets. Not thread-safe.
class LatencyHistogram {
 public:
  void Add(int64_t nanoseconds) {
    const uint64_t value = static_cast<uint64_t>(
        std::max<int64_t>(0, std::min<int64_t>(nanoseconds, kNanosecondsMax)));
    ++buckets_[BucketOf(value)];
    ++count_;
    max_ = std::max(max_, value);
  }

  uint64_t count() const { return count_; }
  double max_ms() const { return static_cast<double>(max_) / 1e6; }

  // The latency that `quantile` (0 to 1) of the calls did not exceed; 0 when
  // there were none.
  double QuantileMs(double quantile) const {
    const auto rank = static_cast<uint64_t>(
        std::ceil(quantile * static_cast<double>(count_)));
    uint64_t seen = 0;
    for (size_t i = 0; i < buckets_.size(); ++i) {
      seen += buckets_[i];
      if (seen >= rank && seen > 0) {
        return static_cast<double>(std::min(UpperEdge(i), max_)) / 1e6;
      }
    }
    return 0;
  }

 private:
  static constexpr int kBits = 7;
  static constexpr uint64_t kSubBuckets = 1 << kBits;
  static constexpr int64_t kNanosecondsMax = (int64_t{1} << 40) - 1;

  static size_t BucketOf(uint64_t value) {
    if (value < kSubBuckets) return value;
    const int shift = std::bit_width(value) - kBits - 1;
    return static_cast<size_t>(shift) * kSubBuckets + (value >> shift);
  }

  static uint64_t UpperEdge(size_t bucket) {
    if (bucket < 2 * kSubBuckets) return bucket;
    const int shift = static_cast<int>(bucket / kSubBuckets) - 1;
    const uint64_t top = bucket % kSubBuckets + kSubBuckets;
    return ((top + 1) << shift) - 1;
  }

  std::array<uint64_t, (40 - kBits + 1) * kSubBuckets> buckets_{};
  uint64_t count_ = 0;
  uint64_t max_ = 0;
};

}  // namespace idempotency::benchmark

#endif  // TESTS_BENCHMARK_LATENCY_HISTOGRAM_H_
