#include "client/grpc/once_call.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <variant>

#include "client/grpc/call_status.h"
#include "client/request_hash.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::system_clock;

constexpr std::size_t kKeyBytesMax = 255;
// For the answer InProgress to reach the caller before its deadline.
constexpr milliseconds kAnswerTime{200};
// Renewals and lookups take their time from it too.
constexpr milliseconds kClaimTimeoutMin{1'000};
constexpr milliseconds kDayMax = std::chrono::hours(24);

CallKey Refuse(const std::string& reason, const std::string& message) {
  return {.refusal =
              CallStatus(grpc::StatusCode::INVALID_ARGUMENT, reason, message)};
}

bool IsControl(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}

milliseconds TimeLeft(system_clock::time_point deadline) {
  const auto now = system_clock::now();
  if (deadline > now + kDayMax) return kDayMax;
  return std::max(std::chrono::duration_cast<milliseconds>(deadline - now),
                  milliseconds(0));
}

}  // namespace

CallKey KeyOf(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata,
              bool required) {
  const auto [first, end] = metadata.equal_range(kKeyMetadata);
  if (first == end) {
    if (!required) return {};
    return Refuse("KEY_MISSING",
                  "this method needs the metadata idempotency-key");
  }
  if (std::next(first) != end) {
    return Refuse("KEY_MALFORMED",
                  "the metadata idempotency-key is given more than once");
  }
  std::string key(first->second.data(), first->second.size());
  if (key.empty() || key.size() > kKeyBytesMax || !IsUtf8(key) ||
      std::any_of(key.begin(), key.end(), IsControl)) {
    return Refuse("KEY_MALFORMED",
                  "the metadata idempotency-key has to be 1 to 255 bytes of "
                  "UTF-8 without control characters");
  }
  return {.key = std::move(key)};
}

Operation OperationOf(const OnceRule& rule, std::string_view method,
                      std::string key, std::string_view message,
                      system_clock::time_point deadline) {
  const milliseconds left = TimeLeft(deadline);
  Operation operation = {.scope = rule.scope,
                         .key = std::move(key),
                         .request_hash = RequestHash(
                             {"POST", method, "application/grpc", message}),
                         .policy = rule.policy,
                         .owner = rule.owner,
                         .lease = rule.lease,
                         .max_run_time = rule.max_run_time};
  operation.wait =
      std::min(rule.wait, std::max(left - kAnswerTime, milliseconds(0)));
  operation.claim_timeout = std::clamp(
      left, std::min(kClaimTimeoutMin, rule.claim_timeout), rule.claim_timeout);
  operation.finalize_timeout = rule.finalize_timeout;
  return operation;
}

void Notify(const OnceRule& rule, std::string_view method,
            const RunResult& result) {
  const bool worth_it = !result.has_response() || !result.recorded ||
                        result.outcome == RunOutcome::kWinner;
  if (rule.notice && worth_it) rule.notice(method, result);
}

GrpcAnswer AnswerOf(const RunResult& result) {
  if (!result.has_response()) return {.status = StatusOf(result)};
  GrpcAnswer answer = ToAnswer(result.response);
  if (result.outcome == RunOutcome::kReplayed ||
      result.outcome == RunOutcome::kWinner) {
    answer.trailers.emplace_back(kReplayedTrailer, "true");
  }
  return answer;
}

GrpcAnswer AnswerOf(const FunctionResult& result) {
  if (const auto* const executed = std::get_if<Executed>(&result)) {
    return ToAnswer(executed->response);
  }
  if (const auto* const nothing = std::get_if<NothingHappened>(&result)) {
    return {.status = ToGrpcError(nothing->why)};
  }
  return {.status = ToGrpcError(std::get<OutcomeUnknown>(result).why)};
}

}  // namespace idempotency
