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

#include "absl/status/status.h"
#include "tests/fault/checker/findings.h"
#include "tests/fault/checker/limits.h"
#include "tests/fault/checker/run.h"

namespace idempotency::fault {

// Fails where the check could not be made to its end: no clock, no time.
absl::Status Check(const Run& run, const Limits& limits, Findings& findings);

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CHECKER_CHECK_H_
