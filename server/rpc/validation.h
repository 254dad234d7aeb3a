// The limits of limits.h, checked on the wire's messages before anything else
// sees them. What comes out can be put into a batch with others: no value in
// it can make a statement fail.
//
// A refusal is INVALID_FIELD and names one field: the first bad one in the
// order of the message's field numbers. It says what is wrong and what is
// wanted, never the value. Strings are UTF-8 because protobuf's parser
// refuses a message whose strings are not.
#ifndef IDEMPOTENCY_SERVER_RPC_VALIDATION_H_
#define IDEMPOTENCY_SERVER_RPC_VALIDATION_H_

#include <chrono>
#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "idempotency/v1/idempotency.pb.h"
#include "server/core/types.h"

namespace idempotency {

absl::StatusOr<ClaimCommand> ValidateClaim(const v1::ClaimRequest& request);

// How long the call may wait for another owner, at most kWaitMax; zero when
// it does not say. REQUIRES: ValidateClaim() accepted `request`.
absl::Duration WaitOf(const v1::ClaimRequest& request);

// A body longer than `body_bytes_max` and headers over their limit are left
// out of the command and marked so; its digest is of the response as sent.
absl::StatusOr<FinalizeCommand> ValidateFinalize(
    const v1::FinalizeRequest& request, std::size_t body_bytes_max);

absl::StatusOr<LookupCommand> ValidateLookup(const v1::LookupRequest& request);

absl::StatusOr<ReleaseCommand> ValidateRelease(
    const v1::ReleaseRequest& request);

// How long the caller waits for the command's result; the longest time there
// is where it does not say.
absl::StatusOr<std::chrono::nanoseconds> ValidateTimeout(
    const v1::Command& command);

// The refusal of a message that is none.
absl::Status UnparsableMessage();

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_VALIDATION_H_
