// The whole check of a run.
//
// Which promise is judged from what:
//   S1 to S12, S15, S16, S18  answers and the log of changes
//   DEFECT  an answer that no state of a record allows: INTERNAL or
//        RECORD_CORRUPT
//   S13  claim tokens and downstream keys of one record that turn up at another
//   S14  the wallet's effects, and what claims were told before
//   S17  the order of answers along the log; a log with a gap
//   S19  the final table against the log and against acknowledged Finalizes
//   S20  an answer DEADLINE_EXCEEDED with its reason says that the database
//        never saw the call: then the log must not either. That nothing is
//        sent late whose caller got no answer cannot be seen from here; the
//        unit tests of the lane do that.
//   L1   a claim of each key that callers left unfinished, asked for at the
//        end: it has to be decided in time. And claims of an abandoned record,
//        after the last fault: not three in a row over some time that end
//        without a decision
//   L2   likewise: a Lookup of each key left unfinished, and calls of one
//        record
//   L3   calls that end after their deadline, or never while their caller
//        lived; of commands on a stream only the unit tests can tell. After the
//        last fault, as shares: claims that did not wait, that waited longer
//        than they had asked, or waited on when the owner had ended, and calls
//        without an answer of the server's
//   L4   calls after the last fault: so many must end with a decision
// Keys left unfinished need a note of `closing`, and calls from then on count
// for them alone. All else of L1, L2 and L4, and the shares of L3, need a note
// of the end of a fault, and leave out calls with hardly any deadline or that
// their caller cancelled.
#ifndef IDEMPOTENCY_TESTS_FAULT_CHECKER_CHECK_H_
#define IDEMPOTENCY_TESTS_FAULT_CHECKER_CHECK_H_

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/fault/checker/database_clock.h"
#include "tests/fault/checker/findings.h"
#include "tests/fault/checker/run.h"
#include "tests/fault/checker/states.h"

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

// Fails where the check could not be made to its end: no clock, no time.
absl::Status Check(const Run& run, const Limits& limits, Findings& findings);

// ---- Its parts.

// From when on faults have been got over, until only keys that were left
// unfinished are asked for. What is asked then says nothing of the traffic.
struct Settled {
  std::int64_t from = 0;
  std::int64_t until = std::numeric_limits<std::int64_t>::max();

  bool IsBegunIn(const Operation& operation) const {
    return operation.call.t >= from && operation.call.t < until;
  }
};

// S7, in part: a refused response leaves evidence.
void CheckEvidence(const RecordId& id, const KeyHistory& key,
                   Findings& findings);
// S9, in part: of a response that is short enough nothing is left out.
void CheckOmissions(const RecordId& id, const KeyHistory& key,
                    const Limits& limits, Findings& findings);
// S14, in part: callers record a status below 300 only where the wallet had
// executed.
void CheckRecordedEffects(const RecordId& id, const KeyHistory& key,
                          const DatabaseClock& clock, Findings& findings);
void CheckFinalTable(const RecordId& id, const KeyHistory& key,
                     Findings& findings);
void CheckIsolation(const Run& run, Findings& findings);
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

#endif  // IDEMPOTENCY_TESTS_FAULT_CHECKER_CHECK_H_
