// Places readings of the database's clock on the monotonic axis of a history.
#ifndef IDEMPOTENCY_TESTS_FAULT_CHECKER_DATABASE_CLOCK_H_
#define IDEMPOTENCY_TESTS_FAULT_CHECKER_DATABASE_CLOCK_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/fault/checker/history.h"

namespace idempotency::fault {

// Between two readings the clock is taken to run with the monotonic one, but
// for what it was set by: a step makes only the times between the readings
// around it uncertain. One forth and back between two readings is not seen.
class DatabaseClock {
 public:
  struct Bounds {
    absl::Time earliest{};
    absl::Time latest{};
  };

  // `readings` in any order. Those that took many times as long as the others
  // are left out. Fails without any: times can then not be compared.
  static absl::StatusOr<DatabaseClock> Make(std::vector<ClockEvent> readings);

  // What it can have shown from `from` to `until`.
  Bounds Between(std::int64_t from, std::int64_t until) const;
  Bounds At(std::int64_t t) const { return Between(t, t); }
  // By how much it was ahead at most more than at least, as it is placed.
  absl::Duration VariationBetween(std::int64_t from, std::int64_t until) const;

  // When it showed `time`, if it did: not before FirstAt(), not after LastAt().
  std::int64_t FirstAt(absl::Time time) const;
  std::int64_t LastAt(absl::Time time) const;

  // Within that times are placed: those of nine tenths of the time that the
  // readings span, and all of them.
  absl::Duration error() const { return error_; }
  absl::Duration greatest_error() const { return greatest_error_; }

 private:
  // From one reading to the next. The first also stands for all time before
  // it, the last for all after it.
  struct Segment {
    std::int64_t begin;  // monotonic
    std::int64_t end;
    std::int64_t low;  // the database's clock minus the monotonic one
    std::int64_t high;
    // Of the database's clock, over all segments up to this, and from this on.
    std::int64_t latest_so_far;
    std::int64_t earliest_from_here;
  };

  explicit DatabaseClock(std::vector<Segment> segments);

  std::size_t IndexAt(std::int64_t t) const;

  std::vector<Segment> segments_;
  absl::Duration error_;
  absl::Duration greatest_error_;
};

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CHECKER_DATABASE_CLOCK_H_
