// S14: what was done to the outside world, and by whose leave.
#ifndef IDEMPOTENCY_TESTS_FAULT_CHECKER_EFFECT_RULES_H_
#define IDEMPOTENCY_TESTS_FAULT_CHECKER_EFFECT_RULES_H_

#include "tests/fault/checker/database_clock.h"
#include "tests/fault/checker/findings.h"
#include "tests/fault/checker/run.h"
#include "tests/fault/checker/states.h"

namespace idempotency::fault {

void CheckEffects(const States& states, Findings& findings);

// Callers record a status below 300 only where the wallet had executed.
void CheckRecordedEffects(const RecordId& id, const KeyHistory& key,
                          const DatabaseClock& clock, Findings& findings);

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CHECKER_EFFECT_RULES_H_
