// What a check of histories has found so far.
#ifndef IDEMPOTENCY_TESTS_FAULT_CHECKER_FINDINGS_H_
#define IDEMPOTENCY_TESTS_FAULT_CHECKER_FINDINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "server/core/types.h"

namespace idempotency::fault {

struct Violation {
  std::string number{};  // S7; ORDER for what no order of the calls explains
  RecordId id{};         // empty where it is about the whole run
  std::string what{};    // with the operations
};

struct Counts {
  std::int64_t operations = 0;
  std::int64_t decided = 0;  // of them
  std::int64_t grants = 0;   // claims that were told Claimed
  std::int64_t finals = 0;   // changes to a recorded response
  // Decided calls that began when the faults had been got over.
  std::int64_t after_faults = 0;
  // Of unary calls from then on: all; those that ended without an answer of the
  // server's.
  std::int64_t settled = 0;
  std::int64_t silent = 0;
  // Of claims from then on that were to wait: told InProgress; of them before
  // the wait was over, long after that, and long after the owner had ended.
  // Told something else after a while.
  std::int64_t waits = 0;
  std::int64_t cut_short = 0;
  std::int64_t overlong = 0;
  std::int64_t overslept = 0;
  std::int64_t woken = 0;
  // Keys that callers left unfinished, and how many of all were asked for.
  std::int64_t left = 0;
  std::int64_t left_asked = 0;
  // Of nine tenths of the run's time, and of all.
  std::int64_t clock_error_ms = 0;
  std::int64_t clock_error_max_ms = 0;
  std::int64_t keys = 0;
  std::int64_t unknown = 0;
  std::int64_t changes = 0;
  std::int64_t effects = 0;
  // Somebody acted while another owner had the grant already.
  std::int64_t overlapping_owners = 0;
  // A change by an operation beside the one that it was told of: its request
  // came twice, or the server tried it again.
  std::int64_t late_changes = 0;
  // Answered INTERNAL or DATA_LOSS: a defect, whatever the state.
  std::int64_t defects = 0;
};

// Not thread-safe.
class Findings {
 public:
  void Violate(std::string number, const RecordId& id, std::string what) {
    violations_.push_back({std::move(number), id, std::move(what)});
  }

  const std::vector<Violation>& violations() const { return violations_; }
  Counts counts{};

 private:
  std::vector<Violation> violations_{};
};

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CHECKER_FINDINGS_H_
