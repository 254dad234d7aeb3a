// Streams of Bulk and their server: memory, many commands, age and drain; and
// the memory of unary answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/support/async_unary_call.h"
#include "tests/integration/bulk_caller.h"
#include "tests/integration/fault_calls.h"
#include "tests/integration/metrics_page.h"
#include "tests/integration/wire_fixture.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr char kOpenStreams[] = "idempotency_bulk_streams";
constexpr char kReplyBytes[] = "idempotency_reply_bytes";
constexpr double kMiB = 1 << 20;

class BulkBoundsTest : public ::testing::Test {
 protected:
  static constexpr char kDrained[] = "DRAINING";

  void Start(std::vector<std::string> flags) {
    flags.push_back("--admin_listen=127.0.0.1:0");
    replica_ =
        StartReplica(Require(TempPostgres::SharedDatabase()), std::move(flags));
    admin_port_ = AdminPortOf(*replica_);
  }

  double Value(const std::string& series) const {
    return Require(MetricsPage::Get(admin_port_)).Value(series);
  }
  double ResidentMiB() const {
    return Value("process_resident_memory_bytes") / kMiB;
  }

  static testing::AssertionResult EndsWithDraining(BulkCaller& caller) {
    const grpc::Status& end = caller.End();
    return IsRefusal(end, PushbackOf(caller.context()),
                     grpc::StatusCode::UNAVAILABLE, kDrained);
  }

  std::unique_ptr<Replica> replica_;
  int admin_port_ = 0;
};

TEST_F(BulkBoundsTest, HundredThousandCommandsAreEachAnsweredOnce) {
  Start({});
  constexpr std::uint64_t kKeys = 50'000;
  constexpr std::uint64_t kAtATime = 500;
  const std::string run = RandomKey();
  std::vector<v1::ClaimRequest> claims;
  for (std::uint64_t i = 0; i < kKeys; ++i) {
    claims.push_back(ClaimOf(run + std::to_string(i)));
  }
  const auto begin = steady_clock::now();
  BulkCaller caller(replica_->stub());
  caller.Read();
  const auto send = [&](std::uint64_t first_id, auto request_of) {
    std::vector<v1::Command> commands;
    for (std::uint64_t i = 0; i < kKeys; ++i) {
      commands.push_back(CommandOf(first_id + i, request_of(claims[i])));
      if (commands.size() < kAtATime) continue;
      ASSERT_TRUE(caller.Send(commands));
      commands.clear();
    }
  };
  send(0, [](const v1::ClaimRequest& claim) { return claim; });
  ASSERT_TRUE(caller.Await(kKeys));
  send(kKeys, [](const v1::ClaimRequest& claim) {
    return FinalizeOf(claim, 201, claim.key());
  });
  caller.HalfClose();
  ASSERT_TRUE(caller.End().ok());
  std::cout << 2 * kKeys << " commands in "
            << (steady_clock::now() - begin) / milliseconds(1) << " ms\n";
  EXPECT_EQ(caller.count(), 2 * kKeys);
  for (std::uint64_t i = 0; i < kKeys; ++i) {
    ASSERT_EQ(caller.Of(i).size(), 1u);
    ASSERT_EQ(caller.Of(i)[0].claim().claimed().attempt(), 1);
    ASSERT_EQ(caller.Of(kKeys + i).size(), 1u);
    ASSERT_EQ(caller.Of(kKeys + i)[0].finalize().result(),
              v1::FinalizeResponse::RESULT_RECORDED);
  }
  EXPECT_EQ(Value("grpc_server_handled_total{grpc_type=\"unary\",grpc_service="
                  "\"idempotency.v1.IdempotencyService\",grpc_method="
                  "\"Claim\",grpc_code=\"OK\"}"),
            static_cast<double>(kKeys));
  EXPECT_EQ(Value(kReplyBytes), 0);
}

TEST_F(BulkBoundsTest, CallerThatNeverReadsIsHeldBackAndHurtsNobody) {
  Start({"--reply_bytes_max=67108864"});
  const v1::ClaimRequest claim = ClaimOf(RandomKey());
  ASSERT_EQ(Decided(Send(replica_->stub(), claim)), "Claimed");
  ASSERT_TRUE(
      Send(replica_->stub(), FinalizeOf(claim, 200, std::string(1 << 20, 'b')))
          .ok());
  const double before = ResidentMiB();
  BulkCaller caller(replica_->stub());
  std::atomic<std::uint64_t> sent{0};
  std::thread sender([&] {
    for (;;) {
      std::vector<v1::Command> commands;
      for (std::uint64_t i = 0; i < 1000; ++i) {
        commands.push_back(CommandOf(sent + i, ByAnother(claim)));
      }
      if (!caller.Send(commands)) return;
      sent += commands.size();
    }
  });
  // Until a second goes by in which nothing more was taken from it.
  for (std::uint64_t last = 0; sent == 0 || sent != last;) {
    last = sent;
    std::this_thread::sleep_for(seconds(1));
  }
  const double held = Value(kReplyBytes);
  const double grown = ResidentMiB() - before;
  std::cout << sent << " commands taken, " << held / kMiB
            << " MiB of results held, " << grown << " MiB more memory\n";
  EXPECT_GT(held, 8 * kMiB);
  EXPECT_LE(held, 32 * kMiB);
  EXPECT_LE(grown, 100);
  EXPECT_EQ(Value(kOpenStreams), 1);

  // Others are answered, on the same connection too, also with the response.
  EXPECT_EQ(Decided(Send(replica_->stub(), ClaimOf(RandomKey()))), "Claimed");
  EXPECT_EQ(Decided(Send(replica_->stub(), ByAnother(claim))), "Replay");
  caller.Cancel();
  sender.join();
  caller.End();
  while (Value(kOpenStreams) > 0 || Value(kReplyBytes) > 0) {
    std::this_thread::sleep_for(milliseconds(10));
  }
}

// The same of unary calls: nobody asks gRPC for the answers, so that it leaves
// them where they are.
TEST_F(BulkBoundsTest, AnswersOfCallsThatNobodyReadsStayWithinTheBudget) {
  constexpr int kCalls = 300;
  Start({"--reply_bytes_max=33554432"});
  const v1::ClaimRequest claim = ClaimOf(RandomKey());
  ASSERT_EQ(Decided(Send(replica_->stub(), claim)), "Claimed");
  ASSERT_TRUE(
      Send(replica_->stub(), FinalizeOf(claim, 200, std::string(1 << 20, 'b')))
          .ok());
  const auto answered = [this] {
    return Require(MetricsPage::Get(admin_port_))
        .Sum(
            "grpc_server_handled_total{grpc_type=\"unary\",grpc_service="
            "\"idempotency.v1.IdempotencyService\",grpc_method=\"Claim\"");
  };
  const double before = ResidentMiB();
  const std::shared_ptr<grpc::Channel> channel = replica_->NewChannel();
  ASSERT_TRUE(channel->WaitForConnected(std::chrono::system_clock::now() +
                                        seconds(10)));
  const auto stub = v1::IdempotencyService::NewStub(channel);
  struct Unread {
    grpc::ClientContext context;
    v1::ClaimResponse response;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::ClaimResponse>> reader;
  };
  grpc::CompletionQueue queue;
  std::vector<Unread> calls(kCalls);
  for (Unread& call : calls) {
    call.reader = stub->AsyncClaim(&call.context, ByAnother(claim), &queue);
    call.reader->Finish(&call.response, &call.status, &call);
  }
  while (answered() < kCalls + 1) std::this_thread::sleep_for(milliseconds(50));
  const double held = Value(kReplyBytes);
  const double grown = ResidentMiB() - before;
  std::cout << held / kMiB << " MiB of answers held, " << grown
            << " MiB more memory\n";
  EXPECT_LE(held, 32 * kMiB);
  EXPECT_LE(grown, 100);
  EXPECT_EQ(Decided(Send(replica_->stub(), ClaimOf(RandomKey()))), "Claimed");

  int replayed = 0;
  for (int i = 0; i < kCalls; ++i) {
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    const Unread& call = *static_cast<Unread*>(tag);
    if (call.status.ok()) {
      ++replayed;
      EXPECT_EQ(call.response.replay().response().body().size(), 1u << 20);
    } else {
      EXPECT_TRUE(IsRefusal(call.status, PushbackOf(call.context),
                            grpc::StatusCode::UNAVAILABLE, "OVERLOADED"));
    }
  }
  EXPECT_GE(replayed, 16);
  EXPECT_LT(replayed, kCalls);
  EXPECT_EQ(Value(kReplyBytes), 0);
}

TEST_F(BulkBoundsTest, StreamsEndWithTheDrainAndDoNotDelayIt) {
  Start({"--drain_delay=0s", "--drain_timeout=60s"});
  BulkCaller idle(replica_->stub());
  BulkCaller busy(replica_->stub());
  for (BulkCaller* caller : {&idle, &busy}) {
    caller->Read();
    ASSERT_TRUE(caller->Send({CommandOf(1, ClaimOf(RandomKey()))}));
    ASSERT_TRUE(caller->Await(1));
  }
  std::atomic<std::uint64_t> sent{1};
  std::thread sender([&] {
    while (busy.Send({CommandOf(sent + 1, ClaimOf(RandomKey()))})) ++sent;
  });
  ASSERT_TRUE(busy.Await(100));
  const auto begin = steady_clock::now();
  replica_->Terminate();
  EXPECT_TRUE(EndsWithDraining(idle));
  sender.join();
  // Who still sends may find the connection closed before it has read that.
  EXPECT_EQ(busy.End().error_code(), grpc::StatusCode::UNAVAILABLE);
  // gRPC's client sees the connection's end only while somebody waits.
  replica_->channel()->WaitForStateChange(
      GRPC_CHANNEL_READY, std::chrono::system_clock::now() + seconds(20));
  EXPECT_EQ(Require(replica_->WaitForExit()).code, 0) << replica_->Log();
  EXPECT_LT(steady_clock::now() - begin, seconds(20));
  // What was read was decided, or refused for the server's end.
  std::uint64_t answered = 0;
  for (std::uint64_t id = 1; id <= sent + 1; ++id) {
    for (const v1::Result& result : busy.Of(id)) {
      ++answered;
      EXPECT_TRUE(result.claim().has_claimed() ||
                  IsRefusal(StatusOf(result), PushbackIn(StatusOf(result)),
                            grpc::StatusCode::UNAVAILABLE, kDrained))
          << result.ShortDebugString();
    }
  }
  EXPECT_EQ(answered, busy.count());
}

TEST_F(BulkBoundsTest, StreamThatHasLivedLongEnoughEndsByItself) {
  Start({"--max_connection_age=1s"});
  const auto begin = steady_clock::now();
  BulkCaller caller(replica_->stub());
  ASSERT_TRUE(caller.Send({CommandOf(1, ClaimOf(RandomKey()))}));
  EXPECT_TRUE(EndsWithDraining(caller));
  EXPECT_EQ(caller.count(), 1u);
  EXPECT_GE(steady_clock::now() - begin, milliseconds(850));
  EXPECT_LE(steady_clock::now() - begin, seconds(20));
}

TEST_F(BulkBoundsTest, StreamThatEndsKeepsNoClaimWaiting) {
  Start({"--max_connection_age=1s"});
  const v1::ClaimRequest owner = ClaimOf(RandomKey());
  ASSERT_EQ(Decided(Send(replica_->stub(), owner)), "Claimed");
  v1::ClaimRequest waiting = ByAnother(owner);
  waiting.mutable_wait()->set_seconds(40);
  const auto begin = steady_clock::now();
  BulkCaller caller(replica_->stub());
  ASSERT_TRUE(caller.Send({CommandOf(1, waiting)}));
  EXPECT_TRUE(EndsWithDraining(caller));
  EXPECT_LT(steady_clock::now() - begin, seconds(20));
  EXPECT_TRUE(caller.AwaitResult(1).claim().has_in_progress());
}

}  // namespace
}  // namespace idempotency
