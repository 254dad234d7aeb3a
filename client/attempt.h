// What the failure of an attempt means for its call. For async_client.cc; not
// installed.
#ifndef IDEMPOTENCY_CLIENT_ATTEMPT_H_
#define IDEMPOTENCY_CLIENT_ATTEMPT_H_

#include "absl/status/status.h"
#include "client/retry.h"

namespace idempotency::internal {

// `writes`: a lost answer leaves something unknown. `received`: the server may
// have received the request. Without the pushback, which is no status.
AttemptFailure FailureOf(const absl::Status& status, bool writes,
                         bool received);

// UNAVAILABLE, with the time to wait that `end` asks for: `end` is a stream's,
// and came before the answer.
absl::Status LostWith(const absl::Status& end);

// What a call is answered with whose last attempt ended with `last`.
absl::Status FinalStatus(const absl::Status& last, const RetryState& retry,
                         RetryVerdict verdict, bool last_may_have_acted);

}  // namespace idempotency::internal

#endif  // IDEMPOTENCY_CLIENT_ATTEMPT_H_
