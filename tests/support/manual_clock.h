// A replica's clock that moves when the test says so.
#ifndef IDEMPOTENCY_TESTS_SUPPORT_MANUAL_CLOCK_H_
#define IDEMPOTENCY_TESTS_SUPPORT_MANUAL_CLOCK_H_

#include <atomic>
#include <chrono>

#include "server/core/clock.h"

namespace idempotency {

// Thread-safe.
class ManualClock final : public Clock {
 public:
  SteadyTime Now() const override { return SteadyTime(elapsed_.load()); }
  void Advance(SteadyTime::duration by) { elapsed_ = elapsed_.load() + by; }

 private:
  std::atomic<SteadyTime::duration> elapsed_{std::chrono::hours(1)};
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SUPPORT_MANUAL_CLOCK_H_
