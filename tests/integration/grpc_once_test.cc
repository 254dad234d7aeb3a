// gRPC services that execute once, against a real coordinator: what a caller
// is told, by the wrapper of synchronous services, by that of callback services
// and by the sidecar.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "client/status.h"
#include "tests/integration/grpc_once_fixture.h"

namespace idempotency {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Pair;

INSTANTIATE_TEST_SUITE_P(Ways, GrpcOnceTest, EachWay(), WayName);

// --------------------------------------------------------------- one execution

TEST_P(GrpcOnceTest, TheFirstExecutesAndTheNextGetsItsAnswer) {
  std::atomic<int> charges{0};
  const auto shop = Open([&](const Attempt& attempt, auto& request) {
    ++charges;
    EXPECT_EQ(attempt.number, 1);
    EXPECT_EQ(attempt.downstream_key.size(), 36u);
    EXPECT_EQ(attempt.abandoned, "");
    EXPECT_EQ(request.amount(), 200);
    return Charged{.receipt = std::string("\0\xff", 2),
                   .trailers = {{"x-wallet", "w1"},
                                {"x-proof-bin", std::string("\0\x01\xfe", 3)},
                                {"x-wallet", "w2"}}};
  });
  const std::string key = NewKey();

  const ChargeAnswer first = ChargeOnce(shop->port(), key);
  const ChargeAnswer second = ChargeOnce(shop->port(), key);

  EXPECT_EQ(charges, 1);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  ASSERT_TRUE(second.status.ok()) << second.status.error_message();
  EXPECT_EQ(first.reply.receipt(), std::string("\0\xff", 2));
  EXPECT_EQ(second.reply.SerializeAsString(), first.reply.SerializeAsString());
  EXPECT_FALSE(first.replayed());
  EXPECT_TRUE(second.replayed());
  EXPECT_THAT(
      first.trailers,
      AllOf(Contains(Pair("x-wallet", "w1")), Contains(Pair("x-wallet", "w2")),
            Contains(Pair("x-proof-bin", std::string("\0\x01\xfe", 3)))));
  auto expected = first.trailers;
  expected.emplace(kReplayedTrailer, "true");
  EXPECT_EQ(second.trailers, expected);
}

TEST_P(GrpcOnceTest, ARefusalIsReplayedWithItsDetails) {
  const auto shop = Open([](auto&, auto&) {
    return Charged{.status = {StatusCode::NOT_FOUND,
                              "no such account: \xc3\xbc", "\x01 its details"},
                   .trailers = {{"x-wallet", "w1"}}};
  });
  const std::string key = NewKey();

  const ChargeAnswer first = ChargeOnce(shop->port(), key);
  const ChargeAnswer second = ChargeOnce(shop->port(), key);

  for (const ChargeAnswer& answer : {first, second}) {
    EXPECT_EQ(answer.status.error_code(), StatusCode::NOT_FOUND);
    EXPECT_EQ(answer.status.error_message(), "no such account: \xc3\xbc");
    EXPECT_EQ(answer.status.error_details(), "\x01 its details");
    EXPECT_THAT(answer.trailers, Contains(Pair("x-wallet", "w1")));
  }
  EXPECT_TRUE(second.replayed());
  const v1::Record record = RecordAt(key);
  EXPECT_EQ(record.state(), v1::Record::STATE_FINALIZED);
  EXPECT_EQ(record.response().status_code(), 404);
  EXPECT_EQ(record.response().body(), "");
}

TEST_P(GrpcOnceTest, AKeyThatIsMissingRepeatedOrMalformedIsRefused) {
  const auto shop = Open(MustNotCharge);
  const auto refused = [&](const GrpcMetadata& metadata) {
    const ChargeAnswer answer = ChargeAt(shop->port(), metadata);
    EXPECT_EQ(answer.status.error_code(), StatusCode::INVALID_ARGUMENT);
    return answer.reason();
  };

  EXPECT_EQ(refused({}), "KEY_MISSING");
  EXPECT_EQ(refused({{kKeyMetadata, "a"}, {kKeyMetadata, "a"}}),
            "KEY_MALFORMED");
  EXPECT_EQ(refused({{kKeyMetadata, std::string(256, 'k')}}), "KEY_MALFORMED");
  EXPECT_EQ(refused({{kKeyMetadata, ""}}), "KEY_MALFORMED");
}

TEST_P(GrpcOnceTest, TheLongestKeyIsTakenByteForByte) {
  const auto shop = Open([](auto&, auto&) { return Charged{}; });
  const std::string key = NewKey() + "\"%41" + std::string(240, 'k');

  EXPECT_TRUE(ChargeOnce(shop->port(), key).status.ok());

  EXPECT_EQ(RecordAt(key).state(), v1::Record::STATE_FINALIZED);
}

TEST_P(GrpcOnceTest, WithoutAKeyItRunsWhereNoneIsRequired) {
  std::atomic<int> charges{0};
  OnceRule rule = ARule();
  rule.required = false;
  const auto shop = Open(
      [&](const Attempt& attempt, auto&) {
        ++charges;
        EXPECT_EQ(attempt.number, 0);
        return Charged{.trailers = {{"x-wallet", "w1"}}};
      },
      rule);

  for (int call = 0; call < 2; ++call) {
    const ChargeAnswer answer = ChargeAt(shop->port(), {});
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.reply.payment(), "charge-1");
    EXPECT_THAT(answer.trailers, Contains(Pair("x-wallet", "w1")));
  }
  EXPECT_EQ(charges, 2);
}

// ----------------------------------------------------- somebody else's attempt

TEST_P(GrpcOnceTest, AnotherRequestWithTheKeyIsAMismatch) {
  const auto shop = Open([](auto&, auto&) { return Charged{}; });
  const std::string key = NewKey();
  EXPECT_TRUE(ChargeOnce(shop->port(), key).status.ok());

  const ChargeAnswer other = ChargeOnce(shop->port(), key, AnOrder(201));

  EXPECT_EQ(other.status.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(other.reason(), "KEY_REUSED");
}

TEST_P(GrpcOnceTest, WhileItRunsADuplicateIsToldWhenToAskAgain) {
  int port = 0;
  const std::string key = NewKey();
  ChargeAnswer duplicate;
  const auto shop = Open([&](auto&, auto&) {
    duplicate = ChargeOnce(port, key);
    return Charged{};
  });
  port = shop->port();

  EXPECT_TRUE(ChargeOnce(port, key).status.ok());

  EXPECT_EQ(duplicate.status.error_code(), StatusCode::ABORTED);
  EXPECT_EQ(duplicate.reason(), "IN_PROGRESS");
  const auto retry_after = RetryDelayOf(ToAbslStatus(duplicate.status));
  ASSERT_TRUE(retry_after.has_value());
  EXPECT_GT(*retry_after, milliseconds(0));
}

TEST_P(GrpcOnceTest, WhoWaitsLongEnoughGetsTheOthersAnswer) {
  absl::Notification asked;
  OnceRule rule = ARule();
  rule.wait = seconds(10);
  const auto shop = Open(
      [&](auto&, auto&) {
        asked.Notify();
        WaitUntil([&] { return service_once_->operations() == 2; });
        return Charged{.payment = "the first one's"};
      },
      rule);
  const std::string key = NewKey();

  ChargeAnswer first;
  std::jthread caller([&] { first = ChargeOnce(shop->port(), key); });
  asked.WaitForNotification();
  const ChargeAnswer second = ChargeOnce(shop->port(), key);
  caller.join();

  EXPECT_TRUE(first.status.ok()) << first.status.error_message();
  ASSERT_TRUE(second.status.ok()) << second.status.error_message();
  EXPECT_EQ(second.reply.payment(), "the first one's");
  EXPECT_TRUE(second.replayed());
}

// Its lease ends while it runs, and another one takes over.
TEST_P(GrpcOnceTest, WhoLosesTheClaimAnswersWithTheWinnersResponse) {
  OnceRule rule = ARule();
  rule.lease = milliseconds(500);
  rule.max_run_time = milliseconds(500);
  int port = 0;
  const std::string key = NewKey();
  const auto shop = Open(
      [&](const Attempt& attempt, auto&) {
        if (attempt.number > 1) return Charged{.payment = "the second one's"};
        ChargeAnswer winner;
        WaitUntil([&] {
          winner = ChargeOnce(port, key);
          return winner.status.ok();
        });
        EXPECT_EQ(winner.reply.payment(), "the second one's");
        return Charged{.payment = "the first one's"};
      },
      rule);
  port = shop->port();

  const ChargeAnswer first = ChargeOnce(port, key);

  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_EQ(first.reply.payment(), "the second one's");
  EXPECT_TRUE(first.replayed());
}

// ------------------------------------------------------------ unknown outcomes

TEST_P(GrpcOnceTest, HeldInDoubtNobodyIsCharged) {
  const std::string key = NewKey();
  AbandonAt(key, ARule("payment"));
  const auto shop = Open(MustNotCharge, ARule("payment"));

  const ChargeAnswer answer = ChargeOnce(shop->port(), key);

  EXPECT_EQ(answer.status.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(answer.reason(), "IN_DOUBT");
  EXPECT_EQ(RecordAt(key).state(), v1::Record::STATE_IN_DOUBT);
}

TEST_P(GrpcOnceTest, WhoTakesOverIsToldAndHasTheSameDownstreamKey) {
  const std::string key = NewKey();
  std::vector<Attempt> attempts;
  const auto shop = Open([&](const Attempt& attempt, auto&) {
    attempts.push_back(attempt);
    return Charged{.throws = attempts.size() == 1};
  });

  const ChargeAnswer first = ChargeOnce(shop->port(), key);
  const ChargeAnswer second = ChargeOnce(shop->port(), key);

  EXPECT_EQ(first.status.error_code(), StatusCode::UNKNOWN);
  EXPECT_TRUE(second.status.ok()) << second.status.error_message();
  ASSERT_EQ(attempts.size(), 2u);
  EXPECT_EQ(attempts[1].number, 2);
  EXPECT_EQ(attempts[1].downstream_key, attempts[0].downstream_key);
  EXPECT_THAT(attempts[1].abandoned,
              AllOf(HasSubstr("attempt=1, reason=outcome-unknown"),
                    HasSubstr("downstream-key=\"" + attempts[0].downstream_key +
                              "\"")));
}

TEST_P(GrpcOnceTest, AServerErrorIsAnsweredAndTheNextOneIsTold) {
  const std::string key = NewKey();
  std::vector<Attempt> attempts;
  const auto shop = Open([&](const Attempt& attempt, auto&) {
    attempts.push_back(attempt);
    if (attempts.size() > 1) return Charged{};
    return Charged{.status = {StatusCode::UNAVAILABLE, "the bank is closed",
                              "its details"}};
  });

  const ChargeAnswer first = ChargeOnce(shop->port(), key);
  const ChargeAnswer second = ChargeOnce(shop->port(), key);

  EXPECT_EQ(first.status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(first.status.error_message(), "the bank is closed");
  EXPECT_TRUE(second.status.ok()) << second.status.error_message();
  ASSERT_EQ(attempts.size(), 2u);
  EXPECT_THAT(attempts[1].abandoned,
              HasSubstr("reason=server-error, status=503"));
}

TEST_P(GrpcOnceTest, AServerErrorIsReplayedWhereThePolicySaysSo) {
  static const bool added = [] {
    AddPolicy("recording", "'30 s', '1 h', '1 h', 'take_over', 'record'");
    return true;
  }();
  ASSERT_TRUE(added);
  std::atomic<int> charges{0};
  const auto shop = Open(
      [&](auto&, auto&) {
        ++charges;
        return Charged{.status = {StatusCode::INTERNAL, "broken", "details"}};
      },
      ARule("recording"));
  const std::string key = NewKey();

  ChargeOnce(shop->port(), key);
  const ChargeAnswer second = ChargeOnce(shop->port(), key);

  EXPECT_EQ(second.status.error_code(), StatusCode::INTERNAL);
  EXPECT_EQ(second.status.error_message(), "broken");
  EXPECT_TRUE(second.replayed());
  EXPECT_EQ(charges, 1);
}

TEST_P(GrpcOnceTest, CancelledIsNobodysLastWord) {
  const std::string key = NewKey();
  std::atomic<int> charges{0};
  const auto shop = Open([&](auto&, auto&) {
    if (++charges > 1) return Charged{};
    return Charged{.status = {StatusCode::CANCELLED, "", "its details"}};
  });

  EXPECT_EQ(ChargeOnce(shop->port(), key).status.error_code(),
            StatusCode::CANCELLED);
  EXPECT_TRUE(ChargeOnce(shop->port(), key).status.ok());
  EXPECT_EQ(charges, 2);
}

// The wrappers ask the lookup; behind the sidecar, the service itself is told.
TEST_P(GrpcOnceTest, WhatIsFoundOutAboutAnAttemptIsTheAnswerForAll) {
  const std::string key = NewKey();
  AbandonAt(key, ARule("payment"));
  const auto shop = Open(
      [&](const Attempt& attempt, auto&) {
        EXPECT_EQ(GetParam(), Way::kProxy);
        EXPECT_THAT(attempt.abandoned, HasSubstr("attempt=1"));
        return Charged{.payment = "found"};
      },
      ARule("payment"),
      [](tests::ChargeReply& reply) {
        reply.set_payment("found");
        return WasAnswered{grpc::Status::OK};
      });

  for (const bool replayed : {false, true}) {
    const ChargeAnswer answer = ChargeOnce(shop->port(), key);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.reply.payment(), "found");
    EXPECT_EQ(answer.replayed(), replayed);
  }
}

// ---------------------------------------------------------------- long replies

TEST_P(GrpcOnceTest, AReplyTooLongToKeepIsNeverReplayedEmpty) {
  std::size_t bytes = 0;
  std::atomic<int> charges{0};
  const auto shop = Open([&](auto&, auto&) {
    ++charges;
    return Charged{.receipt = std::string(bytes, 'r')};
  });

  for (const std::size_t megabytes : {2, 5}) {
    bytes = megabytes << 20;
    const std::string key = NewKey();
    const ChargeAnswer first = ChargeOnce(shop->port(), key);
    const ChargeAnswer second = ChargeOnce(shop->port(), key);

    ASSERT_TRUE(first.status.ok()) << first.status.error_message();
    EXPECT_EQ(first.reply.receipt().size(), bytes);
    EXPECT_EQ(second.status.error_code(), StatusCode::DATA_LOSS);
    EXPECT_EQ(second.reason(), "RESPONSE_NOT_KEPT");
    EXPECT_TRUE(second.replayed());
    EXPECT_TRUE(RecordAt(key).response().body_omitted());
  }
  EXPECT_EQ(charges, 2);
}

// ---------------------------------------------------------- callers that leave

TEST_P(GrpcOnceTest, ADeadlineThatPassesLosesNothing) {
  absl::Notification caller_left;
  const std::string key = NewKey();
  const auto shop = Open([&](auto&, auto&) {
    caller_left.WaitForNotification();
    return Charged{.payment = "late"};
  });

  const ChargeAnswer first = ChargeAt(shop->port(), {{kKeyMetadata, key}},
                                      AnOrder(), milliseconds(500));
  EXPECT_EQ(first.status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(RecordAt(key).state(), v1::Record::STATE_IN_PROGRESS);
  caller_left.Notify();

  WaitUntil(
      [&] { return RecordAt(key).state() == v1::Record::STATE_FINALIZED; });
  const ChargeAnswer second = ChargeOnce(shop->port(), key);
  EXPECT_TRUE(second.status.ok()) << second.status.error_message();
  EXPECT_EQ(second.reply.payment(), "late");
}

// The synchronous wrapper doesn't hear of it while it waits.
class GrpcHangUpTest : public GrpcOnceTest {};
INSTANTIATE_TEST_SUITE_P(Ways, GrpcHangUpTest,
                         testing::Values(Way::kCallback, Way::kProxy), WayName);

TEST_P(GrpcHangUpTest, WhoHangsUpIsNotWaitedFor) {
  OnceRule rule = ARule();
  rule.wait = seconds(30);
  std::atomic<bool> hung_up{false};
  rule.notice = [&](auto, const RunResult& result) {
    hung_up = result.outcome == RunOutcome::kHungUp;
  };
  const auto shop = Open(MustNotCharge, rule);
  v1::ClaimRequest other = ClaimFor(NewKey());
  other.set_request_hash(RequestHash({"POST", kChargePath, "application/grpc",
                                      AnOrder().SerializeAsString()}));
  Granted(other);

  grpc::ClientContext context;
  context.AddMetadata(kKeyMetadata, other.key());
  grpc::Status status;
  std::jthread caller([&] {
    tests::ChargeReply reply;
    status = tests::Payments::NewStub(ChannelTo(shop->port()))
                 ->Charge(&context, AnOrder(), &reply);
  });
  WaitUntil([&] { return service_once_->operations() == 1; });
  context.TryCancel();
  caller.join();

  EXPECT_EQ(status.error_code(), StatusCode::CANCELLED);
  WaitUntil([&] { return hung_up.load(); });
  // Now it would be the next one's turn.
  EXPECT_TRUE(
      Send(ReleaseOf(other, v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED))
          .status.ok());
  WaitUntil([&] { return service_once_->operations() == 0; });
}

}  // namespace
}  // namespace idempotency
