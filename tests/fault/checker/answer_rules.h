// What the callers of one record may never be told, whatever core/transitions
// says: S1 to S4, S6, S8 and S11; and what they are told beyond the record, in
// part of S3, S5 and S7.
#ifndef IDEMPOTENCY_TESTS_FAULT_CHECKER_ANSWER_RULES_H_
#define IDEMPOTENCY_TESTS_FAULT_CHECKER_ANSWER_RULES_H_

#include "tests/fault/checker/database_clock.h"
#include "tests/fault/checker/findings.h"
#include "tests/fault/checker/run.h"

namespace idempotency::fault {

void CheckAnswers(const RecordId& id, const KeyHistory& key,
                  const DatabaseClock& clock, Findings& findings);

void CheckTold(const RecordId& id, const KeyHistory& key,
               const DatabaseClock& clock, Findings& findings);

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CHECKER_ANSWER_RULES_H_
