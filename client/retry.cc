#include "client/retry.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>
#include <system_error>

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr int kAttemptsLimit = 20;
constexpr milliseconds kBackoffLeast{1};
constexpr milliseconds kBackoffMost{60'000};

RetryOptions WithinRange(RetryOptions options) {
  options.attempts_max = std::clamp(options.attempts_max, 1, kAttemptsLimit);
  options.backoff_initial =
      std::clamp(options.backoff_initial, kBackoffLeast, kBackoffMost);
  options.backoff_max =
      std::clamp(options.backoff_max, kBackoffLeast, kBackoffMost);
  return options;
}

// 32 bits as in gRPC's own clients: a number beyond them is malformed, and
// what is malformed means the same as what is negative.
std::optional<milliseconds> ParsePushback(std::string_view text) {
  std::int32_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || value < 0) return std::nullopt;
  return milliseconds(value);
}

}  // namespace

RetryState::RetryState(const RetryOptions& options, TimePoint deadline)
    : options_(WithinRange(options)), deadline_(deadline) {}

RetryDecision RetryState::AfterFailure(const AttemptFailure& failure,
                                       TimePoint now, double random) {
  ++attempts_;
  may_have_acted_ = may_have_acted_ || failure.may_have_acted;
  if (!failure.unavailable) return {RetryVerdict::kNotRetryable};

  std::optional<milliseconds> pushback;
  if (failure.pushback.has_value()) {
    pushback = ParsePushback(*failure.pushback);
    if (!pushback.has_value()) return {RetryVerdict::kServerForbids};
  }
  if (attempts_ >= options_.attempts_max) {
    return {RetryVerdict::kAttemptsUsedUp};
  }
  const nanoseconds told = pushback.has_value()
                               ? nanoseconds(*pushback)
                               : failure.retry_delay.value_or(nanoseconds(0));
  // Compared before it is added to: a told delay may be of any size.
  if (told >= deadline_ - now) return {RetryVerdict::kNoTimeLeft};
  const nanoseconds wait =
      pushback.has_value() ? told
                           : std::max(told, nanoseconds(0)) + Backoff(random);
  if (wait >= deadline_ - now) return {RetryVerdict::kNoTimeLeft};
  return {RetryVerdict::kSendAgain, wait};
}

nanoseconds RetryState::Backoff(double random) const {
  milliseconds most = options_.backoff_initial;
  for (int i = 1; i < attempts_ && most < options_.backoff_max; ++i) most *= 2;
  const nanoseconds bound = std::min(most, options_.backoff_max);
  return nanoseconds(static_cast<std::int64_t>(
      static_cast<double>(bound.count()) * std::clamp(random, 0.0, 1.0)));
}

}  // namespace idempotency
