// L1 to L4: once faults have ended, calls end, with a decision and in time.
#ifndef IDEMPOTENCY_TESTS_FAULT_CHECKER_PROGRESS_RULES_H_
#define IDEMPOTENCY_TESTS_FAULT_CHECKER_PROGRESS_RULES_H_

#include <cstdint>
#include <limits>

#include "tests/fault/checker/findings.h"
#include "tests/fault/checker/limits.h"
#include "tests/fault/checker/run.h"
#include "tests/fault/checker/states.h"

namespace idempotency::fault {

// From when on faults have been got over, until only keys that were left
// unfinished are asked for. What is asked then says nothing of the traffic.
struct Settled {
  std::int64_t from = 0;
  std::int64_t until = std::numeric_limits<std::int64_t>::max();

  bool IsBegunIn(const Operation& operation) const {
    return operation.call.t >= from && operation.call.t < until;
  }
};

// L1, L2 of one record, once faults have ended.
void CheckProgress(const States& states, const Limits& limits,
                   const Settled& settled, Findings& findings);
// The same of one that was left unfinished, if it is asked for from `closing`
// on.
void CheckLeftKey(const States& states, const Limits& limits,
                  std::int64_t closing, Findings& findings);
// L4
void CheckGoodput(const Run& run, const Limits& limits, const Settled& settled,
                  Findings& findings);

// L3
void CheckReturns(const Run& run, const Limits& limits, Findings& findings);

// L3, of calls that are begun in `settled`.
class ReturnCheck {
 public:
  ReturnCheck(const Settled& settled, Findings& findings)
      : settled_(settled), findings_(findings) {}

  // Of every record once.
  void Add(const States& states);
  void Finish();

 private:
  void CountSilent(const Operation& operation);
  void CheckWait(const Operation& claim, const States& states);

  const Settled settled_;
  Findings& findings_;
};

// Did it end by its caller's will, or too soon to say anything of the service?
bool SaysNothing(const Operation& operation);

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CHECKER_PROGRESS_RULES_H_
