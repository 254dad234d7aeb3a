// Which operation can have made a change, and which state of a record explains
// an answer: decided by core/transitions, nothing of it is repeated here. What
// claims are told has to keep the rules of record_rules.h as well.
#ifndef IDEMPOTENCY_TESTS_FAULT_CHECKER_EXPLAIN_H_
#define IDEMPOTENCY_TESTS_FAULT_CHECKER_EXPLAIN_H_

#include <variant>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/types.h"
#include "tests/fault/checker/history.h"

namespace idempotency::fault {

using Command =
    std::variant<ClaimCommand, FinalizeCommand, LookupCommand, ReleaseCommand>;

// What was asked. Fails on a call that no server would accept: a claim token
// that is none, a hash that is not hexadecimal.
absl::StatusOr<Command> CommandOf(const CallEvent& call);

// The span of the database's clock in which something was decided.
struct Span {
  absl::Time from{};
  absl::Time until{};
};

// A change of a record; `before` is null where there was no row.
struct Step {
  const Record* before = nullptr;
  const Record* after = nullptr;
};

// Can `command`, decided within `span`, have made this change? With `answer`:
// and have been answered so?
bool Makes(const Command& command, const Step& step, const Span& span,
           const AnswerEvent* answer);

// Is `answer`, which goes with no change, what `command` is told when the
// record is `state` at some time within `span`?
bool Answers(const Command& command, const AnswerEvent& answer,
             const Record* state, const Span& span);

// Is it the answer to a change that the call itself made?
bool TellsOfChange(const AnswerEvent& answer);

// The sweeper's own change: parks a held record whose expiry has passed.
bool IsParking(const Step& step, absl::Time at);

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CHECKER_EXPLAIN_H_
