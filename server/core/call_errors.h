// What a call is told that the store did not answer.
#ifndef IDEMPOTENCY_SERVER_CORE_CALL_ERRORS_H_
#define IDEMPOTENCY_SERVER_CORE_CALL_ERRORS_H_

#include "absl/status/status.h"
#include "server/core/call.h"

namespace idempotency {

// Ends the call: its Done runs with `error`.
void Answer(Call& call, const absl::Status& error);

bool CallerIsGone(const Call& call);

absl::Status Unavailable();
absl::Status Draining();
// Of a call whose time is up, by its setback.
absl::Status OutOfTime(const Call& call);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_CALL_ERRORS_H_
