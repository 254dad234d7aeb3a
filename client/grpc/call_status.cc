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

// Nobody's answer is OK for want of a reason.
google::rpc::Status ToProto(const absl::Status& status) {
  google::rpc::Status packed;
  packed.set_code(status.ok() ? StatusCode::UNKNOWN
                              : static_cast<StatusCode>(status.code()));
  const auto message = status.message();
  packed.set_message(message.data(), message.size());
  status.ForEachPayload([&](auto url, const absl::Cord& payload) {
    google::protobuf::Any* const detail = packed.add_details();
    detail->set_type_url(url.data(), url.size());
    detail->set_value(std::string(payload));
  });
  return packed;
}

void AddReason(const std::string& reason, google::rpc::Status& status) {
  for (const google::protobuf::Any& detail : status.details()) {
    if (detail.Is<google::rpc::ErrorInfo>()) return;
  }
  google::rpc::ErrorInfo info;
  info.set_domain(kDomain);
  info.set_reason(reason);
  status.add_details()->PackFrom(info);
}

// What the handler says, unless the coordinator said it.
grpc::Status UnknownOutcome(const absl::Status& status) {
  if (IsServiceError(status)) {
    return CallStatus(StatusCode::UNKNOWN, "OUTCOME_UNKNOWN",
                      "whether the operation was carried out is not known");
  }
  google::rpc::Status packed = ToProto(status);
  AddReason("OUTCOME_UNKNOWN", packed);
  return Pack(packed);
}

grpc::Status InProgress(const RunResult& result) {
  google::rpc::Status packed = ToProto(InProgressStatus(result.retry_after));
  AddReason("IN_PROGRESS", packed);
  return Pack(packed);
}

}  // namespace

grpc::Status CallStatus(StatusCode code, const std::string& reason,
                        const std::string& message) {
  google::rpc::Status packed;
  packed.set_code(code);
  packed.set_message(message);
  AddReason(reason, packed);
  return Pack(packed);
}

grpc::Status ToGrpcError(const absl::Status& status) {
  return Pack(ToProto(status));
}

grpc::Status StatusOf(const RunResult& result) {
  switch (result.outcome) {
    case RunOutcome::kMismatch:
      return CallStatus(StatusCode::FAILED_PRECONDITION, "KEY_REUSED",
                        "the key belongs to a different request");
    case RunOutcome::kInDoubt:
      return CallStatus(StatusCode::FAILED_PRECONDITION, "IN_DOUBT",
                        "whether the operation was carried out is not known");
    case RunOutcome::kInProgress:
      return InProgress(result);
    case RunOutcome::kConflict:
      return CallStatus(StatusCode::ABORTED, "SUPERSEDED",
                        "another attempt has taken the key over");
    case RunOutcome::kInvalid:
      return CallStatus(StatusCode::INTERNAL, "MISCONFIGURED",
                        "the service cannot guard this call");
    case RunOutcome::kUnknown:
      return UnknownOutcome(result.status);
    case RunOutcome::kNothingHappened:
      return ToGrpcError(result.status);
    default:
      return CallStatus(StatusCode::UNAVAILABLE, "UNAVAILABLE",
                        "nothing was carried out; send it again");
  }
}

}  // namespace idempotency
