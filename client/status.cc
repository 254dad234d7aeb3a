#include "client/status.h"

#include <google/protobuf/any.pb.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/error_details.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"

namespace idempotency {
namespace {

using internal::kRetryInfoUrl;

constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kBadRequestUrl[] = "type.googleapis.com/google.rpc.BadRequest";
constexpr char kDomain[] = "idempotency.v1";
constexpr char kOutcomeUnknown[] = "OUTCOME_UNKNOWN";
constexpr char kInternal[] = "INTERNAL";
constexpr std::int64_t kRetryDelaySecondsMax = 24 * 60 * 60;

template <typename Detail>
std::optional<Detail> DetailOf(const absl::Status& status, const char* url) {
  const auto payload = status.GetPayload(url);
  Detail detail;
  if (!payload.has_value() || !detail.ParseFromString(std::string(*payload))) {
    return std::nullopt;
  }
  return detail;
}

std::string WithViolations(const google::rpc::Status& status) {
  std::string text = status.message();
  for (const google::protobuf::Any& any : status.details()) {
    google::rpc::BadRequest bad_request;
    if (any.type_url() != kBadRequestUrl || !any.UnpackTo(&bad_request)) {
      continue;
    }
    for (const auto& violation : bad_request.field_violations()) {
      if (absl::StrContains(status.message(), violation.description()))
        continue;
      absl::StrAppend(&text, "; ", violation.field(), ": ",
                      violation.description());
    }
  }
  return text;
}

}  // namespace

std::string ErrorReasonOf(const absl::Status& status) {
  const auto info = DetailOf<google::rpc::ErrorInfo>(status, kErrorInfoUrl);
  if (!info.has_value() || info->domain() != kDomain) return "";
  return info->reason();
}

absl::Status ToAbslStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  google::rpc::Status with_details;
  if (!with_details.ParseFromString(status.error_details())) {
    with_details.Clear();
  }
  // What gRPC says counts.
  with_details.set_code(status.error_code());
  with_details.set_message(status.error_message());
  return ToAbslStatus(with_details);
}

absl::Status ToAbslStatus(const google::rpc::Status& status) {
  absl::Status result(static_cast<absl::StatusCode>(status.code()),
                      WithViolations(status));
  for (const google::protobuf::Any& any : status.details()) {
    result.SetPayload(any.type_url(), absl::Cord(any.value()));
  }
  return result;
}

std::optional<std::chrono::nanoseconds> RetryDelayOf(
    const absl::Status& status) {
  const auto info = DetailOf<google::rpc::RetryInfo>(status, kRetryInfoUrl);
  if (!info.has_value() || !info->has_retry_delay() ||
      info->retry_delay().seconds() < 0 || info->retry_delay().nanos() < 0) {
    return std::nullopt;
  }
  return std::chrono::seconds(
             std::min(info->retry_delay().seconds(), kRetryDelaySecondsMax)) +
         std::chrono::nanoseconds(info->retry_delay().nanos());
}

bool IsServiceError(const absl::Status& status) {
  return !status.ok() && !ErrorReasonOf(status).empty();
}

absl::Status InProgressStatus(std::chrono::nanoseconds retry_after) {
  constexpr std::int64_t kPerSecond = 1'000'000'000;
  google::rpc::RetryInfo info;
  info.mutable_retry_delay()->set_seconds(retry_after.count() / kPerSecond);
  info.mutable_retry_delay()->set_nanos(
      static_cast<std::int32_t>(retry_after.count() % kPerSecond));
  absl::Status status =
      absl::AbortedError("another owner still works on the operation");
  status.SetPayload(kRetryInfoUrl, absl::Cord(info.SerializeAsString()));
  return status;
}

bool MayHaveActed(const absl::Status& status) {
  const std::string reason = ErrorReasonOf(status);
  if (!reason.empty()) {
    return reason == kOutcomeUnknown || reason == kInternal;
  }
  // Not the service's own words: made by a transport that lost sight of the
  // call, unless the code can only be given before it is carried out.
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

absl::Status AsOutcomeUnknown(const absl::Status& status) {
  const std::string reason = ErrorReasonOf(status);
  absl::Status result(
      status.code(),
      absl::StrCat("outcome unknown, the call may have been carried out; send "
                   "it again with the same claim token. Last error: ",
                   reason, reason.empty() ? "" : ": ", status.message()));
  status.ForEachPayload([&](auto url, const absl::Cord& payload) {
    result.SetPayload(url, payload);
  });
  google::rpc::ErrorInfo info;
  info.set_domain(kDomain);
  info.set_reason(kOutcomeUnknown);
  result.SetPayload(kErrorInfoUrl, absl::Cord(info.SerializeAsString()));
  return result;
}

}  // namespace idempotency
