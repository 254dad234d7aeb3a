// What an error of the service says to the caller.
#ifndef IDEMPOTENCY_CLIENT_STATUS_H_
#define IDEMPOTENCY_CLIENT_STATUS_H_

#include <chrono>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace grpc {
class Status;
}
namespace google::rpc {
class Status;
}

namespace idempotency {

// The service's stable reason for an error: "CLAIM_SUPERSEDED",
// "STORE_UNAVAILABLE" and so on, the whole list in the README. Empty for an OK
// status and for errors that the service did not make (no connection, a proxy
// in between). "OUTCOME_UNKNOWN" also stands for the client's own finding: the
// call may have been carried out, and nothing it heard says whether it was.
std::string ErrorReasonOf(const absl::Status& status);

// The same code and message, each field violation of a BadRequest appended to
// the message, and every detail kept as a payload under its type URL
// ("type.googleapis.com/google.rpc.ErrorInfo").
absl::Status ToAbslStatus(const grpc::Status& status);
absl::Status ToAbslStatus(const google::rpc::Status& status);

// google.rpc.RetryInfo, at most a day; nothing where there is none or it is
// negative.
std::optional<std::chrono::nanoseconds> RetryDelayOf(
    const absl::Status& status);

// Whether the service itself said so: any other error may be a proxy's, and
// says nothing about the record.
bool IsServiceError(const absl::Status& status);

// ABORTED, with that RetryInfo: another owner works on the operation.
absl::Status InProgressStatus(std::chrono::nanoseconds retry_after);

// Whether a write that ended with this error may have been carried out.
bool MayHaveActed(const absl::Status& status);

// `status` with the reason OUTCOME_UNKNOWN in place of its own, which the
// message still names.
absl::Status AsOutcomeUnknown(const absl::Status& status);

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_STATUS_H_
