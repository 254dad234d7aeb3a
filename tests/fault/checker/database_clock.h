// Places readings of the database's clock on the monotonic axis of a history.
#ifndef IDEMPOTENCY_TESTS_FAULT_CHECKER_DATABASE_CLOCK_H_
#define IDEMPOTENCY_TESTS_FAULT_CHECKER_DATABASE_CLOCK_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/fault/checker/history.h"

namespace idempotency::fault {

class DatabaseClock {
 public:
  // `readings` in any order. Those that took many times as long as the others
  // are left out. Fails without any: times can then not be compared.
  static absl::StatusOr<DatabaseClock> Make(std::vector<ClockEvent> readings);

  // Both within error().
  absl::Time ToDatabase(std::int64_t monotonic_ns) const;
  std::int64_t ToMonotonic(absl::Time database) const;

  // What the readings leave open: how long the slowest took, and by how much
  // the clocks ran apart between two of them.
  absl::Duration error() const { return absl::Nanoseconds(error_ns_); }
  std::int64_t error_ns() const { return error_ns_; }

 private:
  struct Reading {
    std::int64_t t;
    std::int64_t offset_ns;  // database minus monotonic
  };

  explicit DatabaseClock(std::vector<Reading> readings, std::int64_t error_ns)
      : readings_(std::move(readings)), error_ns_(error_ns) {}

  std::vector<Reading> readings_;
  std::int64_t error_ns_;
};

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CHECKER_DATABASE_CLOCK_H_
