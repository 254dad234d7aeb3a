#include "tests/fault/checker/database_clock.h"

#include <algorithm>
#include <limits>

namespace idempotency::fault {
namespace {

// What the resolution of the two clocks leaves open in any case.
constexpr std::int64_t kLeastErrorNs = 1'000'000;
constexpr std::int64_t kSlowReading = 10;
constexpr double kMost = 0.9;

// Those that took no longer than usual, in the order of time.
std::vector<ClockEvent> UsualOnes(std::vector<ClockEvent> readings) {
  std::sort(readings.begin(), readings.end(),
            [](const ClockEvent& a, const ClockEvent& b) {
              return a.error_ns < b.error_ns;
            });
  const std::int64_t usual = readings[readings.size() / 2].error_ns;
  const std::int64_t most = std::max(kLeastErrorNs, usual * kSlowReading);
  std::erase_if(readings, [&](const ClockEvent& reading) {
    return reading.error_ns > most;
  });
  std::sort(readings.begin(), readings.end(),
            [](const ClockEvent& a, const ClockEvent& b) { return a.t < b.t; });
  return readings;
}

std::int64_t OffsetOf(const ClockEvent& reading) {
  return reading.database_us * 1000 - reading.t;
}

}  // namespace

absl::StatusOr<DatabaseClock> DatabaseClock::Make(
    std::vector<ClockEvent> events) {
  if (events.empty()) {
    return absl::FailedPreconditionError(
        "no clock events: the times of the database cannot be placed");
  }
  const std::vector<ClockEvent> readings = UsualOnes(std::move(events));
  std::vector<Segment> segments;
  for (std::size_t i = 0; i < std::max<std::size_t>(readings.size() - 1, 1);
       ++i) {
    const ClockEvent& first = readings[i];
    const ClockEvent& second = readings[std::min(i + 1, readings.size() - 1)];
    const std::int64_t error =
        kLeastErrorNs + std::max(first.error_ns, second.error_ns);
    const auto [low, high] = std::minmax({OffsetOf(first), OffsetOf(second)});
    segments.push_back({.begin = first.t,
                        .end = second.t,
                        .low = low - error,
                        .high = high + error,
                        .latest_so_far = 0,
                        .earliest_from_here = 0});
  }
  return DatabaseClock(std::move(segments));
}

DatabaseClock::DatabaseClock(std::vector<Segment> segments)
    : segments_(std::move(segments)) {
  std::int64_t latest = segments_.front().begin + segments_.front().low;
  std::vector<std::pair<std::int64_t, std::int64_t>> errors;  // with how long
  std::int64_t whole = 0;
  for (Segment& segment : segments_) {
    latest = std::max(latest, segment.end + segment.high);
    segment.latest_so_far = latest;
    errors.emplace_back((segment.high - segment.low) / 2,
                        segment.end - segment.begin);
    whole += segment.end - segment.begin;
  }
  std::int64_t earliest = segments_.back().end + segments_.back().high;
  for (auto segment = segments_.rbegin(); segment != segments_.rend();
       ++segment) {
    earliest = std::min(earliest, segment->begin + segment->low);
    segment->earliest_from_here = earliest;
  }
  std::sort(errors.begin(), errors.end());
  greatest_error_ = absl::Nanoseconds(errors.back().first);
  error_ = greatest_error_;
  std::int64_t covered = 0;
  for (const auto& [error, length] : errors) {
    covered += length;
    if (static_cast<double>(covered) < kMost * static_cast<double>(whole)) {
      continue;
    }
    error_ = absl::Nanoseconds(error);
    break;
  }
}

std::size_t DatabaseClock::IndexAt(std::int64_t t) const {
  const auto after = std::partition_point(
      segments_.begin() + 1, segments_.end(),
      [&](const Segment& segment) { return segment.begin <= t; });
  return static_cast<std::size_t>(after - segments_.begin()) - 1;
}

DatabaseClock::Bounds DatabaseClock::Between(std::int64_t from,
                                             std::int64_t until) const {
  const std::size_t first = IndexAt(from);
  const std::size_t last = IndexAt(std::max(from, until));
  std::int64_t earliest = from + segments_[first].low;
  std::int64_t latest = until + segments_[last].high;
  for (std::size_t i = first; i < last; ++i) {
    latest = std::max(latest, segments_[i].end + segments_[i].high);
    earliest =
        std::min(earliest, segments_[i + 1].begin + segments_[i + 1].low);
  }
  return {absl::FromUnixNanos(earliest), absl::FromUnixNanos(latest)};
}

absl::Duration DatabaseClock::VariationBetween(std::int64_t from,
                                               std::int64_t until) const {
  const std::size_t last = IndexAt(std::max(from, until));
  std::int64_t low = std::numeric_limits<std::int64_t>::max();
  std::int64_t high = std::numeric_limits<std::int64_t>::min();
  for (std::size_t i = IndexAt(from); i <= last; ++i) {
    low = std::min(low, segments_[i].low);
    high = std::max(high, segments_[i].high);
  }
  return absl::Nanoseconds(high - low);
}

std::int64_t DatabaseClock::FirstAt(absl::Time time) const {
  const std::int64_t ns = absl::ToUnixNanos(time);
  const auto found = std::partition_point(
      segments_.begin(), segments_.end() - 1,
      [&](const Segment& segment) { return segment.latest_so_far < ns; });
  const std::int64_t t = ns - found->high;
  // A step forward may have passed over it.
  return found == segments_.begin() ? t : std::max(t, found->begin);
}

std::int64_t DatabaseClock::LastAt(absl::Time time) const {
  const std::int64_t ns = absl::ToUnixNanos(time);
  const auto after = std::partition_point(
      segments_.begin() + 1, segments_.end(),
      [&](const Segment& segment) { return segment.earliest_from_here <= ns; });
  const std::int64_t t = ns - (after - 1)->low;
  return after == segments_.end() ? t : std::min(t, (after - 1)->end);
}

}  // namespace idempotency::fault
