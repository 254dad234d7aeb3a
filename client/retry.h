// Decides whether a failed call is sent again, and when. Pure: no gRPC, no
// clock, no randomness of its own, so that every decision can be tested by
// itself.
#ifndef IDEMPOTENCY_CLIENT_RETRY_H_
#define IDEMPOTENCY_CLIENT_RETRY_H_

#include <chrono>
#include <optional>
#include <string>

namespace idempotency {

// Values outside the ranges are brought to the nearest end.
struct RetryOptions {
  int attempts_max = 6;  // 1–20, the first attempt included
  // The wait before attempt n + 1 is drawn evenly from 0 to
  // min(backoff_max, backoff_initial * 2^(n - 1)). 1 ms–1 min each.
  std::chrono::milliseconds backoff_initial{50};
  std::chrono::milliseconds backoff_max{2000};
};

// What is known of an attempt that was not answered with OK.
struct AttemptFailure {
  // Status UNAVAILABLE, or CANCELLED by the server: the only ones sent again.
  bool unavailable = false;
  bool may_have_acted = false;  // the server may have carried the call out
  // The trailer `grpc-retry-pushback-ms` as it came: decimal milliseconds.
  std::optional<std::string> pushback = std::nullopt;
  // google.rpc.RetryInfo; counts only without a pushback.
  std::optional<std::chrono::nanoseconds> retry_delay = std::nullopt;
};

enum class RetryVerdict {
  kSendAgain,
  kNotRetryable,    // any other status
  kServerForbids,   // pushback negative or malformed
  kAttemptsUsedUp,  // attempts_max reached
  kNoTimeLeft,      // the wait would reach the deadline
};

struct RetryDecision {
  RetryVerdict verdict = RetryVerdict::kNotRetryable;
  std::chrono::nanoseconds wait{0};  // before the next attempt; with kSendAgain
};

// The attempts of one call. Not thread-safe: it belongs to the call.
class RetryState {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  RetryState(const RetryOptions& options, TimePoint deadline);

  // To be told of each failed attempt, once. `now` and the deadline come from
  // one clock; `random` is fresh, 0 <= random < 1. A pushback is waited for
  // exactly; a retry delay is waited for and a backoff on top, so that callers
  // refused together do not come back together.
  RetryDecision AfterFailure(const AttemptFailure& failure, TimePoint now,
                             double random);

  int attempts() const { return attempts_; }
  // True once any failed attempt may have acted, whatever the later ones say.
  bool may_have_acted() const { return may_have_acted_; }

 private:
  std::chrono::nanoseconds Backoff(double random) const;

  const RetryOptions options_;
  const TimePoint deadline_;
  int attempts_ = 0;
  bool may_have_acted_ = false;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_RETRY_H_
