#include <gtest/gtest.h>

#include <set>
#include <string>

#include "client/environment.h"
#include "client/retry.h"

namespace idempotency {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

const RetryState::TimePoint kStart{hours(1)};
constexpr double kAlmostOne = 0x1.fffffffffffffp-1;

AttemptFailure Unavailable() { return {.unavailable = true}; }

AttemptFailure Pushback(std::string text) {
  return {.unavailable = true, .pushback = std::move(text)};
}

RetryVerdict VerdictOn(const AttemptFailure& failure) {
  RetryState retry({}, kStart + seconds(5));
  return retry.AfterFailure(failure, kStart, 0.5).verdict;
}

nanoseconds WaitAfter(const AttemptFailure& failure, double random,
                      RetryState& retry) {
  const RetryDecision decision = retry.AfterFailure(failure, kStart, random);
  EXPECT_EQ(decision.verdict, RetryVerdict::kSendAgain);
  return decision.wait;
}

TEST(ClientRetry, OnlyUnavailableIsSentAgain) {
  EXPECT_EQ(VerdictOn(Unavailable()), RetryVerdict::kSendAgain);
  EXPECT_EQ(VerdictOn({.unavailable = false, .may_have_acted = true}),
            RetryVerdict::kNotRetryable);
}

TEST(ClientRetry, AnotherStatusIsNotRetriedWhateverThePushbackSays) {
  EXPECT_EQ(VerdictOn({.unavailable = false, .pushback = "0"}),
            RetryVerdict::kNotRetryable);
}

TEST(ClientRetry, BackoffDoublesUpToItsMaximum) {
  RetryState retry({.attempts_max = 6,
                    .backoff_initial = milliseconds(50),
                    .backoff_max = milliseconds(300)},
                   kStart + hours(1));
  for (const int most : {50, 100, 200, 300, 300}) {
    const nanoseconds wait = WaitAfter(Unavailable(), kAlmostOne, retry);
    EXPECT_LE(wait, milliseconds(most));
    EXPECT_GT(wait, milliseconds(most) - nanoseconds(1000));
  }
}

TEST(ClientRetry, JitterCoversTheWholeOfTheBackoff) {
  const auto first_wait = [](double random) {
    RetryState retry({.backoff_initial = milliseconds(80)}, kStart + hours(1));
    return WaitAfter(Unavailable(), random, retry);
  };
  EXPECT_EQ(first_wait(0.0), nanoseconds(0));
  EXPECT_EQ(first_wait(0.25), milliseconds(20));
  EXPECT_EQ(first_wait(0.75), milliseconds(60));
}

TEST(ClientRetry, AttemptsAreBounded) {
  RetryState retry({.attempts_max = 3}, kStart + hours(1));
  EXPECT_EQ(retry.AfterFailure(Unavailable(), kStart, 0).verdict,
            RetryVerdict::kSendAgain);
  EXPECT_EQ(retry.AfterFailure(Unavailable(), kStart, 0).verdict,
            RetryVerdict::kSendAgain);
  EXPECT_EQ(retry.AfterFailure(Unavailable(), kStart, 0).verdict,
            RetryVerdict::kAttemptsUsedUp);
  EXPECT_EQ(retry.attempts(), 3);
}

TEST(ClientRetry, APushbackDoesNotBuyMoreAttempts) {
  RetryState retry({.attempts_max = 1}, kStart + hours(1));
  EXPECT_EQ(retry.AfterFailure(Pushback("0"), kStart, 0).verdict,
            RetryVerdict::kAttemptsUsedUp);
}

TEST(ClientRetry, OptionsOutOfRangeAreBroughtIntoIt) {
  RetryState none({.attempts_max = -1}, kStart + hours(1));
  EXPECT_EQ(none.AfterFailure(Unavailable(), kStart, 0).verdict,
            RetryVerdict::kAttemptsUsedUp);

  RetryState many({.attempts_max = 1'000'000,
                   .backoff_initial = milliseconds(-5),
                   .backoff_max = milliseconds::max()},
                  kStart + hours(100));
  for (int i = 0; i < 19; ++i) {
    const nanoseconds wait = WaitAfter(Unavailable(), kAlmostOne, many);
    EXPECT_GE(wait, nanoseconds(0));
    EXPECT_LE(wait, seconds(60));
  }
  EXPECT_EQ(many.AfterFailure(Unavailable(), kStart, 0).verdict,
            RetryVerdict::kAttemptsUsedUp);
}

TEST(ClientRetry, APushbackIsWaitedForExactly) {
  for (const double random : {0.0, 0.5, kAlmostOne}) {
    RetryState retry({}, kStart + seconds(5));
    EXPECT_EQ(WaitAfter(Pushback("1234"), random, retry), milliseconds(1234));
    EXPECT_EQ(WaitAfter(Pushback("0"), random, retry), milliseconds(0));
  }
}

TEST(ClientRetry, APushbackHoldsBeforeTheRetryDelay) {
  AttemptFailure failure = Pushback("7");
  failure.retry_delay = seconds(3);
  RetryState retry({}, kStart + seconds(5));
  EXPECT_EQ(WaitAfter(failure, kAlmostOne, retry), milliseconds(7));
}

TEST(ClientRetry, ANegativeOrMalformedPushbackForbidsTheRetry) {
  for (const char* text : {"-1", "-2147483648", "", " 5", "5 ", "+5", "5ms",
                           "1.5", "0x10", "2147483648", "never"}) {
    EXPECT_EQ(VerdictOn(Pushback(text)), RetryVerdict::kServerForbids) << text;
  }
}

TEST(ClientRetry, TheRetryDelayIsTheLeastAndTheBackoffComesOnTop) {
  AttemptFailure failure = Unavailable();
  failure.retry_delay = milliseconds(500);
  RetryState retry({.backoff_initial = milliseconds(100)}, kStart + seconds(5));
  EXPECT_EQ(WaitAfter(failure, 0.0, retry), milliseconds(500));
  EXPECT_EQ(WaitAfter(failure, 0.5, retry), milliseconds(600));
}

TEST(ClientRetry, AWaitThatWouldReachTheDeadlineEndsTheCall) {
  const auto verdict = [](const AttemptFailure& failure) {
    RetryState retry({}, kStart + milliseconds(100));
    return retry.AfterFailure(failure, kStart, 0.5).verdict;
  };
  EXPECT_EQ(verdict(Pushback("99")), RetryVerdict::kSendAgain);
  EXPECT_EQ(verdict(Pushback("100")), RetryVerdict::kNoTimeLeft);
  EXPECT_EQ(verdict(Pushback("2147483647")), RetryVerdict::kNoTimeLeft);
  AttemptFailure endless = Unavailable();
  endless.retry_delay = nanoseconds::max();
  EXPECT_EQ(verdict(endless), RetryVerdict::kNoTimeLeft);
}

TEST(ClientRetry, NothingIsSentAfterTheDeadline) {
  RetryState retry({}, kStart);
  EXPECT_EQ(retry.AfterFailure(Pushback("0"), kStart, 0).verdict,
            RetryVerdict::kNoTimeLeft);
  RetryState late({}, kStart);
  EXPECT_EQ(late.AfterFailure(Unavailable(), kStart + seconds(1), 0).verdict,
            RetryVerdict::kNoTimeLeft);
}

TEST(ClientRetry, ADoubtStaysWithTheCall) {
  RetryState retry({}, kStart + seconds(5));
  EXPECT_FALSE(retry.may_have_acted());
  retry.AfterFailure({.unavailable = true, .may_have_acted = true}, kStart, 0);
  EXPECT_TRUE(retry.may_have_acted());
  retry.AfterFailure(Unavailable(), kStart, 0);
  EXPECT_TRUE(retry.may_have_acted());
}

// Hands out chosen bits; nothing else of it is used.
class ChosenBits final : public ClientEnvironment {
 public:
  explicit ChosenBits(std::uint64_t bits) : bits_(bits) {}
  TimePoint Now() override { return kStart; }
  std::unique_ptr<Timer> RunAfter(nanoseconds, std::function<void()>) override {
    return nullptr;
  }
  std::uint64_t Random() override { return bits_; }

 private:
  const std::uint64_t bits_;
};

TEST(ClaimToken, IsARandomUuidWhateverTheBits) {
  ChosenBits zeros(0);
  EXPECT_EQ(NewClaimToken(zeros), "00000000-0000-4000-8000-000000000000");
  ChosenBits ones(~std::uint64_t{0});
  EXPECT_EQ(NewClaimToken(ones), "ffffffff-ffff-4fff-bfff-ffffffffffff");
}

TEST(ClaimToken, KeepsEveryOtherBit) {
  ChosenBits bits(0x0123456789abcdef);
  EXPECT_EQ(NewClaimToken(bits), "01234567-89ab-4def-8123-456789abcdef");
}

TEST(ClaimToken, IsNewEachTime) {
  constexpr std::size_t kTokens = 10'000;
  std::set<std::string> tokens;
  for (std::size_t i = 0; i < kTokens; ++i) tokens.insert(NewClaimToken());
  EXPECT_EQ(tokens.size(), kTokens);
}

}  // namespace
}  // namespace idempotency
