// Several replicas on one database: starting together, seeing each other's
// records, cleaning up together, and what never reaches the database.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/core/mutex.h"
#include "tests/integration/fault_calls.h"
#include "tests/support/replica.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::IsEmpty;

std::string Query(const std::string& database, const std::string& sql) {
  return Require(TempPostgres::RunAt(database, sql));
}

// ---- Starting and sharing.

TEST(ReplicasTest, TenThatStartTogetherMigrateOnceAndAllServe) {
  constexpr std::size_t kReplicas = 10;
  const std::string database = Require(TempPostgres::SharedDatabase());
  std::vector<std::future<std::unique_ptr<Replica>>> starting;
  for (std::size_t i = 0; i < kReplicas; ++i) {
    starting.push_back(
        std::async(std::launch::async, [&] { return StartReplica(database); }));
  }
  std::vector<std::unique_ptr<Replica>> replicas;
  for (auto& start : starting) replicas.push_back(start.get());
  EXPECT_EQ(Query(database, "SELECT count(*) FROM idempotency_schema"), "1");
  EXPECT_EQ(Query(database, "SELECT count(*) FROM ttl_policies"), "5");

  // Whatever one was told, all others know.
  std::vector<Recorded> recorded;
  for (std::size_t i = 0; i < kReplicas; ++i) {
    const v1::ClaimRequest claim = ClaimOf(RandomKey());
    Stub& mine = replicas[i]->stub();
    Stub& next = replicas[(i + 1) % kReplicas]->stub();
    Stub& third = replicas[(i + 2) % kReplicas]->stub();
    ASSERT_EQ(Decided(Send(mine, claim)), "Claimed");
    EXPECT_EQ(Decided(Send(next, ByAnother(claim))), "InProgress");
    const v1::FinalizeRequest finalize = FinalizeOf(claim, 201, claim.key());
    EXPECT_EQ(Decided(Send(third, finalize)), "RESULT_RECORDED");
    EXPECT_EQ(Decided(Send(mine, finalize)), "RESULT_RECORDED");
    recorded.push_back({claim, finalize.response()});
  }
  for (const auto& replica : replicas) {
    EXPECT_THAT(MissingReplays(replica->stub(), recorded), IsEmpty());
  }
}

TEST(ReplicasTest, DownstreamKeyIsTheSameAtEveryReplica) {
  const std::string database = Require(TempPostgres::SharedDatabase());
  const auto first = StartReplica(database);
  const auto second = StartReplica(database);
  const v1::ClaimRequest claim = ClaimOf(RandomKey());
  const auto one = Send(first->stub(), claim);
  const auto two = Send(second->stub(), claim);
  ASSERT_EQ(Decided(one), "Claimed");
  ASSERT_EQ(Decided(two), "Claimed");
  EXPECT_EQ(one->claimed().downstream_key(), two->claimed().downstream_key());
  EXPECT_EQ(one->claimed().fencing_token(), two->claimed().fencing_token());
  EXPECT_EQ(one->claimed().attempt(), two->claimed().attempt());
}

// ---- Cleaning up.

class ReapersTest : public ::testing::Test {
 protected:
  static constexpr int kReplicas = 3;

  void SetUp() override {
    database_ = Require(TempPostgres::SharedDatabase());
    for (int i = 0; i < kReplicas; ++i) {
      replicas_.push_back(
          StartReplica(database_, {"--reaper_pause=30ms", "--reaper_batch=7"}));
    }
    Query(database_,
          "INSERT INTO ttl_policies (name, lease, retention, on_abandoned) "
          "VALUES ('brief', '100 ms', '300 ms', 'take_over'), "
          "('brief_held', '100 ms', '300 ms', 'hold')");
  }

  Stub& AnyStub(std::size_t i) const {
    return replicas_[i % replicas_.size()]->stub();
  }

  // Adds up a field over what all replicas logged of their sweeps.
  std::int64_t Swept(const std::string& field) const {
    std::int64_t sum = 0;
    for (const auto& replica : replicas_) {
      for (const std::string& line : replica->LogLines()) {
        if (!absl::StrContains(line, "the reaper swept")) continue;
        const auto json = nlohmann::json::parse(line, nullptr, false);
        if (!json.is_object() || !json.contains(field)) continue;
        sum += std::stoll(json[field].get<std::string>());
      }
    }
    return sum;
  }

  bool WaitUntilSwept(const std::string& field, std::int64_t count) const {
    const steady_clock::time_point end = steady_clock::now() + seconds(30);
    while (Swept(field) < count) {
      if (steady_clock::now() > end) return false;
      std::this_thread::sleep_for(milliseconds(20));
    }
    return true;
  }

  std::string database_;
  std::vector<std::unique_ptr<Replica>> replicas_;
};

TEST_F(ReapersTest, EachExpiredRecordIsDeletedOnceAndEachHeldOneIsParked) {
  constexpr std::size_t kFinal = 60;
  constexpr std::size_t kUnfinished = 40;
  constexpr std::size_t kHeld = 30;
  std::vector<v1::ClaimRequest> held;
  for (std::size_t i = 0; i < kFinal + kUnfinished + kHeld; ++i) {
    const bool holds = i >= kFinal + kUnfinished;
    const v1::ClaimRequest claim =
        ClaimOf(RandomKey(), holds ? "brief_held" : "brief");
    ASSERT_EQ(Decided(Send(AnyStub(i), claim)), "Claimed");
    if (i < kFinal) {
      ASSERT_EQ(Decided(Send(AnyStub(i), FinalizeOf(claim, 200, "x"))),
                "RESULT_RECORDED");
    }
    if (holds) held.push_back(claim);
  }
  EXPECT_TRUE(WaitUntilSwept("deleted", kFinal + kUnfinished));
  EXPECT_TRUE(WaitUntilSwept("parked", kHeld));
  // Several more sweeps find nothing.
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_EQ(Swept("deleted"), kFinal + kUnfinished);
  EXPECT_EQ(Swept("unfinished.brief"), kUnfinished);
  EXPECT_EQ(Swept("unfinished.brief_held"), 0);
  EXPECT_EQ(Swept("parked"), kHeld);
  EXPECT_EQ(Query(database_,
                  "SELECT count(*), bool_and(expires_at = 'infinity' AND held "
                  "AND in_flight) FROM idempotency_records"),
            absl::StrCat(kHeld, "\tt"));

  // A parked record is still in doubt, and goes its way once it is settled.
  EXPECT_EQ(Decided(Send(AnyStub(0), ByAnother(held[0]))), "InDoubt");
  EXPECT_EQ(Decided(Send(AnyStub(1), FinalizeOf(held[0], 201, "late"))),
            "RESULT_RECORDED");
  EXPECT_EQ(Decided(Send(AnyStub(2), ByAnother(held[0]))), "Replay");
  v1::ClaimRequest resolving = ByAnother(held[1]);
  resolving.set_resolve_in_doubt(true);
  EXPECT_EQ(Decided(Send(AnyStub(0), resolving)), "Claimed");
  EXPECT_EQ(
      Decided(Send(AnyStub(1),
                   ReleaseOf(resolving,
                             v1::ReleaseRequest::DISPOSITION_NEVER_EXECUTED))),
      "released");
  EXPECT_TRUE(WaitUntilSwept("deleted", kFinal + kUnfinished + 2));
}

TEST_F(ReapersTest, ReclaimedRecordIsNeverDeleted) {
  constexpr std::size_t kCallers = 12;
  const steady_clock::time_point end = steady_clock::now() + seconds(4);
  std::atomic<int> granted{0};
  std::atomic<int> first_attempts{0};
  Mutex mutex;
  std::vector<std::string> wrong;
  std::vector<std::thread> callers;
  for (std::size_t i = 0; i < kCallers; ++i) {
    callers.emplace_back([&, i] {
      const v1::ClaimRequest model = ClaimOf(RandomKey(), "brief");
      while (steady_clock::now() < end) {
        // The lease is short: granted anew whether the old record was swept,
        // has expired or is only abandoned.
        const v1::ClaimRequest claim = ByAnother(model);
        const auto answer = Send(AnyStub(i), claim);
        if (!answer.ok() || !answer->has_claimed()) continue;
        ++granted;
        if (answer->claimed().attempt() == 1) ++first_attempts;
        const auto found = Send(AnyStub(i + 1), LookupOf(claim));
        if (!found.ok() || found->record().fencing_token() !=
                               answer->claimed().fencing_token()) {
          MutexLock lock(mutex);
          wrong.push_back(Decided(found));
        }
        // Sometimes so late that the sweepers are at it already.
        std::this_thread::sleep_for(
            milliseconds(380 + 7 * static_cast<int>(i)));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  std::cout << granted << " grants, " << first_attempts
            << " of them of a record that was gone, " << Swept("deleted")
            << " deleted\n";
  EXPECT_THAT(wrong, IsEmpty());
  EXPECT_GT(first_attempts, static_cast<int>(kCallers));
  EXPECT_GT(Swept("deleted"), 0);
}

// ---- Calls whose caller no longer waits.

class QueueTest : public ::testing::Test {
 protected:
  void SetUp() override {
    database_ = Require(TempPostgres::SharedDatabase());
    replica_ = StartReplica(database_);
    // A claim in the scope "slow" takes until there is a row in `go`.
    for (const char* sql :
         {"CREATE TABLE go ()",
          "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
          "WHILE NOT EXISTS (SELECT FROM go) LOOP PERFORM pg_sleep(0.01); "
          "END LOOP; RETURN NEW; END $$",
          "CREATE TRIGGER slow BEFORE INSERT ON idempotency_records FOR EACH "
          "ROW WHEN (NEW.scope = 'slow') EXECUTE FUNCTION slow()"}) {
      Query(database_, sql);
    }
    KeepTheLaneBusy();
  }

  void KeepTheLaneBusy() {
    first_ = std::async(std::launch::async, [this] {
      v1::ClaimRequest claim = ClaimOf(RandomKey());
      claim.set_scope("slow");
      return Decided(Send(replica_->stub(), claim));
    });
    while (Query(database_,
                 "SELECT count(*) FROM pg_stat_activity WHERE wait_event = "
                 "'PgSleep' AND datname = current_database()") == "0") {
      std::this_thread::sleep_for(milliseconds(5));
    }
  }

  // Lets the only lane go on, and waits until it is through with what was
  // queued.
  void LetTheLaneGoOn() {
    Query(database_, "INSERT INTO go DEFAULT VALUES");
    EXPECT_EQ(first_.get(), "Claimed");
    EXPECT_EQ(Decided(Send(replica_->stub(), ClaimOf(RandomKey()))), "Claimed");
  }

  std::string RowsOf(const std::vector<v1::ClaimRequest>& claims) const {
    std::string keys;
    for (const v1::ClaimRequest& claim : claims) {
      absl::StrAppend(&keys, keys.empty() ? "'" : ",'", claim.key(), "'");
    }
    return Query(database_,
                 absl::StrCat("SELECT count(*) FROM idempotency_records "
                              "WHERE key IN (",
                              keys, ")"));
  }

  std::string database_;
  std::unique_ptr<Replica> replica_;
  std::future<std::string> first_;
};

TEST_F(QueueTest, CallWhoseDeadlinePassedInTheQueueNeverReachesTheDatabase) {
  std::vector<v1::ClaimRequest> claims;
  std::vector<std::future<std::string>> answers;
  for (int i = 0; i < 20; ++i) {
    claims.push_back(ClaimOf(RandomKey()));
    answers.push_back(
        std::async(std::launch::async, [this, claim = claims.back()] {
          return Decided(Send(replica_->stub(), claim, milliseconds(300)));
        }));
  }
  for (auto& answer : answers) EXPECT_EQ(answer.get(), "DEADLINE_EXCEEDED");
  LetTheLaneGoOn();
  EXPECT_EQ(RowsOf(claims), "0");
}

TEST_F(QueueTest, CallThatWasCancelledInTheQueueNeverReachesTheDatabase) {
  constexpr std::size_t kCalls = 20;
  std::vector<v1::ClaimRequest> claims;
  std::vector<grpc::ClientContext> contexts(kCalls);
  std::vector<std::future<grpc::StatusCode>> answers;
  for (std::size_t i = 0; i < kCalls; ++i) {
    claims.push_back(ClaimOf(RandomKey()));
    answers.push_back(std::async(std::launch::async, [this,
                                                      &context = contexts[i],
                                                      claim = claims.back()] {
      v1::ClaimResponse response;
      return replica_->stub().Claim(&context, claim, &response).error_code();
    }));
  }
  std::this_thread::sleep_for(milliseconds(200));
  for (grpc::ClientContext& context : contexts) context.TryCancel();
  for (auto& answer : answers) {
    EXPECT_EQ(answer.get(), grpc::StatusCode::CANCELLED);
  }
  // A call on the same connection comes after the cancellations.
  for (int i = 0; i < 5; ++i) RequireOk(replica_->WaitUntilServing());
  LetTheLaneGoOn();
  EXPECT_EQ(RowsOf(claims), "0");
}

}  // namespace
}  // namespace idempotency
