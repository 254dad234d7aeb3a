// The unary calls without a gRPC server: what reaches the engine, and what
// becomes of its answers.
#include "server/rpc/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/core/digest.h"
#include "server/core/errors.h"
#include "server/rpc/wire_calls.h"
#include "tests/unit/grpc_sides.h"
#include "tests/unit/service_fixture.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// One call, as gRPC would make it.
template <typename Request, typename Response>
struct TestCall {
  Request request{};
  Response response{};
  grpc::CallbackServerContext context{};
  UnarySide grpc{};

  bool done() const { return grpc.done(); }
  const grpc::Status& status() const { return grpc.status(); }
};
using ClaimTestCall = TestCall<v1::ClaimRequest, v1::ClaimResponse>;
using FinalizeTestCall = TestCall<v1::FinalizeRequest, v1::FinalizeResponse>;
using LookupTestCall = TestCall<v1::LookupRequest, v1::LookupResponse>;
using ReleaseTestCall = TestCall<v1::ReleaseRequest, v1::ReleaseResponse>;

class ServiceTest : public ServiceFixture {
 protected:
  void Claim(ClaimTestCall& call, const std::string& key = "k") {
    SetClaim(key, call.request);
    call.grpc.Bind(service_->Start<ClaimWire>(&call.context, &call.request,
                                              &call.response));
  }
  void Finalize(FinalizeTestCall& call) {
    call.request.set_scope("payments");
    call.request.set_key("k");
    call.request.set_claim_token(kToken);
    call.request.mutable_response()->set_status_code(201);
    call.request.mutable_response()->set_body("paid");
    call.grpc.Bind(service_->Start<FinalizeWire>(&call.context, &call.request,
                                                 &call.response));
  }
  void Lookup(LookupTestCall& call) {
    call.request.set_scope("payments");
    call.request.set_key("k");
    call.grpc.Bind(service_->Start<LookupWire>(&call.context, &call.request,
                                               &call.response));
  }
  void Release(ReleaseTestCall& call) {
    call.request.set_scope("payments");
    call.request.set_key("k");
    call.request.set_claim_token(kToken);
    call.request.set_disposition(
        v1::ReleaseRequest::DISPOSITION_NEVER_EXECUTED);
    call.grpc.Bind(service_->Start<ReleaseWire>(&call.context, &call.request,
                                                &call.response));
  }
};

TEST_F(ServiceTest, ClaimIsAnsweredWhenTheLaneHasRunAndNotBefore) {
  ClaimTestCall call;
  Claim(call);
  EXPECT_FALSE(call.done());
  RunLanes();
  ASSERT_TRUE(call.done());
  EXPECT_TRUE(call.status().ok()) << call.status().error_message();
  EXPECT_EQ(call.response.claimed().attempt(), 1);
  EXPECT_EQ(call.response.claimed().lease().seconds(), 30);
}

TEST_F(ServiceTest, DownstreamKeyComesFromTheDatabasesNamespace) {
  ClaimTestCall call;
  Claim(call);
  RunLanes();
  EXPECT_EQ(call.response.claimed().downstream_key(),
            DownstreamKey(namespace_, {.scope = "payments", .key = "k"}, 0));
}

TEST_F(ServiceTest, DownstreamKeyComesFromTheSettingWhereThereIsOne) {
  const Uuid other = *ParseUuid(kToken);
  Restart({.downstream_namespace = other});
  ClaimTestCall call;
  Claim(call);
  RunLanes();
  EXPECT_EQ(call.response.claimed().downstream_key(),
            DownstreamKey(other, {.scope = "payments", .key = "k"}, 0));
}

TEST_F(ServiceTest, FinalizeIsCarriedOutAndAnswered) {
  FinalizeTestCall call;
  Finalize(call);
  RunLanes();
  ASSERT_TRUE(call.done());
  EXPECT_TRUE(call.status().ok());
  EXPECT_EQ(call.response.result(), v1::FinalizeResponse::RESULT_RECORDED);
  ASSERT_THAT(script_.finalizes, SizeIs(1));
  EXPECT_EQ(script_.finalizes[0].response.body, "paid");
}

TEST_F(ServiceTest, BodyLimitIsASetting) {
  Restart({.body_bytes_max = 3});
  FinalizeTestCall call;
  Finalize(call);
  RunLanes();
  ASSERT_THAT(script_.finalizes, SizeIs(1));
  EXPECT_TRUE(script_.finalizes[0].response.body_omitted);
}

TEST_F(ServiceTest, LookupIsAnswered) {
  script_.record.attempt = 7;
  script_.record.freed_count = 2;
  script_.record.lease_expires_at = absl::InfiniteFuture();
  LookupTestCall call;
  Lookup(call);
  RunLanes();
  ASSERT_TRUE(call.done());
  EXPECT_TRUE(call.status().ok());
  EXPECT_EQ(call.response.record().attempt(), 7);
  EXPECT_EQ(call.response.record().state(), v1::Record::STATE_IN_PROGRESS);
  EXPECT_EQ(call.response.record().downstream_key(),
            DownstreamKey(namespace_, {.scope = "payments", .key = "k"}, 2));
}

TEST_F(ServiceTest, ReleaseIsCarriedOutAndAnswered) {
  ReleaseTestCall call;
  Release(call);
  RunLanes();
  ASSERT_TRUE(call.done());
  EXPECT_TRUE(call.status().ok());
  EXPECT_TRUE(call.response.released());
  ASSERT_THAT(script_.releases, SizeIs(1));
  EXPECT_EQ(script_.releases[0].disposition, Disposition::kNeverExecuted);
}

TEST_F(ServiceTest, BadInputIsRefusedAtOnceAndReachesNoLane) {
  ClaimTestCall claim;
  claim.grpc.Bind(service_->Start<ClaimWire>(&claim.context, &claim.request,
                                             &claim.response));
  FinalizeTestCall finalize;
  finalize.grpc.Bind(service_->Start<FinalizeWire>(
      &finalize.context, &finalize.request, &finalize.response));
  LookupTestCall lookup;
  lookup.grpc.Bind(service_->Start<LookupWire>(&lookup.context, &lookup.request,
                                               &lookup.response));
  ReleaseTestCall release;
  release.grpc.Bind(service_->Start<ReleaseWire>(
      &release.context, &release.request, &release.response));
  for (const grpc::Status& status :
       {claim.status(), finalize.status(), lookup.status(), release.status()}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("scope"));
  }
  EXPECT_TRUE(engine_->idle());
  RunLanes();
  EXPECT_EQ(script_.items, 0);
}

TEST_F(ServiceTest, DecisionsOfTheEngineKeepTheirReason) {
  script_.failure = MakeError(Reason::kClaimSuperseded, "too late");
  FinalizeTestCall call;
  Finalize(call);
  RunLanes();
  ASSERT_TRUE(call.done());
  EXPECT_EQ(call.status().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(call.status().error_message(), "too late");
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(details.ParseFromString(call.status().error_details()));
  ASSERT_EQ(details.details_size(), 1);
  ASSERT_TRUE(details.details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "CLAIM_SUPERSEDED");
  EXPECT_THAT(log_.lines(), IsEmpty());
}

TEST_F(ServiceTest, WhatIsBrokenIsToldToTheLogAndNotToTheCaller) {
  script_.failure = absl::InternalError("SECRET");
  ReleaseTestCall call;
  Release(call);
  RunLanes();
  ASSERT_TRUE(call.done());
  EXPECT_EQ(call.status().error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(call.status().error_message(), Not(HasSubstr("SECRET")));
  EXPECT_THAT(call.status().error_details(), Not(HasSubstr("SECRET")));
  ASSERT_THAT(log_.lines(), Not(IsEmpty()));
  EXPECT_THAT(log_.lines().front(), HasSubstr("SECRET"));
}

TEST_F(ServiceTest, CorruptRecordIsDataLossAndToldToTheLog) {
  script_.record.state = RecordState::kFinal;
  script_.record.response.headers = "x";
  LookupTestCall call;
  Lookup(call);
  RunLanes();
  ASSERT_TRUE(call.done());
  EXPECT_EQ(call.status().error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_THAT(log_.lines(), SizeIs(1));
}

TEST_F(ServiceTest, CallWithoutDeadlineIsGivenUpAfterTheSetting) {
  Restart({.deadline_max = seconds(10)});
  ClaimTestCall late;
  ClaimTestCall in_time;
  Claim(late, "late");
  clock_.Advance(milliseconds(1));
  Claim(in_time, "in-time");
  clock_.Advance(seconds(10) - milliseconds(1));
  RunLanes();
  EXPECT_EQ(late.status().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(in_time.status().ok());
  EXPECT_EQ(script_.items, 1) << "the late one must not reach the store";
}

TEST_F(ServiceTest, WaitIsAddedToTheTimeACallMayTake) {
  Restart({.deadline_max = seconds(10)});
  ClaimTestCall waiting;
  waiting.request.mutable_wait()->set_seconds(3600);
  Claim(waiting);
  clock_.Advance(seconds(70) - milliseconds(1));
  RunLanes();
  EXPECT_TRUE(waiting.status().ok()) << waiting.status().error_message();

  ClaimTestCall late;
  late.request.mutable_wait()->set_seconds(3600);
  Claim(late);
  clock_.Advance(seconds(70));
  RunLanes();
  EXPECT_EQ(late.status().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(ServiceTest, RecordedResponsesNobodyReadsAreHeldWithinTheBudget) {
  Restart({.reply_bytes_max = 16 << 20});
  Record(std::string(1 << 20, 'b'));
  // Each counts twice: as the message, and as gRPC keeps it to send.
  std::list<LookupTestCall> unread(9);
  for (LookupTestCall& call : unread) {
    call.grpc.HoldBack();
    Lookup(call);
  }
  RunLanesDry();
  int answered = 0;
  for (LookupTestCall& call : unread) {
    ASSERT_TRUE(call.grpc.finished());
    if (call.status().ok()) {
      ++answered;
    } else {
      EXPECT_EQ(call.status().error_code(), grpc::StatusCode::UNAVAILABLE);
    }
  }
  EXPECT_EQ(answered, 8);
  EXPECT_EQ(metrics_.Of(CallKind::kLookup).refused[Reason::kOverloaded], 1u);

  // What shows no response needs no room.
  ClaimTestCall claim;
  Claim(claim);
  RunLanes();
  EXPECT_TRUE(claim.status().ok());

  for (LookupTestCall& call : unread) call.grpc.Send();
  EXPECT_EQ(metrics_.reply_bytes, 0u);
  LookupTestCall again;
  Lookup(again);
  RunLanes();
  EXPECT_TRUE(again.status().ok());
}

TEST_F(ServiceTest, DrainingEngineRefusesAtOnce) {
  engine_->StopAccepting();
  ClaimTestCall call;
  Claim(call);
  ASSERT_TRUE(call.done());
  EXPECT_EQ(call.status().error_code(), grpc::StatusCode::UNAVAILABLE);
}

// Gives the thread sanitizer the threads that a server has: gRPC's, which
// call, and the lane's, which answers.
TEST_F(ServiceTest, ManyThreadsAreEachAnsweredOnce) {
  constexpr int kThreads = 4;
  constexpr int kCalls = 200;
  std::vector<std::thread> lanes;
  for (Lane* lane : engine_->lanes()) {
    lanes.emplace_back([lane] {
      while (lane->WaitForWork()) lane->RunBatch();
      lane->RunBatch();
    });
  }
  std::atomic<int> granted{0};
  std::vector<std::thread> callers;
  for (int thread = 0; thread < kThreads; ++thread) {
    callers.emplace_back([&, thread] {
      for (int i = 0; i < kCalls; ++i) {
        ClaimTestCall call;
        Claim(call, std::to_string(thread) + "-" + std::to_string(i));
        while (!call.done()) std::this_thread::yield();
        if (call.status().ok() && call.response.has_claimed()) ++granted;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  engine_->Stop();
  for (std::thread& lane : lanes) lane.join();
  EXPECT_EQ(granted, kThreads * kCalls);
  EXPECT_EQ(script_.items, kThreads * kCalls);
}

}  // namespace
}  // namespace idempotency
