// Streams of Bulk without a gRPC server: what reaches the engine, in which
// messages results go out, when the stream reads on, and how it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/core/errors.h"
#include "server/core/limits.h"
#include "tests/unit/bulk_stream_fixture.h"
#include "tests/unit/grpc_sides.h"

namespace idempotency {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class BulkStreamTest : public BulkStreamFixture {};

TEST_F(BulkStreamTest, EveryKindOfCommandIsAnsweredAsItsCallIs) {
  v1::Command finalize;
  finalize.set_id(2);
  finalize.mutable_finalize()->set_scope("payments");
  finalize.mutable_finalize()->set_key("k2");
  finalize.mutable_finalize()->set_claim_token(kToken);
  finalize.mutable_finalize()->mutable_response()->set_status_code(201);
  v1::Command release;
  release.set_id(4);
  release.mutable_release()->set_scope("payments");
  release.mutable_release()->set_key("k4");
  release.mutable_release()->set_claim_token(kToken);
  release.mutable_release()->set_disposition(
      v1::ReleaseRequest::DISPOSITION_NEVER_EXECUTED);
  Send({ClaimOf(1), finalize, LookupOf(3), release});
  RunLanesDry();
  WriteAll();
  ASSERT_THAT(Results(), SizeIs(4));
  for (const v1::Result& result : Results()) {
    EXPECT_FALSE(result.has_error()) << result.ShortDebugString();
    switch (result.id()) {
      case 1:
        EXPECT_EQ(result.claim().claimed().attempt(), 1);
        break;
      case 2:
        EXPECT_EQ(result.finalize().result(),
                  v1::FinalizeResponse::RESULT_RECORDED);
        break;
      case 3:
        EXPECT_EQ(result.lookup().record().key(), "key-3");
        break;
      default:
        EXPECT_TRUE(result.release().released());
    }
  }
  for (const CallKind kind : {CallKind::kClaim, CallKind::kFinalize,
                              CallKind::kLookup, CallKind::kRelease}) {
    EXPECT_EQ(metrics_.Of(kind).started, 1u);
    EXPECT_EQ(metrics_.Of(kind).handled[0], 1u);
  }
  EXPECT_EQ(metrics_.bulk.received, 1u);
}

TEST_F(BulkStreamTest, ResultsGatherWhileAMessageIsWritten) {
  SendClaims(0, 100);
  RunLanesDry();
  EXPECT_THAT(ResultsByMessage(), ElementsAre(1u));
  side_->FinishWrite();
  EXPECT_THAT(ResultsByMessage(), ElementsAre(1u, 99u));
  side_->FinishWrite();
  EXPECT_FALSE(side_->writing());
}

TEST_F(BulkStreamTest, MessagesHaveABoundInResultsAndInSize) {
  SendClaims(0, limits::kBulkCommandsMax);
  SendClaims(10'000, limits::kBulkCommandsMax);
  RunLanesDry();
  WriteAll();
  EXPECT_THAT(ResultsByMessage(), ElementsAre(1u, 1024u, 1023u));

  Record(std::string(60'000, 'b'));
  Send({LookupOf(1), LookupOf(2), LookupOf(3), LookupOf(4), LookupOf(5),
        LookupOf(6)});
  RunLanesDry();
  WriteAll();
  EXPECT_THAT(ResultsByMessage(), ElementsAre(1u, 1024u, 1023u, 1u, 4u, 1u));

  Record(std::string(limits::kBodyBytesMax, 'b'));
  Send({LookupOf(1), LookupOf(2), LookupOf(3)});
  RunLanesDry();
  WriteAll();
  EXPECT_THAT(ResultsByMessage(),
              ElementsAre(1u, 1024u, 1023u, 1u, 4u, 1u, 1u, 1u, 1u));
  EXPECT_LE(side_->messages().back().ByteSizeLong(), limits::kMessageBytesMax);
}

TEST_F(BulkStreamTest, BadCommandIsRefusedAmongGoodOnes) {
  v1::Command no_scope = ClaimOf(2);
  no_scope.mutable_claim()->clear_scope();
  v1::Command none;
  none.set_id(4);
  Send({ClaimOf(1), no_scope, ClaimOf(3), none});
  RunLanesDry();
  WriteAll();
  ASSERT_THAT(Results(), SizeIs(4));
  for (const v1::Result& result : Results()) {
    EXPECT_EQ(result.has_error(), result.id() % 2 == 0);
    if (!result.has_error()) continue;
    EXPECT_EQ(result.result_case(), v1::Result::RESULT_NOT_SET);
    EXPECT_EQ(ReasonOf(result.error()), "INVALID_FIELD");
    EXPECT_THAT(result.error().message(),
                HasSubstr(result.id() == 2 ? "scope" : "command"));
  }
  EXPECT_EQ(script_.items, 2);
}

TEST_F(BulkStreamTest, TimeoutIsTheCommandsDeadlineAndTheServersBoundHolds) {
  Reopen({.deadline_max = seconds(10)});
  v1::Command brief = ClaimOf(1);
  brief.mutable_timeout()->set_seconds(2);
  v1::Command patient = ClaimOf(2);
  patient.mutable_timeout()->set_seconds(3600);
  Send({brief, patient, ClaimOf(3)});
  clock_.Advance(seconds(2));
  RunLanesDry();
  WriteAll();
  EXPECT_EQ(script_.items, 2) << "the brief one must not reach the store";
  Send({patient, ClaimOf(3)});
  clock_.Advance(seconds(10));
  RunLanesDry();
  WriteAll();
  EXPECT_EQ(script_.items, 2);
  int late = 0;
  for (const v1::Result& result : Results()) {
    if (ReasonOf(result.error()) == "DEADLINE_EXCEEDED") ++late;
  }
  EXPECT_EQ(late, 3);
}

TEST_F(BulkStreamTest, TimeoutThatIsNoneIsRefused) {
  std::vector<v1::Command> commands(4);
  for (std::size_t i = 0; i < commands.size(); ++i) commands[i] = ClaimOf(i);
  commands[0].mutable_timeout();
  commands[1].mutable_timeout()->set_seconds(-1);
  commands[2].mutable_timeout()->set_nanos(1'000'000'000);
  commands[3].mutable_timeout()->set_seconds(INT64_MAX);
  Send(commands);
  WriteAll();
  ASSERT_THAT(Results(), SizeIs(4));
  for (const v1::Result& result : Results()) {
    EXPECT_THAT(result.error().message(), HasSubstr("timeout"));
  }
  EXPECT_TRUE(engine_->idle());
}

TEST_F(BulkStreamTest, IdInFlightIsRefusedAndIsFreeAfterItsResult) {
  Send({ClaimOf(1), ClaimOf(1)});
  WriteAll();
  ASSERT_THAT(Results(), SizeIs(1));
  EXPECT_THAT(Results()[0].error().message(), HasSubstr("id"));
  RunLanesDry();
  WriteAll();
  ASSERT_THAT(Results(), SizeIs(2));
  EXPECT_TRUE(Results()[1].claim().has_claimed());
  Send({ClaimOf(1)});
  RunLanesDry();
  WriteAll();
  ASSERT_THAT(Results(), SizeIs(3));
  EXPECT_TRUE(Results()[2].claim().has_claimed());
}

TEST_F(BulkStreamTest, NothingIsReadWhileTooManyCommandsAreInFlight) {
  std::size_t sent = 0;
  while (side_->reading()) {
    SendClaims(sent, limits::kBulkCommandsMax);
    sent += limits::kBulkCommandsMax;
    ASSERT_LE(sent, limits::kBulkInFlightMax);
  }
  EXPECT_EQ(sent, limits::kBulkInFlightMax);
  RunLanesDry();
  WriteAll();
  EXPECT_TRUE(side_->reading());
  EXPECT_THAT(Results(), SizeIs(sent));
}

TEST_F(BulkStreamTest, NothingIsReadWhileTooManyBytesAreInFlight) {
  EXPECT_EQ(SendMebibytes(), 8u);
  RunLanesDry();
  WriteAll();
  EXPECT_TRUE(side_->reading());
}

TEST_F(BulkStreamTest, ClaimsThatMayWaitLeaveTheOthersTheirRoom) {
  std::vector<v1::Command> waiting;
  for (std::size_t i = 0; i < limits::kBulkWaitingMax; ++i) {
    v1::Command& claim = waiting.emplace_back(ClaimOf(1'000'000 + i));
    claim.mutable_claim()->mutable_wait()->set_seconds(60);
    claim.mutable_claim()->set_checkpoint(
        std::string(limits::kCheckpointBytesMax, 'c'));
  }
  Send(waiting);
  EXPECT_EQ(SendMebibytes(), 8u);
}

TEST_F(BulkStreamTest, CallerThatDoesNotReadIsReadNoMore) {
  Record(std::string(100'000, 'b'));
  std::uint64_t sent = 0;
  while (side_->reading()) {
    std::vector<v1::Command> lookups;
    for (int i = 0; i < 20; ++i) lookups.push_back(LookupOf(sent++));
    Send(lookups);
    RunLanesDry();
    ASSERT_LE(sent, 200u);
  }
  EXPECT_THAT(side_->messages(), SizeIs(1));
  EXPECT_GT(metrics_.reply_bytes, limits::kBulkUnsentBytesMax);
  WriteAll();
  EXPECT_TRUE(side_->reading());
  EXPECT_THAT(Results(), SizeIs(sent));
  EXPECT_EQ(metrics_.reply_bytes, 0u);
}

TEST_F(BulkStreamTest, OneStreamMayHoldOnlyAShareOfTheReplyBudget) {
  Reopen({.reply_bytes_max = 16 << 20});
  Record(std::string(1 << 20, 'b'));
  std::vector<v1::Command> lookups;
  for (int i = 0; i < 10; ++i) lookups.push_back(LookupOf(i));
  Send(lookups);
  RunLanesDry();
  EXPECT_LE(metrics_.reply_bytes, 5u << 20);
  WriteAll();
  ASSERT_THAT(Results(), SizeIs(10));
  int overloaded = 0;
  for (const v1::Result& result : Results()) {
    if (!result.has_error()) continue;
    ++overloaded;
    EXPECT_EQ(ReasonOf(result.error()), "OVERLOADED");
    EXPECT_EQ(result.error().details_size(), 2) << "ErrorInfo and RetryInfo";
  }
  EXPECT_EQ(overloaded, 7);
}

TEST_F(BulkStreamTest, ManyStreamsThatAreNotReadLeaveOthersTheirReplies) {
  Reopen({.reply_bytes_max = 16 << 20});
  Record(std::string(1 << 20, 'b'));
  const auto look_up = [this](std::uint64_t count) {
    std::vector<v1::Command> lookups;
    for (std::uint64_t id = 0; id < count; ++id) {
      lookups.push_back(LookupOf(id));
    }
    Send(lookups);
    RunLanesDry();
  };
  std::vector<std::unique_ptr<grpc::CallbackServerContext>> contexts;
  std::vector<std::unique_ptr<BulkSide>> unread;
  for (int i = 0; i < 8; ++i) {
    look_up(10);
    contexts.push_back(std::move(context_));
    unread.push_back(std::move(side_));
    Open();
  }
  look_up(1);
  WriteAll();
  ASSERT_THAT(Results(), SizeIs(1));
  EXPECT_TRUE(Results()[0].has_lookup()) << ReasonOf(Results()[0].error());
  for (const auto& side : unread) {
    side->Cancel();
    side->FinishWrite(false);
    ASSERT_TRUE(side->end().has_value());
    side->Done();
  }
}

TEST_F(BulkStreamTest, HalfClosedStreamEndsWithOkAfterTheLastResult) {
  Send({ClaimOf(1)});
  side_->HalfClose();
  EXPECT_FALSE(side_->end().has_value());
  RunLanesDry();
  EXPECT_FALSE(side_->end().has_value());
  WriteAll();
  ASSERT_TRUE(side_->end().has_value());
  EXPECT_TRUE(side_->end()->ok());
  EXPECT_EQ(metrics_.bulk.handled[0], 1u);
}

TEST_F(BulkStreamTest, TooManyCommandsEndTheStreamAfterWhatCameBefore) {
  Send({ClaimOf(1)});
  SendClaims(10, limits::kBulkCommandsMax + 1);
  EXPECT_FALSE(side_->reading());
  RunLanesDry();
  WriteAll();
  EXPECT_THAT(Results(), SizeIs(1));
  EXPECT_EQ(script_.items, 1);
  ASSERT_TRUE(side_->end().has_value());
  EXPECT_EQ(side_->end()->error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReasonOf(*side_->end()), "INVALID_FIELD");
}

TEST_F(BulkStreamTest, UnparsableMessageEndsTheStreamWithInternal) {
  Send({ClaimOf(1)});
  side_->SendBytes("\x0a\xff");
  RunLanesDry();
  WriteAll();
  EXPECT_THAT(Results(), SizeIs(1));
  ASSERT_TRUE(side_->end().has_value());
  EXPECT_EQ(side_->end()->error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(ReasonOf(*side_->end()), "INTERNAL");
  EXPECT_THAT(log_.lines(), IsEmpty());
}

TEST_F(BulkStreamTest, CommandsOfABrokenStreamDoNotReachTheStore) {
  Send({ClaimOf(1), ClaimOf(2)});
  side_->Cancel();
  EXPECT_FALSE(side_->end().has_value()) << "it must outlive its commands";
  RunLanesDry();
  EXPECT_EQ(script_.items, 0);
  EXPECT_THAT(side_->messages(), IsEmpty());
  ASSERT_TRUE(side_->end().has_value());
  EXPECT_EQ(side_->end()->error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(BulkStreamTest, DrainAnswersWhatWasReadAndEndsWithDraining) {
  Send({ClaimOf(1)});
  service_->streams().Drain();
  ASSERT_FALSE(side_->end().has_value());
  // Whoever still sends need not wait for the end to be told.
  Send({ClaimOf(2)});
  ASSERT_THAT(Results(), SizeIs(1));
  EXPECT_EQ(ReasonOf(Results()[0].error()), "DRAINING");
  WriteAll();
  RunLanesDry();
  WriteAll();
  ASSERT_THAT(Results(), SizeIs(2));
  EXPECT_TRUE(Results()[1].claim().has_claimed());
  ASSERT_TRUE(side_->end().has_value());
  EXPECT_EQ(side_->end()->error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(*side_->end()), "DRAINING");
}

TEST_F(BulkStreamTest, IdleStreamEndsWithTheDrainAndNewOnesAreRefused) {
  service_->streams().Drain();
  ASSERT_TRUE(side_->end().has_value());
  EXPECT_EQ(ReasonOf(*side_->end()), "DRAINING");
  side_->Done();
  Open();
  ASSERT_TRUE(side_->end().has_value());
  EXPECT_EQ(side_->end()->error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(*side_->end()), "DRAINING");
}

TEST_F(BulkStreamTest, HalfClosedStreamEndsWithOkAlsoInADrain) {
  Send({ClaimOf(1)});
  side_->HalfClose();
  service_->streams().Drain();
  RunLanesDry();
  WriteAll();
  ASSERT_TRUE(side_->end().has_value());
  EXPECT_TRUE(side_->end()->ok());
}

TEST_F(BulkStreamTest, NoCommandOfABrokenWriteIsAnsweredAnyMore) {
  SendClaims(0, 10);
  RunLanesDry();
  side_->FinishWrite(false);
  EXPECT_THAT(ResultsByMessage(), ElementsAre(1u));
  ASSERT_TRUE(side_->end().has_value());
  EXPECT_EQ(side_->end()->error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(metrics_.reply_bytes, 0u);
}

// For the thread sanitizer: gRPC's threads read, write and cancel while the
// lanes' answer.
TEST_F(BulkStreamTest, ManyThreadsAnswerEveryCommandOnce) {
  constexpr std::uint64_t kMessages = 60;
  constexpr std::uint64_t kAtATime = 100;
  std::vector<std::thread> lanes;
  for (Lane* lane : engine_->lanes()) {
    lanes.emplace_back([lane] {
      while (lane->WaitForWork()) lane->RunBatch();
      lane->RunBatch();
    });
  }
  for (std::uint64_t sent = 0; !side_->ended();) {
    if (side_->writing()) side_->FinishWrite();
    if (!side_->reading()) continue;
    if (sent < kMessages) {
      SendClaims(sent * kAtATime, kAtATime);
      ++sent;
    } else {
      side_->HalfClose();
    }
  }
  EXPECT_TRUE(side_->end()->ok());
  std::set<std::uint64_t> answered;
  for (const v1::Result& result : Results()) {
    EXPECT_TRUE(result.claim().has_claimed());
    EXPECT_TRUE(answered.insert(result.id()).second) << result.id();
  }
  EXPECT_THAT(answered, SizeIs(kMessages * kAtATime));
  side_->Done();

  // And one that breaks meanwhile.
  Open();
  SendClaims(0, kAtATime);
  side_->Cancel();
  while (!side_->ended()) {
    if (side_->writing()) side_->FinishWrite(false);
  }
  engine_->Stop();
  for (std::thread& lane : lanes) lane.join();
}

}  // namespace
}  // namespace idempotency
