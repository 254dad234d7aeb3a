// What a call is told that the store did not answer.
#ifndef IDEMPOTENCY_SERVER_CORE_CALL_ERRORS_H_
#define IDEMPOTENCY_SERVER_CORE_CALL_ERRORS_H_

#include "absl/status/status.h"
#include "server/core/call.h"

namespace idempotency {

// Ends the call: its Done runs with `error`.
void Answer(Call& call, const absl::Status& error);

bool CallerIsGone(const Call& call);
// May a statement whose answer was lost have carried the call out?
bool IsLost(const Call& call);
// A claim that was told InProgress, which is an answer that holds, and has had
// no statement since that may have granted it.
bool IsWaiter(const Call& call);

absl::Status Unavailable();
absl::Status Draining();
// Of a call whose time is up, by its setback.
absl::Status OutOfTime(const Call& call);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_CALL_ERRORS_H_
