#include "client/attempt.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "client/error_details.h"
#include "client/status.h"

namespace idempotency::internal {
namespace {

const char* Explanation(RetryVerdict verdict) {
  switch (verdict) {
    case RetryVerdict::kServerForbids:
      return ", the server asks not to retry";
    case RetryVerdict::kAttemptsUsedUp:
      return ", no more are allowed";
    case RetryVerdict::kNoTimeLeft:
      return ", no time for another";
    case RetryVerdict::kSendAgain:
    case RetryVerdict::kNotRetryable:
      break;
  }
  return "";
}

}  // namespace

AttemptFailure FailureOf(const absl::Status& status, bool writes,
                         bool received) {
  AttemptFailure failure;
  // This client cancels nothing: it was the server, which is going away.
  failure.unavailable = status.code() == absl::StatusCode::kUnavailable ||
                        status.code() == absl::StatusCode::kCancelled;
  failure.may_have_acted = writes && received && MayHaveActed(status);
  failure.retry_delay = RetryDelayOf(status);
  return failure;
}

absl::Status LostWith(const absl::Status& end) {
  absl::Status lost = absl::UnavailableError(
      absl::StrCat("the stream of commands ended before the answer: ",
                   absl::StatusCodeToString(end.code()),
                   end.message().empty() ? "" : ", ", end.message()));
  const auto retry_info = end.GetPayload(kRetryInfoUrl);
  if (retry_info.has_value()) lost.SetPayload(kRetryInfoUrl, *retry_info);
  return lost;
}

absl::Status FinalStatus(const absl::Status& last, const RetryState& retry,
                         RetryVerdict verdict, bool last_may_have_acted) {
  // A refusal of the service settles what became of the attempts before it:
  // they were the same call.
  const bool unsettled = last_may_have_acted ||
                         last.code() == absl::StatusCode::kUnavailable ||
                         last.code() == absl::StatusCode::kCancelled ||
                         last.code() == absl::StatusCode::kDeadlineExceeded;
  const absl::Status status =
      unsettled && retry.may_have_acted() ? AsOutcomeUnknown(last) : last;
  if (retry.attempts() == 1 && verdict == RetryVerdict::kNotRetryable) {
    return status;
  }
  absl::Status result(
      status.code(), absl::StrCat(status.message(), " (attempt ",
                                  retry.attempts(), Explanation(verdict), ")"));
  status.ForEachPayload([&](auto url, const absl::Cord& payload) {
    result.SetPayload(url, payload);
  });
  return result;
}

}  // namespace idempotency::internal
