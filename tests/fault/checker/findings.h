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
  std::int64_t keys = 0;
  std::int64_t unknown = 0;
  std::int64_t changes = 0;
  std::int64_t effects = 0;
  // Somebody acted while another owner had the grant already.
  std::int64_t overlapping_owners = 0;
  // A change by an operation that had been answered before, or that had been
  // answered with something else: a copy of its request was late.
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
