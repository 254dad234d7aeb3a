#include "tests/fault/checker/database_clock.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <utility>

namespace idempotency::fault {
namespace {

// What the resolution of the two clocks leaves open in any case.
constexpr std::int64_t kLeastErrorNs = 1'000'000;
constexpr std::int64_t kSlowReading = 10;

}  // namespace

absl::StatusOr<DatabaseClock> DatabaseClock::Make(
    std::vector<ClockEvent> events) {
  if (events.empty()) {
    return absl::FailedPreconditionError(
        "no clock events: the times of the database cannot be placed");
  }
  std::sort(events.begin(), events.end(),
            [](const ClockEvent& a, const ClockEvent& b) {
              return a.error_ns < b.error_ns;
            });
  const std::int64_t usual = events[events.size() / 2].error_ns;
  std::int64_t error_ns = 0;
  std::vector<Reading> readings;
  for (const ClockEvent& event : events) {
    if (event.error_ns > std::max(kLeastErrorNs, usual * kSlowReading)) break;
    error_ns = event.error_ns;
    readings.push_back({event.t, event.database_us * 1000 - event.t});
  }
  std::sort(readings.begin(), readings.end(),
            [](const Reading& a, const Reading& b) { return a.t < b.t; });
  std::int64_t apart = 0;
  for (std::size_t i = 1; i < readings.size(); ++i) {
    apart = std::max(
        apart, std::abs(readings[i].offset_ns - readings[i - 1].offset_ns));
  }
  return DatabaseClock(std::move(readings), kLeastErrorNs + error_ns + apart);
}

absl::Time DatabaseClock::ToDatabase(std::int64_t monotonic_ns) const {
  const auto after = std::partition_point(
      readings_.begin() + 1, readings_.end(),
      [&](const Reading& reading) { return reading.t <= monotonic_ns; });
  return absl::FromUnixNanos(monotonic_ns + (after - 1)->offset_ns);
}

std::int64_t DatabaseClock::ToMonotonic(absl::Time database) const {
  const std::int64_t ns = absl::ToUnixNanos(database);
  const auto after = std::partition_point(
      readings_.begin() + 1, readings_.end(), [&](const Reading& reading) {
        return reading.t + reading.offset_ns <= ns;
      });
  return ns - (after - 1)->offset_ns;
}

}  // namespace idempotency::fault
