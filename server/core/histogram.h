// A histogram whose observation costs two additions.
#ifndef IDEMPOTENCY_SERVER_CORE_HISTOGRAM_H_
#define IDEMPOTENCY_SERVER_CORE_HISTOGRAM_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace idempotency {

// What was observed so far.
struct HistogramValues {
  // How many observations each bucket got by itself: at most its bound and
  // above the one before. The last is for those above every bound.
  std::vector<std::uint64_t> counts{};
  std::uint64_t sum = 0;  // of the observed values
};

// Counts whole numbers by `kBounds`, an ascending std::array: a value belongs
// to the first bound that is not below it. Thread-safe. A reader sees each
// bucket's latest value, not one moment of all of them.
template <const auto& kBounds>
class Histogram {
 public:
  void Observe(std::uint64_t value) {
    const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), value);
    const auto bucket = static_cast<std::size_t>(bound - kBounds.begin());
    counts_[bucket].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
  }

  HistogramValues Values() const {
    HistogramValues values;
    values.counts.assign(counts_.begin(), counts_.end());
    values.sum = sum_;
    return values;
  }

 private:
  std::array<std::atomic<std::uint64_t>, kBounds.size() + 1> counts_{};
  std::atomic<std::uint64_t> sum_{0};
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_HISTOGRAM_H_
