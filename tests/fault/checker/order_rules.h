// Is there an order of one record's calls that explains every change of it and
// every answer?
//
// The log gives the order of the changes: state i is the record after i of
// them. Every change has to be made by one operation (or the sweeper). Every
// answer that states a fact has to follow from a state that the record can have
// been in between the call and the answer; the answer to a change goes with a
// change of its own. Of two operations one after the other, the later one never
// sees an earlier state.
//
// That decides it exactly. Answers are taken in their order, and each gets the
// least state that explains it and is not below what was seen by any operation
// that had ended before it began. A lesser choice leaves every later operation
// at least the states that a greater one would.
//
// What ended without a fact may take effect at any time from its call on, also
// after its answer, or never: the log tells.
//
// ORDER stands for what breaks no promise that has a number.
#ifndef IDEMPOTENCY_TESTS_FAULT_CHECKER_ORDER_RULES_H_
#define IDEMPOTENCY_TESTS_FAULT_CHECKER_ORDER_RULES_H_

#include <vector>

#include "tests/fault/checker/findings.h"
#include "tests/fault/checker/run.h"
#include "tests/fault/checker/states.h"

namespace idempotency::fault {

// The log by itself: S1 to S4, S6, S7, S11, S12, S16 to S18.
void CheckLog(const States& states, Findings& findings);

// By the number of the change: whether an answer told of it. The first is that
// of state 0, and true.
using Told = std::vector<bool>;

// Gives every answer a state: S1, S5, S7 to S12, S16, S17.
Told PlaceAnswers(const States& states, Findings& findings);

// Finds who made the changes that no answer told of: S13, S15, S20.
void AttributeChanges(const States& states, const Told& told, const Run& run,
                      Findings& findings);

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CHECKER_ORDER_RULES_H_
