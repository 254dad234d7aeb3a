// How long things may take, and how much may go wrong.
#ifndef IDEMPOTENCY_TESTS_FAULT_CHECKER_LIMITS_H_
#define IDEMPOTENCY_TESTS_FAULT_CHECKER_LIMITS_H_

#include <cstdint>

#include "absl/time/time.h"

namespace idempotency::fault {

struct Limits {
  // For the whole check.
  absl::Duration budget = absl::Seconds(60);
  // A call may end so much after its deadline.
  absl::Duration late = absl::Milliseconds(100);
  // So long after the end of the last fault everything is as before.
  absl::Duration settle = absl::Seconds(5);
  // A record's calls may fail for so long after that.
  absl::Duration patience = absl::Seconds(2);
  // By then a key that was left unfinished has to be had: after it was asked
  // for, or its lease was over.
  absl::Duration left_patience = absl::Seconds(5);
  // Of the calls begun after `settle`.
  double decided_share = 0.99;
  // The callers record a status below 300 only where the wallet had executed.
  bool success_needs_effect = true;
  // What the servers keep of a body.
  std::int64_t body_bytes_max = 10'000;
};

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CHECKER_LIMITS_H_
