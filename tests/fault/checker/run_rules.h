// What is not about the order of one record's calls: the final table, evidence,
// bodies and isolation.
#ifndef IDEMPOTENCY_TESTS_FAULT_CHECKER_RUN_RULES_H_
#define IDEMPOTENCY_TESTS_FAULT_CHECKER_RUN_RULES_H_

#include "tests/fault/checker/findings.h"
#include "tests/fault/checker/limits.h"
#include "tests/fault/checker/run.h"

namespace idempotency::fault {

// S7, in part: a refused response leaves evidence.
void CheckEvidence(const RecordId& id, const KeyHistory& key,
                   Findings& findings);
// S9, in part: of a response that is short enough nothing is left out.
void CheckOmissions(const RecordId& id, const KeyHistory& key,
                    const Limits& limits, Findings& findings);
// S19
void CheckFinalTable(const RecordId& id, const KeyHistory& key,
                     Findings& findings);
// S13
void CheckIsolation(const Run& run, Findings& findings);

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CHECKER_RUN_RULES_H_
