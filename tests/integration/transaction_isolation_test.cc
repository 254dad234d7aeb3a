// Transactions of one key beside each other, and time within long ones.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "server/core/mutex.h"
#include "tests/integration/transaction_fixture.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::SizeIs;

using RepeatableRead =
    pqxx::transaction<pqxx::isolation_level::repeatable_read>;
using Serializable = pqxx::transaction<pqxx::isolation_level::serializable>;

class TransactionIsolationTest : public TransactionTest {
 protected:
  // Waits until somebody waits for another's transaction to end.
  static void WaitForAWaiter() {
    const auto end = std::chrono::steady_clock::now() + seconds(30);
    while (Sql("SELECT count(*) FROM pg_stat_activity WHERE datname = "
               "current_database() AND wait_event_type = 'Lock'") == "0") {
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "nobody waits";
      std::this_thread::sleep_for(milliseconds(5));
    }
  }

  // Orders in a transaction of its own, in a thread of its own.
  std::jthread OrderBeside(const std::string& key, RunResult& result) {
    return std::jthread([this, key, &result] {
      pqxx::connection connection(database());
      pqxx::work work(connection);
      result = once_.Run(work, OperationOf(ClaimOf(key)), Order(work, key));
      if (result.has_response()) work.commit();
    });
  }

  template <typename Transaction>
  void ExpectASnapshotThatIsTooOldToBeRunAgain() {
    const std::string key = RandomKey();
    {
      Transaction work(connection_);
      work.exec("SELECT count(*) FROM orders");
      RunResult other;
      OrderBeside(key, other).join();
      ASSERT_EQ(other.outcome, RunOutcome::kExecuted) << other.status;
      const RunResult result =
          once_.Run(work, OperationOf(ClaimOf(key)), MustNotRun);
      EXPECT_EQ(result.outcome, RunOutcome::kUnavailable);
      EXPECT_EQ(ErrorReasonOf(result.status), "STORE_UNAVAILABLE");
      EXPECT_THROW(work.commit(), std::exception);
    }
    Transaction work(connection_);
    EXPECT_EQ(once_.Run(work, OperationOf(ClaimOf(key)), MustNotRun).outcome,
              RunOutcome::kReplayed);
    EXPECT_EQ(Orders(key), "1");
  }
};

TEST_F(TransactionIsolationTest, WhoeverWaitedForACommitIsGivenItsResponse) {
  const std::string key = RandomKey();
  pqxx::work work(connection_);
  const RunResult first =
      once_.Run(work, OperationOf(ClaimOf(key)), Order(work, key));
  RunResult second;
  std::jthread beside = OrderBeside(key, second);
  WaitForAWaiter();
  work.commit();
  beside.join();
  EXPECT_EQ(second.outcome, RunOutcome::kReplayed) << second.status;
  EXPECT_EQ(second.response.SerializeAsString(),
            first.response.SerializeAsString());
  EXPECT_EQ(Orders(key), "1");
}

TEST_F(TransactionIsolationTest, WhoeverWaitedForARollbackExecutes) {
  const std::string key = RandomKey();
  RunResult second;
  std::jthread beside;
  {
    pqxx::work work(connection_);
    once_.Run(work, OperationOf(ClaimOf(key)), Order(work, key));
    beside = OrderBeside(key, second);
    WaitForAWaiter();
  }
  beside.join();
  EXPECT_EQ(second.outcome, RunOutcome::kExecuted) << second.status;
  EXPECT_EQ(Orders(key), "1");
}

// It waited longer than the lease that it then got.
TEST_F(TransactionIsolationTest, ALeaseBeginsWhenTheWaitIsOver) {
  const v1::ClaimRequest claim = ClaimFor(milliseconds(400), RandomKey());
  v1::Claimed claimed;
  std::jthread beside;
  {
    pqxx::work work(connection_);
    ASSERT_TRUE(once_.Claim(work, ByAnother(claim)).ok());
    beside = std::jthread([&] {
      pqxx::connection connection(database());
      pqxx::work other(connection);
      const auto answer = once_.Claim(other, claim);
      EXPECT_TRUE(answer.ok()) << answer.status();
      if (!answer.ok()) return;
      claimed = answer->claimed();
      other.commit();
    });
    WaitForAWaiter();
    work.exec("SELECT pg_sleep(0.5)");
  }
  beside.join();
  EXPECT_EQ(claimed.attempt(), 1);
  EXPECT_GE(MillisecondsOf(claimed.lease()), milliseconds(200));
}

TEST_F(TransactionIsolationTest, ALockThatIsNotHadIsUnavailable) {
  const std::string key = RandomKey();
  pqxx::work work(connection_);
  once_.Run(work, OperationOf(ClaimOf(key)), Order(work, key));
  pqxx::connection connection(database());
  pqxx::work other(connection);
  other.exec("SET LOCAL lock_timeout = '50ms'");
  const RunResult result =
      once_.Run(other, OperationOf(ClaimOf(key)), MustNotRun);
  EXPECT_EQ(result.outcome, RunOutcome::kUnavailable);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THROW(other.commit(), std::exception);
  work.commit();
}

TEST_F(TransactionIsolationTest, ACoordinatorNeverSaysInProgressOfIt) {
  const std::string key = RandomKey();
  pqxx::work work(connection_);
  once_.Run(work, OperationOf(ClaimOf(key)), Order(work, key));
  const auto meanwhile = Send(stub(), ClaimOf(key), seconds(1));
  EXPECT_TRUE(IsUnserved(meanwhile.status())) << Decided(meanwhile);
  work.commit();
  EXPECT_EQ(Decided(Send(stub(), ClaimOf(key))), "Replay");
}

TEST_F(TransactionIsolationTest, AnOldSnapshotIsToBeRunAgain) {
  ExpectASnapshotThatIsTooOldToBeRunAgain<RepeatableRead>();
  ExpectASnapshotThatIsTooOldToBeRunAgain<Serializable>();
}

TEST_F(TransactionIsolationTest, AnOldSnapshotTakesOverNothingThatWasRenewed) {
  const v1::ClaimRequest claim = ClaimFor(milliseconds(100), RandomKey());
  const auto claimed = Send(stub(), claim);
  ASSERT_EQ(Decided(claimed), "Claimed");
  RepeatableRead work(connection_);
  work.exec("SELECT count(*) FROM idempotency_records");
  v1::ClaimRequest renewal = claim;
  *renewal.mutable_lease() = DurationOf(seconds(30));
  renewal.set_renew_fencing_token(claimed->claimed().fencing_token());
  ASSERT_EQ(Decided(Send(stub(), renewal)), "Claimed");
  work.exec("SELECT pg_sleep(0.15)");
  EXPECT_EQ(once_.Run(work, OperationOf(claim), MustNotRun).outcome,
            RunOutcome::kUnavailable);
}

TEST_F(TransactionIsolationTest, TimeGoesOnWithinATransaction) {
  const v1::ClaimRequest claim = ClaimFor(milliseconds(300), RandomKey());
  pqxx::work work(connection_);
  work.exec("SELECT pg_sleep(0.4)");
  // Another life of the key, after this transaction began.
  const auto earlier = Send(stub(), ByAnother(claim));
  ASSERT_EQ(Decided(earlier), "Claimed");
  Sql("DELETE FROM idempotency_records WHERE key = '" + claim.key() + "'");
  const auto claimed = once_.Claim(work, claim);
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  EXPECT_GT(claimed->claimed().fencing_token(),
            earlier->claimed().fencing_token());
  EXPECT_GE(MillisecondsOf(claimed->claimed().lease()), milliseconds(150));
  // The lease is over, and nobody could take over.
  work.exec("SELECT pg_sleep(0.4)");
  const auto finalized = once_.Finalize(work, FinalizeOf(claim, 200, "done"));
  ASSERT_TRUE(finalized.ok()) << finalized.status();
  work.commit();
  EXPECT_EQ(State(claim.key()), "STATE_FINALIZED");
  EXPECT_EQ(Sql("SELECT expires_at - finalized_at >= '24 hours' AND "
                "finalized_at > claimed_at + interval '350 ms' FROM "
                "idempotency_records WHERE key = '" +
                claim.key() + "'"),
            "t");
}

// Every operation is executed once, by whoever gets there, and everybody gets
// its response, at each level of isolation.
TEST_F(TransactionIsolationTest, ManyWhoRunAgainExecuteOnce) {
  constexpr int kKeys = 15;
  std::vector<std::string> keys;
  for (int i = 0; i < kKeys; ++i) keys.push_back(RandomKey());
  Mutex mutex;
  std::vector<std::set<std::string>> answers(kKeys);
  const auto note = [&](int i, const v1::Response& response) {
    MutexLock lock(mutex);
    answers[i].insert(response.SerializeAsString());
  };
  const auto run_all = [&]<typename Transaction>(Transaction*) {
    pqxx::connection connection(database());
    for (int i = 0; i < kKeys && !HasFailure();) {
      try {
        Transaction work(connection);
        const RunResult result = once_.Run(work, OperationOf(ClaimOf(keys[i])),
                                           Order(work, keys[i]));
        if (!result.has_response()) {
          EXPECT_EQ(result.outcome, RunOutcome::kUnavailable) << result.status;
          continue;
        }
        work.commit();
        note(i++, result.response);
      } catch (const pqxx::failure&) {
        // By the order or the commit: to be run again.
      }
    }
  };
  std::vector<std::jthread> threads;
  for (int twice = 0; twice < 2; ++twice) {
    threads.emplace_back([&] { run_all(static_cast<pqxx::work*>(nullptr)); });
    threads.emplace_back(
        [&] { run_all(static_cast<RepeatableRead*>(nullptr)); });
    threads.emplace_back([&] { run_all(static_cast<Serializable*>(nullptr)); });
  }
  threads.clear();
  for (int i = 0; i < kKeys; ++i) {
    EXPECT_EQ(Orders(keys[i]), "1");
    EXPECT_THAT(answers[i],
                ElementsAre(RecordOf(keys[i]).response().SerializeAsString()));
  }
}

}  // namespace
}  // namespace idempotency
