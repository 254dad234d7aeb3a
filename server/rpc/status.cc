#include "server/rpc/status.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "google/rpc/error_details.pb.h"
#include "server/core/errors.h"
#include "server/rpc/random.h"

namespace idempotency {
namespace {

constexpr std::int64_t kMillisPerSecond = 1000;
constexpr std::int32_t kNanosPerMilli = 1'000'000;

bool IsCallerGone(const absl::Status& error) {
  return error.code() == absl::StatusCode::kCancelled && !HasReason(error);
}

std::string MessageOf(const absl::Status& error, Reason reason) {
  if (HasReason(error)) return std::string(error.message());
  switch (reason) {
    case Reason::kDeadlineExceeded:
      return "the deadline has passed";
    case Reason::kStoreUnavailable:
      return "the store can't be used just now";
    default:
      return "internal error";
  }
}

void AddErrorInfo(Reason reason, google::rpc::Status& details) {
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(ReasonName(reason)));
  info.set_domain(kErrorDomain);
  details.add_details()->PackFrom(info);
}

// The field of the request that an error is about, or empty.
std::string BadField(const absl::Status& error, Reason reason) {
  if (reason == Reason::kUnknownPolicy || reason == Reason::kPolicyNotAllowed) {
    return "policy";
  }
  return FieldOf(error);
}

// The message is the field, a colon and the problem.
void AddBadRequest(const std::string& field, const std::string& message,
                   google::rpc::Status& details) {
  google::rpc::BadRequest bad_request;
  auto& violation = *bad_request.add_field_violations();
  violation.set_field(field);
  const std::string prefix = field + ": ";
  violation.set_description(message.compare(0, prefix.size(), prefix) == 0
                                ? message.substr(prefix.size())
                                : message);
  details.add_details()->PackFrom(bad_request);
}

void AddRetryInfo(std::chrono::milliseconds delay,
                  google::rpc::Status& details) {
  google::rpc::RetryInfo info;
  info.mutable_retry_delay()->set_seconds(delay.count() / kMillisPerSecond);
  info.mutable_retry_delay()->set_nanos(
      static_cast<std::int32_t>(delay.count() % kMillisPerSecond) *
      kNanosPerMilli);
  details.add_details()->PackFrom(info);
}

std::chrono::milliseconds RetryDelay(const absl::Status& error, Reason reason,
                                     double random) {
  const std::chrono::milliseconds least =
      reason == Reason::kDraining ? kDrainingRetryDelay : kRetryDelay;
  const std::chrono::milliseconds base =
      std::max(least, DelayAskedBy(error).value_or(least));
  return std::chrono::milliseconds(static_cast<std::int64_t>(
      Jittered(static_cast<double>(base.count()), kRetryDelaySpread, random)));
}

}  // namespace

bool IsFault(const absl::Status& error) {
  if (IsCallerGone(error)) return false;
  const Reason reason = ReasonOf(error);
  return reason == Reason::kInternal || reason == Reason::kRecordCorrupt;
}

grpc::Status ErrorReply::status() const {
  return {static_cast<grpc::StatusCode>(details.code()), details.message(),
          details.details().empty() ? "" : details.SerializeAsString()};
}

grpc::Status EndWith(const ErrorReply& reply,
                     grpc::CallbackServerContext& context) {
  if (reply.pushback.has_value()) {
    context.AddTrailingMetadata(kPushbackTrailer,
                                std::to_string(reply.pushback->count()));
  }
  return reply.status();
}

ErrorReply ToErrorReply(const absl::Status& error, double random) {
  ErrorReply reply;
  google::rpc::Status& details = reply.details;
  if (IsCallerGone(error)) {
    details.set_code(grpc::StatusCode::CANCELLED);
    return reply;
  }
  const Reason reason = ReasonOf(error);
  const std::string message = MessageOf(error, reason);
  details.set_code(static_cast<int>(CodeOf(reason)));
  details.set_message(message);
  AddErrorInfo(reason, details);
  const std::string field = BadField(error, reason);
  if (!field.empty()) AddBadRequest(field, message, details);
  if (details.code() == grpc::StatusCode::UNAVAILABLE) {
    reply.pushback = RetryDelay(error, reason, random);
    AddRetryInfo(*reply.pushback, details);
  }
  return reply;
}

}  // namespace idempotency
