// The engine's outcomes as the wire's answers.
//
// Expiry "never" is an unset field. Headers that can't be read back are
// RECORD_CORRUPT, and then `out` means nothing.
#ifndef IDEMPOTENCY_SERVER_RPC_CONVERSION_H_
#define IDEMPOTENCY_SERVER_RPC_CONVERSION_H_

#include "absl/status/status.h"
#include "idempotency/v1/idempotency.pb.h"
#include "server/core/types.h"
#include "server/core/uuid.h"

namespace idempotency {

// What an answer needs beside the outcome.
struct AnswerContext {
  RecordId id{};
  Uuid downstream_namespace{};
  double random = 0;  // fresh, evenly from 0 to 1: spreads retry_after
};

absl::Status ToProto(ClaimOutcome outcome, const AnswerContext& context,
                     v1::ClaimResponse& out);
absl::Status ToProto(LookupOutcome outcome, const AnswerContext& context,
                     v1::LookupResponse& out);
void ToProto(const FinalizeOutcome& outcome, v1::FinalizeResponse& out);
void ToProto(const ReleaseOutcome& outcome, v1::ReleaseResponse& out);

// When to ask again for a key whose owner has `lease_left`: about 1 s, spread
// by `random` so that many callers do not come back together; more than zero
// and at most `lease_left`.
absl::Duration RetryAfter(absl::Duration lease_left, double random);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_CONVERSION_H_
