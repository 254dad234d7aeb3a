#include "client/grpc/call_status.h"

#include <google/protobuf/any.pb.h>

#include "absl/strings/cord.h"
#include "client/status.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace idempotency {
namespace {

using grpc::StatusCode;

constexpr char kDomain[] = "idempotency.v1";

grpc::Status Pack(const google::rpc::Status& status) {
  return {static_cast<StatusCode>(status.code()), status.message(),
          status.details().empty() ? "" : status.SerializeAsString()};
}

google::rpc::Status WithDetails(StatusCode code, const absl::Status& status) {
  google::rpc::Status packed;
  packed.set_code(code);
  const auto message = status.message();
  packed.set_message(message.data(), message.size());
  status.ForEachPayload([&](auto url, const absl::Cord& payload) {
    google::protobuf::Any* const detail = packed.add_details();
    detail->set_type_url(url.data(), url.size());
    detail->set_value(std::string(payload));
  });
  return packed;
}

// The status under another code, with that reason unless it has one.
grpc::Status As(StatusCode code, const std::string& reason,
                const absl::Status& status) {
  google::rpc::Status packed = WithDetails(code, status);
  if (!IsServiceError(status)) {
    google::rpc::ErrorInfo info;
    info.set_domain(kDomain);
    info.set_reason(reason);
    packed.add_details()->PackFrom(info);
  }
  return Pack(packed);
}

}  // namespace

grpc::Status CallStatus(StatusCode code, const std::string& reason,
                        const std::string& message) {
  return As(code, reason, absl::UnknownError(message));
}

grpc::Status ToGrpcError(const absl::Status& status) {
  return Pack(WithDetails(status.ok() ? StatusCode::UNKNOWN
                                      : static_cast<StatusCode>(status.code()),
                          status));
}

grpc::Status StatusOf(const RunResult& result) {
  switch (result.outcome) {
    case RunOutcome::kInvalid:
      return As(StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", result.status);
    case RunOutcome::kMismatch:
      return As(StatusCode::FAILED_PRECONDITION, "MISMATCH", result.status);
    case RunOutcome::kInDoubt:
      return As(StatusCode::FAILED_PRECONDITION, "IN_DOUBT", result.status);
    case RunOutcome::kInProgress:
      return As(StatusCode::ABORTED, "IN_PROGRESS", result.status);
    case RunOutcome::kConflict:
      return As(StatusCode::ABORTED, "CONFLICT", result.status);
    case RunOutcome::kUnavailable:
    case RunOutcome::kHungUp:
      return As(StatusCode::UNAVAILABLE, "UNAVAILABLE", result.status);
    default:
      return ToGrpcError(result.status);
  }
}

bool HasNoCoordinator(const RunResult& result) {
  return result.outcome == RunOutcome::kUnavailable &&
         (result.status.code() == absl::StatusCode::kUnavailable ||
          result.status.code() == absl::StatusCode::kDeadlineExceeded);
}

}  // namespace idempotency
