// The sidecar's gRPC half before a service that knows nothing of keys: what
// goes through, and what the service and the sidecar do to each other.
#include "client/proxy/grpc_proxy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/integration/fault_calls.h"
#include "tests/integration/grpc_shop.h"
#include "tests/integration/once_fixture.h"
#include "tests/support/port.h"
#include "tests/support/tcp_gate.h"

namespace idempotency {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Key;
using testing::Not;
using testing::Pair;

std::string LoopbackAt(int port) { return "127.0.0.1:" + std::to_string(port); }

class GrpcProxyTest : public RunOnceTest {
 protected:
  void SetUp() override {
    shop_ = std::make_unique<PlainShop>(
        [this](const Attempt& attempt, const tests::ChargeRequest& request) {
          return wallet_ ? wallet_(attempt, request) : Charged{};
        });
    gate_ = Require(TcpGate::Make(shop_->port()));
    proxy_ = StartProxy({.upstream = LoopbackAt(gate_->port())});
    stub_ = tests::Payments::NewStub(ChannelTo(proxy_->port()));
  }

  static GrpcRoute ARoute(const std::string& policy = "default") {
    return {
        .methods = kChargePath,
        .rule = {.scope = kScope, .policy = policy, .wait = milliseconds(0)}};
  }
  std::unique_ptr<GrpcProxy> StartProxy(const GrpcProxyOptions& options) {
    return Require(GrpcProxy::Start(options, {ARoute()}, service_once_));
  }
  void SetRoute(GrpcRoute route) {
    RequireOk(proxy_->SetRoutes({std::move(route)}));
  }
  ChargeAnswer Charge(const std::string& key) {
    return ChargeOnce(proxy_->port(), key);
  }
  static v1::Record RecordAt(const std::string& key) {
    Operation operation = AnOperation();
    operation.key = key;
    return RecordOf(operation);
  }

  const std::shared_ptr<RunOnce> service_once_ =
      RunOnce::Connect(replica().target());
  Wallet wallet_;
  std::unique_ptr<PlainShop> shop_;
  std::unique_ptr<TcpGate> gate_;
  std::unique_ptr<GrpcProxy> proxy_;
  std::unique_ptr<tests::Payments::Stub> stub_;
};

tests::ChargeRequest OrderOf(const std::string& order) {
  tests::ChargeRequest request;
  request.set_order(order);
  return request;
}

// ----------------------------------------------------------- what goes through

TEST_F(GrpcProxyTest, AConversationGoesThroughBothWays) {
  grpc::ClientContext context;
  context.AddMetadata("x-trace", "t1");
  context.AddMetadata("x-proof-bin", std::string("\0\xfe", 2));
  // A caller's own word on these is nobody's.
  context.AddMetadata("idempotency-attempt", "7");
  context.AddMetadata("idempotency-abandoned", "attempt=6");
  const auto stream = stub_->Talk(&context);
  stream->WaitForInitialMetadata();
  EXPECT_THAT(CopyOf(context.GetServerInitialMetadata()),
              AllOf(Contains(Pair("x-trace", "t1")),
                    Contains(Pair("x-proof-bin", std::string("\0\xfe", 2)))));

  tests::ChargeReply reply;
  for (const std::string order : {"a", "b", "c"}) {
    ASSERT_TRUE(stream->Write(OrderOf(order)));
    ASSERT_TRUE(stream->Read(&reply));
    EXPECT_EQ(reply.payment(), "charge for " + order);
  }
  EXPECT_TRUE(stream->WritesDone());
  EXPECT_FALSE(stream->Read(&reply));
  const grpc::Status status = stream->Finish();

  EXPECT_EQ(status.error_code(), StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(status.error_message(), "enough");
  EXPECT_EQ(status.error_details(), "its details");
  const auto trailers = CopyOf(context.GetServerTrailingMetadata());
  EXPECT_THAT(trailers, Contains(Pair("echo-x-trace", "t1")));
  EXPECT_THAT(trailers, Not(Contains(Key("echo-idempotency-attempt"))));
  EXPECT_THAT(trailers, Not(Contains(Key("echo-idempotency-abandoned"))));
}

TEST_F(GrpcProxyTest, TheServiceMayEndWhileItsCallerStillTalks) {
  grpc::ClientContext context;
  const auto stream = stub_->Talk(&context);
  tests::ChargeRequest last;
  last.set_amount(-1);
  ASSERT_TRUE(stream->Write(last));

  tests::ChargeReply reply;
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::OUT_OF_RANGE);
}

TEST_F(GrpcProxyTest, ACallWithoutAKeyWhereNoneIsRequiredGoesThrough) {
  GrpcRoute route = ARoute();
  route.rule.required = false;
  SetRoute(route);

  const ChargeAnswer answer = ChargeAt(proxy_->port(), {});

  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_THAT(answer.initial_metadata, Contains(Pair("x-first", "hello")));
}

TEST_F(GrpcProxyTest, AKeyOfAMethodWithoutARouteIsTheServicesBusiness) {
  std::atomic<int> charges{0};
  wallet_ = [&](const Attempt& attempt, auto&) {
    ++charges;
    EXPECT_EQ(attempt.number, 0);
    return Charged{};
  };
  RequireOk(proxy_->SetRoutes({}));
  const std::string key = NewKey();

  EXPECT_TRUE(Charge(key).status.ok());
  EXPECT_TRUE(Charge(key).status.ok());
  EXPECT_EQ(charges, 2);
}

TEST_F(GrpcProxyTest, CancellationAndDeadlineReachTheService) {
  tests::ChargeReply reply;
  grpc::ClientContext cancelled;
  const auto stream = stub_->Watch(&cancelled, OrderOf("w"));
  WaitUntil([&] { return shop_->watches_begun() == 1; });
  cancelled.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::CANCELLED);
  WaitUntil([&] { return shop_->watches_ended() == 1; });

  grpc::ClientContext limited;
  limited.set_deadline(std::chrono::system_clock::now() + milliseconds(300));
  const auto second = stub_->Watch(&limited, OrderOf("w"));
  EXPECT_FALSE(second->Read(&reply));
  EXPECT_EQ(second->Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
  // It may never have got there.
  WaitUntil([&] { return shop_->watches_begun() == shop_->watches_ended(); });
}

TEST_F(GrpcProxyTest, AStreamThatBreaksOffDoesNotEndForTheService) {
  for (int i = 1; i <= 100; ++i) {
    grpc::ClientContext context;
    const auto stream = stub_->Talk(&context);
    tests::ChargeReply reply;
    ASSERT_TRUE(stream->Write(OrderOf("a")));
    ASSERT_TRUE(stream->Read(&reply));
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), StatusCode::CANCELLED);
    WaitUntil([&] { return shop_->talks_ended() == i; });
  }
  EXPECT_EQ(shop_->talks_ended_by_their_caller(), 0);
}

// 64 messages of 1 MiB: without flow control they would all be taken.
TEST_F(GrpcProxyTest, WhoDoesNotReadHoldsTheServiceBack) {
  constexpr int kMessages = 64;
  grpc::ClientContext context;
  tests::ChargeRequest request;
  request.set_amount(kMessages);
  const auto stream = stub_->Watch(&context, request);
  tests::ChargeReply reply;
  ASSERT_TRUE(stream->Read(&reply));

  const auto end = std::chrono::steady_clock::now() + milliseconds(500);
  while (std::chrono::steady_clock::now() < end) {
    ASSERT_LT(shop_->watch_messages(), kMessages / 2);
    std::this_thread::sleep_for(milliseconds(10));
  }
  int read = 1;
  while (stream->Read(&reply)) ++read;

  EXPECT_EQ(read, kMessages);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(GrpcProxyTest, AServiceThatIsNotThereIsUnavailable) {
  gate_->Refuse();
  gate_->CutAll();

  grpc::ClientContext context;
  tests::ChargeReply reply;
  const auto stream = stub_->Watch(&context, OrderOf("w"));
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(GrpcProxyTest, MoreCallsThanAllowedAreRefused) {
  const auto small =
      StartProxy({.upstream = LoopbackAt(shop_->port()), .calls_max = 1});
  const auto stub = tests::Payments::NewStub(ChannelTo(small->port()));
  grpc::ClientContext context;
  const auto stream = stub->Talk(&context);
  stream->WaitForInitialMetadata();

  const ChargeAnswer answer = ChargeOnce(small->port(), NewKey());
  EXPECT_EQ(answer.status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(answer.reason(), "OVERLOADED");

  stream->WritesDone();
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::OUT_OF_RANGE);
  WaitUntil([&] { return ChargeOnce(small->port(), NewKey()).status.ok(); });
}

// ------------------------------------------------------------ calls with a key

TEST_F(GrpcProxyTest, TheServicesOwnMetadataReachesTheFirstCaller) {
  const std::string key = NewKey();

  EXPECT_THAT(Charge(key).initial_metadata, Contains(Pair("x-first", "hello")));
  EXPECT_TRUE(Charge(key).replayed());
}

TEST_F(GrpcProxyTest, AServiceThatDiesUnderwayLeavesTheOutcomeUnknown) {
  std::vector<Attempt> attempts;
  wallet_ = [&](const Attempt& attempt, auto&) {
    attempts.push_back(attempt);
    if (attempts.size() == 1) gate_->CutAll();
    return Charged{};
  };
  std::vector<absl::Status> noticed;
  GrpcRoute route = ARoute();
  route.rule.notice = [&](auto, const RunResult& result) {
    if (result.outcome == RunOutcome::kUnknown) {
      noticed.push_back(result.status);
    }
  };
  SetRoute(route);
  const std::string key = NewKey();

  const ChargeAnswer first = Charge(key);
  EXPECT_EQ(first.status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(first.reason(), "OUTCOME_UNKNOWN");
  // What gRPC says may name the service's address.
  EXPECT_THAT(first.status.error_message(),
              HasSubstr("lost sight of the call"));
  ASSERT_EQ(noticed.size(), 1u);
  EXPECT_EQ(noticed[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(noticed[0].message()),
              Not(HasSubstr("lost sight of the call")));

  WaitUntil([&] { return Charge(key).status.ok(); });
  ASSERT_EQ(attempts.size(), 2u);
  EXPECT_THAT(attempts[1].abandoned, HasSubstr("reason=outcome-unknown"));
}

TEST_F(GrpcProxyTest, APaymentWhoseServiceDiedIsHeld) {
  SetRoute(ARoute("payment"));
  wallet_ = [&](auto&, auto&) {
    gate_->CutAll();
    return Charged{};
  };
  const std::string key = NewKey();

  EXPECT_EQ(Charge(key).status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(Charge(key).reason(), "IN_DOUBT");
}

TEST_F(GrpcProxyTest, WithoutAConnectionNothingHappened) {
  SetRoute(ARoute("payment"));
  std::vector<Attempt> attempts;
  wallet_ = [&](const Attempt& attempt, auto&) {
    attempts.push_back(attempt);
    return Charged{};
  };
  const std::string key = NewKey();
  gate_->Refuse();
  gate_->CutAll();

  const ChargeAnswer first = Charge(key);
  EXPECT_EQ(first.status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(first.reason(), "UPSTREAM_UNAVAILABLE");
  EXPECT_EQ(RecordAt(key).state(), v1::Record::STATE_RELEASED);
  gate_->Open();

  // The connection comes back in its own time.
  WaitUntil([&] { return Charge(key).status.ok(); });
  ASSERT_EQ(attempts.size(), 1u);
  EXPECT_EQ(attempts[0].abandoned, "");
}

TEST_F(GrpcProxyTest, AServiceThatTakesTooLongLeavesTheOutcomeUnknown) {
  // The service still has it when the test is over.
  const auto caller_told = std::make_shared<absl::Notification>();
  wallet_ = [caller_told](auto&, auto&) {
    caller_told->WaitForNotification();
    return Charged{};
  };
  GrpcRoute route = ARoute("payment");
  route.timeout = milliseconds(300);
  SetRoute(route);
  const std::string key = NewKey();

  EXPECT_EQ(Charge(key).status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(Charge(key).reason(), "IN_DOUBT");
  caller_told->Notify();
}

TEST_F(GrpcProxyTest, AReplyOverTheLimitIsNotTakenForARefusal) {
  const auto small = StartProxy(
      {.upstream = LoopbackAt(shop_->port()), .response_bytes_max = 1000});
  wallet_ = [&](const Attempt& attempt, auto&) {
    return Charged{.receipt = std::string(attempt.number == 1 ? 2000 : 1, 'r'),
                   .trailers = {{"x-wallet", "w1"}}};
  };
  const std::string key = NewKey();

  EXPECT_EQ(ChargeOnce(small->port(), key).status.error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
  const ChargeAnswer second = ChargeOnce(small->port(), key);
  EXPECT_TRUE(second.status.ok()) << second.status.error_message();
}

TEST_F(GrpcProxyTest, AStreamWithAKeyIsRefusedBeforeTheServiceIsAsked) {
  GrpcRoute route = ARoute();
  route.methods = "/idempotency.tests.Payments/*";
  SetRoute(route);

  grpc::ClientContext two;
  two.AddMetadata(kKeyMetadata, NewKey());
  const auto stream = stub_->Talk(&two);
  stream->Write(OrderOf("a"));
  stream->Write(OrderOf("b"));
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::INVALID_ARGUMENT);

  grpc::ClientContext none;
  none.AddMetadata(kKeyMetadata, NewKey());
  const auto empty = stub_->Talk(&none);
  empty->WritesDone();
  EXPECT_EQ(empty->Finish().error_code(), StatusCode::INVALID_ARGUMENT);
}

// ------------------------------------------------------------- routes and ends

TEST_F(GrpcProxyTest, TheRouteThatSaysMostCounts) {
  const auto route = [](const std::string& methods, const std::string& scope) {
    return GrpcRoute{.methods = methods, .rule = {.scope = scope}};
  };
  const auto scope_of_next = [&] {
    const std::string key = NewKey();
    EXPECT_TRUE(Charge(key).status.ok());
    return Sql("SELECT scope FROM idempotency_records WHERE key = '" + key +
               "'");
  };

  RequireOk(proxy_->SetRoutes({route("/*", "all"),
                               route("/idempotency.tests.Payments/*", "some"),
                               route(kChargePath, "one")}));
  EXPECT_THAT(scope_of_next(), HasSubstr("one"));
  RequireOk(proxy_->SetRoutes(
      {route("/*", "all"), route("/idempotency.tests.Payments/*", "some")}));
  EXPECT_THAT(scope_of_next(), HasSubstr("some"));
  SetRoute(route("/*", "all"));
  EXPECT_THAT(scope_of_next(), HasSubstr("all"));
}

TEST_F(GrpcProxyTest, RoutesThatSayNothingSensibleAreRefused) {
  for (const char* methods :
       {"", "Charge", "/a", "/a/b/c", "/a/", "/a*", "/a/b*", "/*/b"}) {
    GrpcRoute route = ARoute();
    route.methods = methods;
    EXPECT_FALSE(proxy_->SetRoutes({route}).ok()) << methods;
  }
  EXPECT_FALSE(proxy_->SetRoutes({ARoute(), ARoute()}).ok());
  GrpcRoute without_scope = ARoute();
  without_scope.rule.scope = "";
  EXPECT_FALSE(proxy_->SetRoutes({without_scope}).ok());
  GrpcRoute without_time = ARoute();
  without_time.timeout = milliseconds(0);
  EXPECT_FALSE(proxy_->SetRoutes({without_time}).ok());

  EXPECT_TRUE(Charge(NewKey()).status.ok());
}

TEST_F(GrpcProxyTest, APortThatIsTakenIsAnError) {
  const auto second = GrpcProxy::Start(
      {.listen = LoopbackAt(proxy_->port()), .upstream = "127.0.0.1:1"}, {},
      service_once_);

  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(GrpcProxyTest, ADrainLetsCallsEnd) {
  absl::Notification charging;
  wallet_ = [&](auto&, auto&) {
    charging.Notify();
    std::this_thread::sleep_for(milliseconds(200));
    return Charged{};
  };
  ChargeAnswer answer;
  std::jthread caller([&] { answer = Charge(NewKey()); });
  charging.WaitForNotification();

  proxy_->Drain(seconds(10));
  caller.join();

  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
}

TEST_F(GrpcProxyTest, WhatADrainCutsOffIsUnknownAndSettled) {
  absl::Notification charging;
  const auto drained = std::make_shared<absl::Notification>();
  wallet_ = [&charging, drained](auto&, auto&) {
    charging.Notify();
    drained->WaitForNotification();
    return Charged{};
  };
  SetRoute(ARoute("payment"));
  const std::string key = NewKey();
  ChargeAnswer answer;
  std::jthread caller([&] { answer = Charge(key); });
  charging.WaitForNotification();

  proxy_->Drain(milliseconds(100));
  drained->Notify();
  caller.join();

  EXPECT_FALSE(answer.status.ok());
  WaitUntil([&] { return service_once_->operations() == 0; });
  EXPECT_EQ(RecordAt(key).state(), v1::Record::STATE_IN_DOUBT);
}

}  // namespace
}  // namespace idempotency
