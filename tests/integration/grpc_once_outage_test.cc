// gRPC services that execute once while the coordinator is away, beside each
// other on one record, and as the README shows them.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/integration/fault_calls.h"
#include "tests/integration/grpc_once_fixture.h"
#include "tests/support/port.h"
#include "tests/support/tcp_gate.h"

namespace idempotency {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// -------------------------------------------------------------- no coordinator

// What the README's example has around it.
namespace shop = tests;
struct ReadmeWallet {
  grpc::Status Charge(const shop::ChargeRequest&, const std::string&,
                      shop::ChargeReply*) {
    ADD_FAILURE() << "it was charged";
    return grpc::Status::OK;
  }
  ResolverResult Find(const std::string&, shop::ChargeReply*) {
    return NeverExecuted{};
  }
} wallet;
#include "grpc_readme.inc"

TEST(GrpcReadmeTest, TheExampleAsksForAKey) {
  PaymentsService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();

  EXPECT_EQ(ChargeAt(port, {}).reason(), "KEY_MISSING");
}

class GrpcOnceOutageTest : public GrpcOnceTest {
 protected:
  std::unique_ptr<Shop> OpenWithoutCoordinator(Wallet wallet, bool fail_open) {
    OnceRule rule = ARule();
    rule.fail_open = fail_open;
    rule.claim_timeout = milliseconds(300);
    rule.notice = [this](std::string_view method, const RunResult& result) {
      notices_.push_back(std::string(method) + ": " +
                         std::string(NameOf(result.outcome)));
    };
    return Shop::Open(
        GetParam(),
        RunOnce::Connect("127.0.0.1:" + std::to_string(FreePort()),
                         {.finish_timeout = milliseconds(100)}),
        {.rule = rule, .wallet = std::move(wallet)});
  }

  // Before the caller is answered.
  std::vector<std::string> notices_;

  static ChargeAnswer Ask(const Shop& shop) {
    return ChargeAt(shop.port(), {{kKeyMetadata, NewKey()}});
  }
};

INSTANTIATE_TEST_SUITE_P(Ways, GrpcOnceOutageTest, EachWay(), WayName);

TEST_P(GrpcOnceOutageTest, WithoutACoordinatorNobodyIsCharged) {
  const auto shop = OpenWithoutCoordinator(MustNotCharge, false);

  const ChargeAnswer answer = Ask(*shop);

  EXPECT_EQ(answer.status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(answer.reason(), "UNAVAILABLE");
  EXPECT_THAT(notices_, ElementsAre(AllOf(HasSubstr("Unavailable"),
                                          HasSubstr(kChargePath))));
}

TEST_P(GrpcOnceOutageTest, WithoutACoordinatorItRunsWhereTheRuleFailsOpen) {
  const auto shop = OpenWithoutCoordinator(
      [](const Attempt& attempt, auto&) {
        EXPECT_EQ(attempt.number, 0);
        return Charged{.payment = "unprotected"};
      },
      true);

  const ChargeAnswer answer = Ask(*shop);

  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.reply.payment(), "unprotected");
}

// The sender goes on.
TEST_P(GrpcOnceOutageTest, WhoseAnswerCannotBeRecordedInTimeGetsItAllTheSame) {
  const auto gate = Require(TcpGate::Make(replica().port()));
  OnceRule rule = ARule();
  rule.finalize_timeout = milliseconds(300);
  const std::shared_ptr<RunOnce> once =
      RunOnce::Connect("127.0.0.1:" + std::to_string(gate->port()));
  const auto shop =
      Shop::Open(GetParam(), once, {.rule = rule, .wallet = [&](auto&, auto&) {
                                      gate->BlackHole();
                                      return Charged{.payment = "paid"};
                                    }});
  const std::string key = NewKey();

  const ChargeAnswer first = ChargeOnce(shop->port(), key);
  EXPECT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_EQ(first.reply.payment(), "paid");
  EXPECT_EQ(RecordAt(key).state(), v1::Record::STATE_IN_PROGRESS);
  gate->Open();
  gate->CutAll();

  WaitUntil([&] { return once->operations() == 0; });
  const ChargeAnswer second = ChargeOnce(shop->port(), key);
  EXPECT_EQ(second.reply.payment(), "paid");
  EXPECT_TRUE(second.replayed());
}

// ------------------------------------------------------------- from way to way

class GrpcWaysTest : public RunOnceTest {};

std::string BytesAt(int port, const std::string& key) {
  grpc::GenericStub stub(ChannelTo(port));
  grpc::ClientContext context;
  context.AddMetadata(kKeyMetadata, key);
  const std::string request = AnOrder().SerializeAsString();
  const grpc::Slice slice(request);
  grpc::ByteBuffer sent(&slice, 1);
  grpc::ByteBuffer received;
  absl::Notification done;
  grpc::Status status;
  stub.UnaryCall(&context, kChargePath, {}, &sent, &received,
                 [&](const grpc::Status& ended) {
                   status = ended;
                   done.Notify();
                 });
  done.WaitForNotification();
  EXPECT_TRUE(status.ok()) << status.error_message();
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(received.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& part : slices) {
    bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  return bytes;
}

TEST_F(GrpcWaysTest, WhatOneWayRecordsEachReplaysAsTheSameMessage) {
  const std::shared_ptr<RunOnce> once = RunOnce::Connect(replica().target());
  std::atomic<int> charges{0};
  std::vector<std::unique_ptr<Shop>> shops;
  for (const Way way : {Way::kSync, Way::kCallback, Way::kProxy}) {
    shops.push_back(Shop::Open(
        way, once, {.rule = ARule(), .wallet = [&](auto&, auto&) {
                      ++charges;
                      return Charged{.receipt = std::string("\0\n\xff", 3)};
                    }}));
  }

  for (const auto& first : shops) {
    const std::string key = NewKey();
    const std::string bytes = BytesAt(first->port(), key);
    EXPECT_FALSE(bytes.empty());
    for (const auto& next : shops) {
      EXPECT_EQ(BytesAt(next->port(), key), bytes);
    }
  }
  EXPECT_EQ(charges, 3);
}

}  // namespace
}  // namespace idempotency
