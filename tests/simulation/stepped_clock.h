// The database's clock: it goes as simulated time does, and is set forward and
// back.
#ifndef IDEMPOTENCY_TESTS_SIMULATION_STEPPED_CLOCK_H_
#define IDEMPOTENCY_TESTS_SIMULATION_STEPPED_CLOCK_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include "absl/time/time.h"
#include "server/core/clock.h"

namespace idempotency {

// Remembers every step. Not thread-safe.
class SteppedClock {
 public:
  using Microseconds = std::chrono::microseconds;

  // `steady` must outlive it.
  explicit SteppedClock(const Clock& steady) : steady_(steady) {}

  absl::Time Now() const { return Reading(steady_.Now(), ahead()); }
  SteadyTime steady_now() const { return steady_.Now(); }
  // How far ahead it is of where it would be without steps.
  Microseconds ahead() const { return stretches_.back().ahead; }
  void SetAhead(Microseconds ahead) {
    stretches_.push_back({steady_.Now(), ahead});
  }

  // What a clock so far ahead shows at that time.
  static absl::Time Reading(SteadyTime at, Microseconds ahead) {
    constexpr std::chrono::seconds kStart{1'800'000'000};  // some day in 2027
    return absl::FromUnixMicros(std::chrono::duration_cast<Microseconds>(
                                    at.time_since_epoch() + kStart + ahead)
                                    .count());
  }

  // Is `visit(begin, end, ahead)` true of one of the stretches between `from`
  // and `until` in which it went without a step? The last one comes first.
  template <typename Visit>
  bool AnyStretch(SteadyTime from, SteadyTime until, const Visit& visit) const {
    SteadyTime end = until;
    for (std::size_t i = stretches_.size(); i-- > 0;) {
      const SteadyTime begin = std::max(stretches_[i].since, from);
      if (begin <= end && visit(begin, end, stretches_[i].ahead)) return true;
      if (stretches_[i].since < from) break;
      end = std::min(end, stretches_[i].since);
    }
    return false;
  }

  // The earliest and the latest that it showed from then until now.
  absl::Time Earliest(SteadyTime since) const {
    absl::Time earliest = Now();
    AnyStretch(since, steady_.Now(),
               [&](SteadyTime from, SteadyTime, Microseconds ahead) {
                 earliest = std::min(earliest, Reading(from, ahead));
                 return false;
               });
    return earliest;
  }
  absl::Time Latest(SteadyTime since) const {
    absl::Time latest = Now();
    AnyStretch(since, steady_.Now(),
               [&](SteadyTime, SteadyTime until, Microseconds ahead) {
                 latest = std::max(latest, Reading(until, ahead));
                 return false;
               });
    return latest;
  }
  bool SteppedForward(SteadyTime since) const {
    for (std::size_t i = stretches_.size(); --i > 0;) {
      if (stretches_[i].since < since) break;
      if (stretches_[i].ahead > stretches_[i - 1].ahead) return true;
    }
    return false;
  }

 private:
  struct Stretch {
    SteadyTime since;
    Microseconds ahead;
  };

  const Clock& steady_;
  std::vector<Stretch> stretches_{{SteadyTime::min(), Microseconds(0)}};
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_STEPPED_CLOCK_H_
