// Callers that wait for another owner's end, over the wire: two replicas on one
// database.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/integration/burst.h"
#include "tests/integration/fault_calls.h"
#include "tests/integration/metrics_page.h"
#include "tests/integration/wire_fixture.h"

namespace idempotency {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Le;

constexpr int kCrowd = 10'000;
// What a busy machine may add to a bound.
constexpr milliseconds kSlack{1'000};

class WaitingWireTest : public WireTest {
 protected:
  static void SetUpTestSuite() {
    const absl::StatusOr<std::string> database = TempPostgres::SharedDatabase();
    ASSERT_TRUE(database.ok()) << database.status();
    StartReplica(*database, kFlags);
    other_ = StartOther().release();
  }
  static void TearDownTestSuite() {
    delete std::exchange(other_, nullptr);
    WireTest::TearDownTestSuite();
  }

  static std::unique_ptr<Replica> StartOther() {
    Replica::Options options;
    options.database = database();
    options.flags = kFlags;
    auto other = Replica::Start(options);
    EXPECT_TRUE(other.ok()) << other.status();
    return *std::move(other);
  }

  static Replica& other() { return *other_; }

  static v1::ClaimRequest Waiting(v1::ClaimRequest claim,
                                  milliseconds wait = seconds(60)) {
    *claim.mutable_wait() = ToProto(wait);
    return claim;
  }
  // `count` others who wait for the owner of `claim`.
  static std::vector<v1::ClaimRequest> Waiters(const v1::ClaimRequest& claim,
                                               int count) {
    std::vector<v1::ClaimRequest> waiters;
    for (int i = 0; i < count; ++i) {
      waiters.push_back(Waiting(ByAnother(claim)));
    }
    return waiters;
  }

  static MetricsPage Metrics(const Replica& of) {
    auto page = MetricsPage::Get(AdminPortOf(of));
    EXPECT_TRUE(page.ok()) << page.status();
    return *std::move(page);
  }
  static void WaitForWaiters(const Replica& at, int count) {
    WaitUntil([&] {
      return Metrics(at).Value("idempotency_waiting_calls") == count;
    });
  }
  // Of the lanes, both replicas together.
  static double StatementsSent() {
    double sent = 0;
    for (const Replica* of : {&replica(), other_}) {
      for (const char* statement :
           {"insert_new", "insert_and_finalize", "read_records", "replace",
            "find_unchanged"}) {
        for (const auto& [series, value] :
             Metrics(*of).Under("idempotency_statement_seconds_count")) {
          if (series.find(statement) != std::string::npos) sent += value;
        }
      }
    }
    return sent;
  }

  static std::string OutcomeOf(const ClaimReply& reply) {
    if (!reply.status.ok()) return reply.status.error_message();
    return Decided(absl::StatusOr<v1::ClaimResponse>(reply.message));
  }
  static std::ptrdiff_t CountOf(const std::vector<ClaimReply>& replies,
                                const std::string& outcome) {
    return std::count_if(
        replies.begin(), replies.end(),
        [&](const ClaimReply& reply) { return OutcomeOf(reply) == outcome; });
  }

  static milliseconds Since(steady_clock::time_point begin) {
    return duration_cast<milliseconds>(steady_clock::now() - begin);
  }

  // How long a waiter at `at` takes to learn of an end at the first replica.
  static milliseconds TimeToLearn(const Replica& at) {
    const v1::ClaimRequest claim = ClaimFor(NewKey());
    Granted(claim);
    ClaimBurst waiter(at, Waiters(claim, 1));
    WaitForWaiters(at, 1);
    const auto begin = steady_clock::now();
    Finalized(FinalizeOf(claim, 201, "the response"));
    const ClaimReply reply = waiter.Wait().front();
    EXPECT_EQ(OutcomeOf(reply), "Replay");
    EXPECT_EQ(reply->replay().response().body(), "the response");
    return Since(begin);
  }

  static inline const std::vector<std::string> kFlags = {
      "--admin_listen=127.0.0.1:0", "--lanes=2", "--drain_delay=0s"};

 private:
  static inline Replica* other_ = nullptr;
};

TEST_F(WaitingWireTest, SameReplicaWaiterIsWokenAtOnce) {
  milliseconds best = TimeToLearn(replica());
  for (int i = 0; i < 4; ++i) best = std::min(best, TimeToLearn(replica()));
  EXPECT_LE(best, milliseconds(30));
}

TEST_F(WaitingWireTest, WaiterOnAnotherReplicaLearnsOfTheEnd) {
  milliseconds best = TimeToLearn(other());
  for (int i = 0; i < 4; ++i) best = std::min(best, TimeToLearn(other()));
  EXPECT_LE(best, milliseconds(100));
}

TEST_F(WaitingWireTest, OneOfManyWaitersIsGrantedAfterARelease) {
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  Granted(claim);
  const std::vector<v1::ClaimRequest> here = Waiters(claim, 50);
  const std::vector<v1::ClaimRequest> there = Waiters(claim, 50);
  ClaimBurst calls_here(replica(), here);
  ClaimBurst calls_there(other(), there);
  WaitForWaiters(replica(), 50);
  WaitForWaiters(other(), 50);
  ASSERT_TRUE(
      Send(ReleaseOf(claim, v1::ReleaseRequest::DISPOSITION_NEVER_EXECUTED))
          .status.ok());
  WaitUntil(
      [&] { return calls_here.answered() + calls_there.answered() == 1; });
  // Let everybody have looked.
  EXPECT_EQ(OutcomeOf(Send(Waiting(ByAnother(claim), milliseconds(300)))),
            "InProgress");
  EXPECT_EQ(calls_here.answered() + calls_there.answered(), 1u);
  // The one who was granted the key ends it.
  const std::string token =
      Sql("SELECT claim_token FROM idempotency_records WHERE key = '" +
          claim.key() + "'");
  v1::ClaimRequest winner = claim;
  winner.set_claim_token(token);
  Finalized(FinalizeOf(winner, 200, "won"));
  std::vector<ClaimReply> replies = calls_here.Wait();
  for (const ClaimReply& reply : calls_there.Wait()) replies.push_back(reply);
  EXPECT_EQ(CountOf(replies, "Claimed"), 1);
  EXPECT_EQ(CountOf(replies, "Replay"), 99);
}

TEST_F(WaitingWireTest, WaitEndsWithInProgress) {
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  Granted(claim);
  const auto begin = steady_clock::now();
  const ClaimReply reply = Send(Waiting(ByAnother(claim), milliseconds(700)));
  EXPECT_EQ(OutcomeOf(reply), "InProgress");
  EXPECT_THAT(Since(begin),
              AllOf(Ge(milliseconds(700)), Le(milliseconds(700) + kSlack)));
  EXPECT_LE(ToNanos(reply->in_progress().retry_after()), milliseconds(1'200));
}

TEST_F(WaitingWireTest, WaitEnds100msBeforeTheDeadline) {
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  Granted(claim);
  const auto begin = steady_clock::now();
  const ClaimReply reply =
      SendTo(replica(), Waiting(ByAnother(claim)), milliseconds(1'000));
  EXPECT_EQ(OutcomeOf(reply), "InProgress");
  EXPECT_THAT(Since(begin),
              AllOf(Ge(milliseconds(890)), Le(milliseconds(1'000))));
}

TEST_F(WaitingWireTest, HeldRecordsWaitersAreToldInDoubt) {
  v1::ClaimRequest claim = ClaimFor(NewKey());
  claim.set_policy("payment");
  Granted(claim);
  ClaimBurst here(replica(), Waiters(claim, 2));
  ClaimBurst there(other(), Waiters(claim, 2));
  WaitForWaiters(replica(), 2);
  WaitForWaiters(other(), 2);
  ASSERT_TRUE(
      Send(ReleaseOf(claim, v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN))
          .status.ok());
  EXPECT_EQ(CountOf(here.Wait(), "InDoubt"), 2);
  EXPECT_EQ(CountOf(there.Wait(), "InDoubt"), 2);
}

TEST_F(WaitingWireTest, WaiterTakesOverWhatAKilledOwnerLeftBehind) {
  const v1::ClaimRequest claim =
      WithLease(ClaimFor(NewKey()), milliseconds(1'000));
  const auto begin = steady_clock::now();
  Granted(claim);
  ClaimBurst waiter(other(), Waiters(claim, 1));
  const ClaimReply reply = waiter.Wait().front();
  ASSERT_EQ(OutcomeOf(reply), "Claimed");
  EXPECT_THAT(Since(begin),
              AllOf(Ge(milliseconds(990)), Le(milliseconds(1'000) + kSlack)));
  EXPECT_EQ(reply->claimed().attempt(), 2);
  EXPECT_EQ(reply->claimed().abandoned().reason(),
            v1::Abandoned::REASON_LEASE_LAPSED);
}

TEST_F(WaitingWireTest, CancelledWaitersVanish) {
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  Granted(claim);
  const v1::ClaimRequest request = Waiters(claim, 1).front();
  grpc::ClientContext context;
  v1::ClaimResponse response;
  grpc::Status status;
  std::thread caller(
      [&] { status = replica().stub().Claim(&context, request, &response); });
  WaitForWaiters(replica(), 1);
  context.TryCancel();
  caller.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  WaitForWaiters(replica(), 0);
}

TEST_F(WaitingWireTest, DrainDoesNotWaitForTheWaiters) {
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  Granted(claim);
  const std::unique_ptr<Replica> leaving = StartOther();
  ClaimBurst waiters(*leaving, Waiters(claim, 100));
  WaitForWaiters(*leaving, 100);
  const auto begin = steady_clock::now();
  leaving->Terminate();
  EXPECT_EQ(CountOf(waiters.Wait(), "InProgress"), 100);
  EXPECT_LE(Since(begin), kSlack);
  const auto exit = leaving->WaitForExit();
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(exit->code, 0);
  EXPECT_LE(Since(begin), seconds(5));
}

TEST_F(WaitingWireTest, TenThousandWaitersCostFewStatements) {
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  Granted(claim);
  const double before = StatementsSent();
  const auto came = steady_clock::now();
  ClaimBurst crowd(other(), Waiters(claim, kCrowd), seconds(60));
  WaitForWaiters(other(), kCrowd);
  const double until_all_wait = StatementsSent();
  // For as long as another waits in vain.
  EXPECT_EQ(OutcomeOf(Send(Waiting(ByAnother(claim), seconds(1)))),
            "InProgress");
  const double until_the_end = StatementsSent();
  const auto begin = steady_clock::now();
  Finalized(FinalizeOf(claim, 201, "done"));
  EXPECT_EQ(CountOf(crowd.Wait(), "Replay"), kCrowd);
  std::cout << until_all_wait - before << " statements until all waited, "
            << until_the_end - until_all_wait << " in the second after, "
            << StatementsSent() - until_the_end << " to tell all; told in "
            << Since(begin).count() << " ms\n";
  // As many as there were pauses, if the callers themselves were slow.
  EXPECT_LE(
      StatementsSent() - before,
      std::max<double>(300, static_cast<double>(Since(came).count()) / 8));
}

TEST_F(WaitingWireTest, TenThousandClaimsOfOneKeyCostAtMost100Statements) {
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  std::vector<v1::ClaimRequest> requests;
  for (int i = 0; i < kCrowd; ++i) requests.push_back(ByAnother(claim));
  const double before = StatementsSent();
  const auto begin = steady_clock::now();
  ClaimBurst crowd(replica(), requests, seconds(60));
  const std::vector<ClaimReply> replies = crowd.Wait();
  const milliseconds took = Since(begin);
  const double sent = StatementsSent() - before;
  std::cout << sent << " statements, " << took.count() << " ms\n";
  EXPECT_EQ(CountOf(replies, "Claimed"), 1);
  EXPECT_EQ(CountOf(replies, "InProgress"), kCrowd - 1);
  // As many as there were pauses, if the callers themselves were slow.
  EXPECT_LE(sent, std::max<double>(100, static_cast<double>(took.count()) / 8));
}

TEST_F(WaitingWireTest, KeysThatAreWaitedForAreLookedAtTogether) {
  constexpr int kKeys = 2'000;
  std::vector<v1::ClaimRequest> claims;
  std::vector<v1::ClaimRequest> waiters;
  std::vector<v1::FinalizeRequest> ends;
  for (int i = 0; i < kKeys; ++i) {
    claims.push_back(ClaimFor(NewKey()));
    waiters.push_back(Waiting(ByAnother(claims.back())));
    ends.push_back(FinalizeOf(claims.back(), 200));
  }
  EXPECT_EQ(CountOf(ClaimBurst(replica(), claims).Wait(), "Claimed"), kKeys);
  ClaimBurst crowd(other(), waiters, seconds(60));
  WaitForWaiters(other(), kKeys);
  const double before = StatementsSent();
  const double cpu_before = Metrics(other()).Value("process_cpu_seconds_total");
  const auto begin = steady_clock::now();
  EXPECT_EQ(OutcomeOf(Send(Waiting(ByAnother(claims.front()), seconds(2)))),
            "InProgress");
  const double passed = static_cast<double>(Since(begin).count()) / 1000;
  const double a_second = (StatementsSent() - before) / passed;
  std::cout << a_second << " statements and "
            << 1000 *
                   (Metrics(other()).Value("process_cpu_seconds_total") -
                    cpu_before) /
                   passed
            << " ms of the server's CPU a second\n";
  EXPECT_LE(a_second, 150);
  FinalizeBurst(replica(), ends).Wait();
  EXPECT_EQ(CountOf(crowd.Wait(), "Replay"), kKeys);
}

}  // namespace
}  // namespace idempotency
