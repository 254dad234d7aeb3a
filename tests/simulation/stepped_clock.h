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

  // Is `fits(begin, end, ahead)` true of one of the stretches between `from`
  // and `until` in which it went without a step?
  template <typename Fits>
  bool AnyStretch(SteadyTime from, SteadyTime until, const Fits& fits) const {
    bool any = false;
    ForEachStretch(from, until,
                   [&](SteadyTime begin, SteadyTime end, Microseconds ahead) {
                     any = any || fits(begin, end, ahead);
                   });
    return any;
  }

  // The earliest and the latest that it showed from then until now.
  absl::Time Earliest(SteadyTime since) const {
    absl::Time earliest = Now();
    ForEachStretch(since, steady_.Now(),
                   [&](SteadyTime from, SteadyTime, Microseconds ahead) {
                     earliest = std::min(earliest, Reading(from, ahead));
                   });
    return earliest;
  }
  absl::Time Latest(SteadyTime since) const {
    absl::Time latest = Now();
    ForEachStretch(since, steady_.Now(),
                   [&](SteadyTime, SteadyTime until, Microseconds ahead) {
                     latest = std::max(latest, Reading(until, ahead));
                   });
    return latest;
  }
  bool SteppedForward(SteadyTime since) const {
    return AnyStep(since, [](Microseconds by) { return by.count() > 0; });
  }
  bool SteppedBack(SteadyTime since) const {
    return AnyStep(since, [](Microseconds by) { return by.count() < 0; });
  }

 private:
  struct Stretch {
    SteadyTime since;
    Microseconds ahead;
  };

  // The last one comes first.
  template <typename Visit>
  void ForEachStretch(SteadyTime from, SteadyTime until,
                      const Visit& visit) const {
    SteadyTime end = until;
    for (std::size_t i = stretches_.size(); i-- > 0;) {
      const SteadyTime begin = std::max(stretches_[i].since, from);
      if (begin <= end) visit(begin, end, stretches_[i].ahead);
      if (stretches_[i].since < from) break;
      end = std::min(end, stretches_[i].since);
    }
  }

  template <typename Fits>
  bool AnyStep(SteadyTime since, const Fits& fits) const {
    for (std::size_t i = stretches_.size(); --i > 0;) {
      if (stretches_[i].since < since) break;
      if (fits(stretches_[i].ahead - stretches_[i - 1].ahead)) return true;
    }
    return false;
  }

  const Clock& steady_;
  std::vector<Stretch> stretches_{{SteadyTime::min(), Microseconds(0)}};
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_STEPPED_CLOCK_H_
