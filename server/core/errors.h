// The errors the coordinator makes itself, each with the stable reason that
// callers may act on. The reason travels with the status as a payload.
#ifndef IDEMPOTENCY_SERVER_CORE_ERRORS_H_
#define IDEMPOTENCY_SERVER_CORE_ERRORS_H_

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace idempotency {

enum class Reason {
  kInvalidField,
  kUnknownPolicy,
  kPolicyNotAllowed,
  kClaimReleased,
  kClaimSuperseded,
  kAlreadyFinalized,
  kRecordNotFound,
  kStoreUnavailable,
  kOverloaded,
  kDraining,
  kOutcomeUnknown,
  kDeadlineExceeded,
  kRecordCorrupt,
  kInternal,
};

// INVALID_FIELD and so on: the wire's stable name of a reason.
std::string_view ReasonName(Reason reason);

// The one status code that goes with `reason`.
absl::StatusCode CodeOf(Reason reason);

// An error with CodeOf(reason). `message` says what to do and holds no key,
// body, SQL or connection string.
absl::Status MakeError(Reason reason, std::string_view message);

// INVALID_FIELD, naming the field of the request it is about.
absl::Status InvalidField(std::string_view field, std::string_view problem);

// `error`, with the time after which its caller should come back.
absl::Status WithRetryDelay(absl::Status error,
                            std::chrono::milliseconds delay);

// The time that WithRetryDelay() gave `status`, if any.
std::optional<std::chrono::milliseconds> DelayAskedBy(
    const absl::Status& status);

// Was `status` made by MakeError()? Such an error is a decision, final like
// an outcome; any other is something that happened on the way.
bool HasReason(const absl::Status& status);

// Of what happened on the way to the store (store.h): the database did not
// answer, or not to the end, or what answers lacks what a session needs.
bool IsStoreAway(const absl::Status& status);

// The reason that MakeError gave `status`. One that came from elsewhere is
// kDeadlineExceeded or kStoreUnavailable by its code, else kInternal.
Reason ReasonOf(const absl::Status& status);

// The field named by InvalidField(), or empty.
std::string FieldOf(const absl::Status& status);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_ERRORS_H_
