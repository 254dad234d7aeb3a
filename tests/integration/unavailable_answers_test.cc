// What callers are told while a call cannot be served, and when they are told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/burst.h"
#include "tests/integration/open_transaction.h"
#include "tests/integration/wire_fixture.h"
#include "tests/support/port.h"
#include "tests/support/tcp_gate.h"

namespace idempotency {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr char kLockRecords[] =
    "LOCK TABLE idempotency_records IN ACCESS EXCLUSIVE MODE";

class UnavailableAnswersTest : public WireTest {
 protected:
  // A PostgreSQL of their own, which may be stopped.
  static void SetUpTestSuite() {
    auto postgres = TempPostgres::Make({.fsync = false, .settings = {}});
    ASSERT_TRUE(postgres.ok()) << postgres.status();
    postgres_ = *std::move(postgres);
    const auto database = postgres_->CreateDatabase();
    ASSERT_TRUE(database.ok()) << database.status();
    StartReplica(*database);
  }
  static void TearDownTestSuite() {
    WireTest::TearDownTestSuite();
    postgres_.reset();
  }
  static TempPostgres& postgres() { return *postgres_; }

  static std::unique_ptr<Replica> StartWith(std::vector<std::string> flags,
                                            const std::string& uri = database(),
                                            bool wait_until_serving = true) {
    Replica::Options options;
    options.database = uri;
    options.flags = std::move(flags);
    options.wait_until_serving = wait_until_serving;
    auto replica = Replica::Start(std::move(options));
    EXPECT_TRUE(replica.ok()) << replica.status();
    return replica.ok() ? *std::move(replica) : nullptr;
  }
  // All four calls.
  static void ExpectStoreUnavailable(const Replica& replica) {
    const v1::ClaimRequest claim = ClaimFor(NewKey());
    const auto expect = [](const auto& reply) {
      EXPECT_TRUE(
          IsRefusal(reply, StatusCode::UNAVAILABLE, "STORE_UNAVAILABLE"));
    };
    expect(SendTo(replica, claim));
    expect(SendTo(replica, FinalizeOf(claim, 200)));
    expect(SendTo(replica, LookupOf(claim)));
    expect(SendTo(
        replica,
        ReleaseOf(claim, v1::ReleaseRequest::DISPOSITION_NEVER_EXECUTED)));
  }
  // Returns once a session of the coordinator waits for a lock.
  static void WaitForABlockedStatement() {
    WaitUntil([] {
      return Sql("SELECT count(*) > 0 FROM pg_stat_activity WHERE "
                 "wait_event_type = 'Lock' AND datname = current_database()") ==
             "t";
    });
  }

 private:
  static std::unique_ptr<TempPostgres> postgres_;
};

std::unique_ptr<TempPostgres> UnavailableAnswersTest::postgres_;

TEST_F(UnavailableAnswersTest, NobodyIsToldToGoAheadWithoutAStore) {
  const auto replica = StartWith(
      {"--store_patience=200ms"},
      "postgresql://nobody@127.0.0.1:" + std::to_string(FreePort()) + "/none",
      false);
  ASSERT_NE(replica, nullptr);
  ASSERT_TRUE(replica->process().WaitForPort(replica->port()).ok());
  const auto start = steady_clock::now();
  ExpectStoreUnavailable(*replica);
  EXPECT_LT(steady_clock::now() - start, seconds(8));
  EXPECT_TRUE(replica->WaitUntilNotServing().ok());
}

TEST_F(UnavailableAnswersTest, BadInputIsToldAlsoWithoutAStore) {
  const auto replica = StartWith(
      {},
      "postgresql://nobody@127.0.0.1:" + std::to_string(FreePort()) + "/none",
      false);
  ASSERT_NE(replica, nullptr);
  ASSERT_TRUE(replica->process().WaitForPort(replica->port()).ok());
  EXPECT_TRUE(IsInvalid(SendTo(*replica, v1::ClaimRequest()), "scope"));
}

TEST_F(UnavailableAnswersTest, AReadOnlyStoreIsUnavailableUntilItIsNot) {
  const auto uri = postgres().CreateDatabase("read_only");
  ASSERT_TRUE(uri.ok()) << uri.status();
  const auto replica = StartWith({"--store_patience=200ms"}, *uri);
  ASSERT_NE(replica, nullptr);
  const auto set_read_only = [](const std::string& value) {
    const auto done = postgres().Run(
        "ALTER DATABASE read_only SET default_transaction_read_only = " +
        value);
    ASSERT_TRUE(done.ok()) << done.status();
    const auto ended = postgres().Run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname "
        "= 'read_only'");
    ASSERT_TRUE(ended.ok()) << ended.status();
  };
  set_read_only("on");
  EXPECT_TRUE(replica->WaitUntilNotServing().ok());
  ExpectStoreUnavailable(*replica);
  set_read_only("off");
  EXPECT_TRUE(replica->WaitUntilServing().ok());
  EXPECT_TRUE(SendTo(*replica, ClaimFor(NewKey()))->has_claimed());
}

TEST_F(UnavailableAnswersTest, AFullQueueRefusesAtOnce) {
  constexpr std::size_t kCalls = 40;
  constexpr std::size_t kQueue = 4;
  // The queue, and what the lane takes from it before the store stands still.
  constexpr std::size_t kAcceptedMax = 2 * kQueue;
  const auto replica = StartWith({"--queue_items_max=4"});
  ASSERT_NE(replica, nullptr);
  std::vector<v1::ClaimRequest> claims;
  for (std::size_t i = 0; i < kCalls; ++i) claims.push_back(ClaimFor(NewKey()));
  // Its lane is connected from here on.
  EXPECT_TRUE(SendTo(*replica, ClaimFor(NewKey()))->has_claimed());
  ASSERT_TRUE(postgres().Pause().ok());
  const auto start = steady_clock::now();
  ClaimBurst burst(*replica, claims);
  WaitUntil([&] { return burst.answered() >= kCalls - kAcceptedMax; });
  EXPECT_LT(steady_clock::now() - start, seconds(1));
  postgres().Resume();

  std::size_t granted = 0;
  for (const ClaimReply& reply : burst.Wait()) {
    if (reply.status.ok()) {
      EXPECT_TRUE(reply->has_claimed());
      ++granted;
    } else {
      EXPECT_TRUE(IsRefusal(reply, StatusCode::UNAVAILABLE, "OVERLOADED"));
    }
  }
  EXPECT_GE(granted, kQueue);
  EXPECT_LE(granted, kAcceptedMax);
  EXPECT_TRUE(SendTo(*replica, ClaimFor(NewKey()))->has_claimed());
}

TEST_F(UnavailableAnswersTest, ACallWithoutADeadlineGetsTheServers) {
  const auto replica = StartWith({"--deadline_max=500ms"});
  ASSERT_NE(replica, nullptr);
  const OpenTransaction lock(database(), kLockRecords);
  for (const Timeout timeout : {Timeout(), Timeout(seconds(30))}) {
    const auto start = steady_clock::now();
    const ClaimReply reply = SendTo(*replica, ClaimFor(NewKey()), timeout);
    EXPECT_TRUE(IsRefusal(reply, StatusCode::UNAVAILABLE, "STORE_UNAVAILABLE"));
    EXPECT_GE(steady_clock::now() - start, milliseconds(200));
    EXPECT_LT(steady_clock::now() - start, seconds(5));
  }
}

TEST_F(UnavailableAnswersTest, ALockThatStaysIsUnavailableAndNeverInProgress) {
  constexpr milliseconds kDeadline{2000};
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  Granted(claim);
  const OpenTransaction lock(database(),
                             "SELECT FROM idempotency_records WHERE key = '" +
                                 claim.key() + "' FOR UPDATE");
  EXPECT_TRUE(IsRefusal(SendTo(replica(), claim, kDeadline),
                        StatusCode::UNAVAILABLE, "STORE_UNAVAILABLE"));
  EXPECT_TRUE(IsRefusal(SendTo(replica(), FinalizeOf(claim, 200), kDeadline),
                        StatusCode::UNAVAILABLE, "STORE_UNAVAILABLE"));
  EXPECT_EQ(RecordOf(claim).state(), v1::Record::STATE_IN_PROGRESS);
}

TEST_F(UnavailableAnswersTest, ALockOfOneRecordHoldsUpNoOther) {
  const v1::ClaimRequest locked = ClaimFor(NewKey());
  Granted(locked);
  auto lock = std::make_unique<OpenTransaction>(
      database(), "SELECT FROM idempotency_records WHERE key = '" +
                      locked.key() + "' FOR UPDATE");
  FinalizeBurst waiting(replica(), {FinalizeOf(locked, 200)});
  WaitForABlockedStatement();
  for (int i = 0; i < 20; ++i) {
    const v1::ClaimRequest claim = ClaimFor(NewKey());
    EXPECT_TRUE(SendTo(replica(), claim, seconds(2))->has_claimed());
    EXPECT_TRUE(
        SendTo(replica(), FinalizeOf(claim, 200), seconds(2)).status.ok());
  }
  lock.reset();
  EXPECT_EQ(waiting.Wait().front()->result(),
            v1::FinalizeResponse::RESULT_RECORDED);
}

TEST_F(UnavailableAnswersTest, ACallThatExpiresInTheQueueNeverReachesTheStore) {
  const auto gate = TcpGate::Make(postgres().port());
  ASSERT_TRUE(gate.ok()) << gate.status();
  const std::string direct = ":" + std::to_string(postgres().port()) + "/";
  std::string uri = database();
  uri.replace(uri.find(direct), direct.size(),
              ":" + std::to_string((*gate)->port()) + "/");
  const auto replica = StartWith({}, uri);
  ASSERT_NE(replica, nullptr);
  EXPECT_TRUE(SendTo(*replica, ClaimFor(NewKey()))->has_claimed());

  // While the lane waits for the first one's answer, the other is queued.
  ASSERT_TRUE(postgres().Pause().ok());
  v1::ClaimRequest first = ClaimFor(NewKey());
  first.set_checkpoint(std::string(4096, 'c'));
  const std::int64_t sent = (*gate)->counters().request_bytes;
  ClaimBurst burst(*replica, {first});
  EXPECT_TRUE((*gate)->WaitUntil(
      [&](const TcpGate::Counters& counters) {
        return counters.request_bytes >= sent + 4096;
      },
      kPatience));
  const v1::ClaimRequest expiring = ClaimFor(NewKey());
  EXPECT_EQ(SendTo(*replica, expiring, milliseconds(300)).status.error_code(),
            StatusCode::DEADLINE_EXCEEDED);
  WaitForArrival(*replica);
  postgres().Resume();
  EXPECT_TRUE(burst.Wait().front()->has_claimed());
  EXPECT_TRUE(IsRefusedAs(Send(LookupOf(expiring)), "RECORD_NOT_FOUND"));
}

}  // namespace
}  // namespace idempotency
