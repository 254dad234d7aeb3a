// The service over a real engine and a store that the test scripts, without a
// gRPC server: what reaches the engine, and what becomes of its answers.
#include "server/rpc/service.h"

#include <gmock/gmock.h>
#include <grpcpp/test/default_reactor_test_peer.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/core/digest.h"
#include "server/core/errors.h"
#include "tests/support/manual_clock.h"
#include "tests/support/memory_log.h"
#include "tests/support/scripted_store.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

const Uuid kNamespace = *ParseUuid("6ba7b810-9dad-11d1-80b4-00c04fd430c8");
constexpr char kToken[] = "0f8fad5b-d9cb-469f-a165-70867728950e";

// One call, as gRPC would make it.
template <typename Request, typename Response>
struct TestCall {
  Request request{};
  Response response{};
  grpc::CallbackServerContext context{};
  std::atomic<int> finished{0};
  grpc::Status status{};
  grpc::testing::DefaultReactorTestPeer peer{&context,
                                             [this](grpc::Status given) {
                                               status = std::move(given);
                                               ++finished;
                                             }};
};
using ClaimTestCall = TestCall<v1::ClaimRequest, v1::ClaimResponse>;
using FinalizeTestCall = TestCall<v1::FinalizeRequest, v1::FinalizeResponse>;
using LookupTestCall = TestCall<v1::LookupRequest, v1::LookupResponse>;
using ReleaseTestCall = TestCall<v1::ReleaseRequest, v1::ReleaseResponse>;

void SetClaim(const std::string& key, v1::ClaimRequest& request) {
  request.set_scope("payments");
  request.set_key(key);
  request.set_request_hash(std::string(32, 'h'));
  request.set_claim_token(kToken);
}

class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest() {
    script_.rules = OnePolicy(kNamespace);
    std::vector<std::unique_ptr<Store>> stores;
    stores.push_back(std::make_unique<YesStore>(script_));
    engine_ = std::make_unique<Engine>(LaneOptions{}, clock_, rules_, metrics_,
                                       log_, std::move(stores),
                                       std::make_unique<YesStore>(script_));
    Restart({});
  }

  void Restart(const ServiceOptions& options) {
    service_ = std::make_unique<Service>(
        options, ServiceParts{.engine = *engine_,
                              .rules = rules_,
                              .clock = clock_,
                              .log = log_,
                              .metrics = metrics_,
                              .random = [] { return 0.5; }});
  }

  void Claim(ClaimTestCall& call, const std::string& key = "k") {
    SetClaim(key, call.request);
    service_->Claim(&call.context, &call.request, &call.response);
  }
  void Finalize(FinalizeTestCall& call) {
    call.request.set_scope("payments");
    call.request.set_key("k");
    call.request.set_claim_token(kToken);
    call.request.mutable_response()->set_status_code(201);
    call.request.mutable_response()->set_body("paid");
    service_->Finalize(&call.context, &call.request, &call.response);
  }
  void Lookup(LookupTestCall& call) {
    call.request.set_scope("payments");
    call.request.set_key("k");
    service_->Lookup(&call.context, &call.request, &call.response);
  }
  void Release(ReleaseTestCall& call) {
    call.request.set_scope("payments");
    call.request.set_key("k");
    call.request.set_claim_token(kToken);
    call.request.set_disposition(
        v1::ReleaseRequest::DISPOSITION_NEVER_EXECUTED);
    service_->Release(&call.context, &call.request, &call.response);
  }

  void RunLanes() {
    for (Lane* lane : engine_->lanes()) lane->RunBatch();
  }

  StoreScript script_;
  ManualClock clock_;
  FleetRulesCache rules_;
  Metrics metrics_;
  MemoryLog log_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Service> service_;
};

TEST_F(ServiceTest, ClaimIsAnsweredWhenTheLaneHasRunAndNotBefore) {
  ClaimTestCall call;
  Claim(call);
  EXPECT_EQ(call.finished, 0);
  RunLanes();
  ASSERT_EQ(call.finished, 1);
  EXPECT_TRUE(call.status.ok()) << call.status.error_message();
  EXPECT_EQ(call.response.claimed().attempt(), 1);
  EXPECT_EQ(call.response.claimed().lease().seconds(), 30);
}

TEST_F(ServiceTest, DownstreamKeyComesFromTheDatabasesNamespace) {
  ClaimTestCall call;
  Claim(call);
  RunLanes();
  EXPECT_EQ(call.response.claimed().downstream_key(),
            DownstreamKey(kNamespace, {.scope = "payments", .key = "k"}, 0));
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
  ASSERT_EQ(call.finished, 1);
  EXPECT_TRUE(call.status.ok());
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
  ASSERT_EQ(call.finished, 1);
  EXPECT_TRUE(call.status.ok());
  EXPECT_EQ(call.response.record().attempt(), 7);
  EXPECT_EQ(call.response.record().state(), v1::Record::STATE_IN_PROGRESS);
  EXPECT_EQ(call.response.record().downstream_key(),
            DownstreamKey(kNamespace, {.scope = "payments", .key = "k"}, 2));
}

TEST_F(ServiceTest, ReleaseIsCarriedOutAndAnswered) {
  ReleaseTestCall call;
  Release(call);
  RunLanes();
  ASSERT_EQ(call.finished, 1);
  EXPECT_TRUE(call.status.ok());
  EXPECT_TRUE(call.response.released());
  ASSERT_THAT(script_.releases, SizeIs(1));
  EXPECT_EQ(script_.releases[0].disposition, Disposition::kNeverExecuted);
}

TEST_F(ServiceTest, BadInputIsRefusedAtOnceAndReachesNoLane) {
  ClaimTestCall claim;
  service_->Claim(&claim.context, &claim.request, &claim.response);
  FinalizeTestCall finalize;
  service_->Finalize(&finalize.context, &finalize.request, &finalize.response);
  LookupTestCall lookup;
  service_->Lookup(&lookup.context, &lookup.request, &lookup.response);
  ReleaseTestCall release;
  service_->Release(&release.context, &release.request, &release.response);
  for (const grpc::Status& status :
       {claim.status, finalize.status, lookup.status, release.status}) {
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
  ASSERT_EQ(call.finished, 1);
  EXPECT_EQ(call.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(call.status.error_message(), "too late");
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(details.ParseFromString(call.status.error_details()));
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
  ASSERT_EQ(call.finished, 1);
  EXPECT_EQ(call.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(call.status.error_message(), Not(HasSubstr("SECRET")));
  EXPECT_THAT(call.status.error_details(), Not(HasSubstr("SECRET")));
  ASSERT_THAT(log_.lines(), Not(IsEmpty()));
  EXPECT_THAT(log_.lines().front(), HasSubstr("SECRET"));
}

TEST_F(ServiceTest, CorruptRecordIsDataLossAndToldToTheLog) {
  script_.record.state = RecordState::kFinal;
  script_.record.response.headers = "x";
  LookupTestCall call;
  Lookup(call);
  RunLanes();
  ASSERT_EQ(call.finished, 1);
  EXPECT_EQ(call.status.error_code(), grpc::StatusCode::DATA_LOSS);
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
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(in_time.status.ok());
  EXPECT_EQ(script_.items, 1) << "the late one must not reach the store";
}

TEST_F(ServiceTest, WaitIsAddedToTheTimeACallMayTake) {
  Restart({.deadline_max = seconds(10)});
  ClaimTestCall waiting;
  waiting.request.mutable_wait()->set_seconds(3600);
  Claim(waiting);
  clock_.Advance(seconds(70) - milliseconds(1));
  RunLanes();
  EXPECT_TRUE(waiting.status.ok()) << waiting.status.error_message();

  ClaimTestCall late;
  late.request.mutable_wait()->set_seconds(3600);
  Claim(late);
  clock_.Advance(seconds(70));
  RunLanes();
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(ServiceTest, DrainingEngineRefusesAtOnce) {
  engine_->StopAccepting();
  ClaimTestCall call;
  Claim(call);
  ASSERT_EQ(call.finished, 1);
  EXPECT_EQ(call.status.error_code(), grpc::StatusCode::UNAVAILABLE);
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
        // Later than `finished`: gRPC's test peer is done with the call.
        while (!call.peer.test_status_set()) std::this_thread::yield();
        if (call.finished == 1 && call.response.has_claimed()) ++granted;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  engine_->Stop();
  for (std::thread& lane : lanes) lane.join();
  EXPECT_EQ(granted, kThreads * kCalls);
  EXPECT_EQ(script_.items, kThreads * kCalls);
}

TEST(AnswerBy, IsTheCallersDeadlineOrTheLongestTime) {
  using std::chrono::system_clock;
  const system_clock::time_point now{std::chrono::hours(480'000)};
  const SteadyTime steady{std::chrono::hours(5)};
  EXPECT_EQ(AnswerBy(now + seconds(3), now, steady, seconds(30)),
            steady + seconds(3));
  EXPECT_EQ(AnswerBy(now + seconds(31), now, steady, seconds(30)),
            steady + seconds(30));
  EXPECT_EQ(AnswerBy(system_clock::time_point::max(), now, steady, seconds(30)),
            steady + seconds(30));
  EXPECT_EQ(AnswerBy(now - seconds(1), now, steady, seconds(30)),
            steady - seconds(1));
}

}  // namespace
}  // namespace idempotency
