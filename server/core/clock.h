// The replica's own clock. It measures how long things take (queueing,
// deadlines, backoff); it never decides about leases or expiry, which is the
// database clock's business alone.
#ifndef IDEMPOTENCY_SERVER_CORE_CLOCK_H_
#define IDEMPOTENCY_SERVER_CORE_CLOCK_H_

#include <chrono>

namespace idempotency {

using SteadyTime = std::chrono::steady_clock::time_point;

// Thread-safe. Never goes back.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual SteadyTime Now() const = 0;
};

class SystemClock final : public Clock {
 public:
  SteadyTime Now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_CLOCK_H_
