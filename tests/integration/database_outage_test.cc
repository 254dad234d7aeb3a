// PostgreSQL away, frozen, read-only, full, or with a row that somebody else
// keeps locked: what callers are told, and that it heals by itself.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <libpq-fe.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/fault_calls.h"
#include "tests/integration/load.h"
#include "tests/support/replica.h"
#include "tests/support/tcp_gate.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::IsEmpty;

// What a busy machine may add to a deadline.
constexpr milliseconds kDeadlineSlack{1000};
constexpr char kServersSessions[] =
    "FROM pg_stat_activity WHERE application_name = 'idempotency-server'";

// The first call after a session was lost may have gone into it.
const auto kUnavailable = AnyOf("STORE_UNAVAILABLE", "OUTCOME_UNKNOWN");

struct Finish {
  void operator()(PGconn* connection) const { PQfinish(connection); }
};

// A session with PostgreSQL that keeps what it has locked.
class Session {
 public:
  explicit Session(const std::string& uri)
      : session_(PQconnectdb(uri.c_str())) {}

  bool connected() const { return PQstatus(session_.get()) == CONNECTION_OK; }

  void Run(const std::string& sql) {
    PGresult* const result = PQexec(session_.get(), sql.c_str());
    const ExecStatusType status = PQresultStatus(result);
    PQclear(result);
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) {
      throw std::runtime_error(PQerrorMessage(session_.get()));
    }
  }

 private:
  std::unique_ptr<PGconn, Finish> session_;
};

class DatabaseOutageTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    TempPostgres::Options options;
    options.fsync = false;
    options.settings = {{"max_connections", "24"}};
    postgres_ = Require(TempPostgres::Make(std::move(options))).release();
    database_ = new std::string(Require(postgres_->CreateDatabase("outage")));
    gate_ = Require(TcpGate::Make(postgres_->port())).release();
    for (Replica*& replica : replicas_) {
      replica = StartReplica(ThroughPort(*database_, gate_->port())).release();
    }
  }

  static void TearDownTestSuite() {
    for (Replica*& replica : replicas_) delete std::exchange(replica, nullptr);
    delete gate_;
    delete database_;
    delete postgres_;
  }

  // The tests that come after begin with a sound database.
  void TearDown() override {
    gate_->Open();
    postgres_->Resume();
    RequireOk(postgres_->Start());
    for (Replica* replica : replicas_) RequireOk(replica->WaitUntilServing());
  }

  static std::string Run(const std::string& sql) {
    return Require(postgres_->Run(sql, "outage"));
  }

  static Stub& stub() { return replicas_[0]->stub(); }

  // Claims of new keys, all at once, each with the deadline that is its turn.
  struct Refused {
    v1::ClaimRequest claim;
    std::string decided;
    milliseconds late{0};  // beyond its deadline
  };
  static std::vector<Refused> ClaimManyAtOnce() {
    constexpr std::size_t kClaims = 24;
    constexpr milliseconds kDeadlines[] = {milliseconds(400),
                                           milliseconds(1000), seconds(4)};
    std::vector<Refused> all(kClaims);
    std::vector<std::thread> callers;
    for (std::size_t i = 0; i < kClaims; ++i) {
      callers.emplace_back([&one = all[i], i, &kDeadlines] {
        const milliseconds deadline = kDeadlines[i % std::size(kDeadlines)];
        one.claim = ClaimOf(RandomKey());
        const steady_clock::time_point sent = steady_clock::now();
        one.decided = Decided(
            Send(replicas_[i % replicas_.size()]->stub(), one.claim, deadline));
        one.late = std::chrono::duration_cast<milliseconds>(
            steady_clock::now() - sent - deadline);
      });
    }
    for (std::thread& caller : callers) caller.join();
    return all;
  }

  static std::vector<std::string> DecisionsOf(
      const std::vector<Refused>& refused) {
    std::vector<std::string> decided;
    for (const Refused& one : refused) decided.push_back(one.decided);
    return decided;
  }

  static milliseconds LatestOf(const std::vector<Refused>& refused) {
    milliseconds latest = milliseconds::min();
    for (const Refused& one : refused) latest = std::max(latest, one.late);
    return latest;
  }

  static std::string RowsOf(const std::vector<Refused>& refused) {
    std::string keys;
    for (const Refused& one : refused) {
      absl::StrAppend(&keys, keys.empty() ? "'" : ",'", one.claim.key(), "'");
    }
    return Run(absl::StrCat(
        "SELECT count(*) FROM idempotency_records WHERE key IN (", keys, ")"));
  }

  // How long it takes until every replica grants a claim again.
  static milliseconds TimeUntilServed() {
    const steady_clock::time_point begin = steady_clock::now();
    for (const Replica* replica : replicas_) {
      const auto answer = ClaimPatiently(replica->stub(), ClaimOf(RandomKey()));
      EXPECT_EQ(Decided(answer), "Claimed");
    }
    return std::chrono::duration_cast<milliseconds>(steady_clock::now() -
                                                    begin);
  }

  static inline TempPostgres* postgres_ = nullptr;
  static inline std::string* database_ = nullptr;
  static inline TcpGate* gate_ = nullptr;
  static inline std::vector<Replica*> replicas_{nullptr, nullptr};
};

TEST_F(DatabaseOutageTest, StoppedDatabaseGrantsNobodyAndIsUsedOnceItIsBack) {
  const v1::ClaimRequest before = ClaimOf(RandomKey());
  ASSERT_EQ(Decided(Send(stub(), before)), "Claimed");
  for (const auto mode :
       {TempPostgres::StopMode::kFast, TempPostgres::StopMode::kImmediate}) {
    RequireOk(postgres_->Stop(mode));
    const std::vector<Refused> refused = ClaimManyAtOnce();
    EXPECT_THAT(DecisionsOf(refused), Each(kUnavailable));
    EXPECT_LE(LatestOf(refused), kDeadlineSlack);
    for (const Replica* replica : replicas_) {
      RequireOk(replica->WaitUntilNotServing(seconds(10)));
      EXPECT_EQ(Decided(Send(replica->stub(), LookupOf(before))),
                "STORE_UNAVAILABLE");
    }
    RequireOk(postgres_->Start());
    EXPECT_LE(TimeUntilServed(), seconds(5));
    for (const Replica* replica : replicas_) {
      RequireOk(replica->WaitUntilServing(seconds(5)));
    }
    EXPECT_EQ(RowsOf(refused), "0");
    // The refused may ask again with the same claim token.
    EXPECT_EQ(Decided(Send(stub(), refused.front().claim)), "Claimed");
  }
  EXPECT_EQ(Decided(Send(stub(), FinalizeOf(before, 200, ""))),
            "RESULT_RECORDED");
}

TEST_F(DatabaseOutageTest, FrozenDatabaseGrantsNobodyWithinTheDeadline) {
  RequireOk(postgres_->Pause());
  const std::vector<Refused> refused = ClaimManyAtOnce();
  EXPECT_THAT(
      DecisionsOf(refused),
      Each(AnyOf("DEADLINE_EXCEEDED", "STORE_UNAVAILABLE", "OUTCOME_UNKNOWN")));
  EXPECT_LE(LatestOf(refused), kDeadlineSlack);
  for (const Replica* replica : replicas_) {
    RequireOk(replica->WaitUntilNotServing(seconds(20)));
  }
  postgres_->Resume();
  EXPECT_LE(TimeUntilServed(), seconds(5));
  // What was sent before it froze may have been done since: for its own claim
  // token only.
  for (const Refused& one : refused) {
    EXPECT_EQ(Decided(Send(stub(), one.claim)), "Claimed");
    EXPECT_EQ(Decided(Send(stub(), ByAnother(one.claim))), "InProgress");
  }
}

TEST_F(DatabaseOutageTest, TerminatedSessionsUnderLoadLoseNothing) {
  constexpr int kRounds = 40;
  Load load({replicas_[0]->channel(), replicas_[1]->channel()}, {});
  int terminated = 0;
  for (int i = 0; i < kRounds; ++i) {
    ASSERT_TRUE(load.WaitForAcknowledged(5, seconds(30)));
    terminated += std::stoi(Run(absl::StrCat(
        "SELECT count(pg_terminate_backend(pid)) ", kServersSessions)));
  }
  load.Stop();
  const std::vector<Recorded> acknowledged = load.acknowledged();
  std::cout << terminated << " sessions terminated, " << acknowledged.size()
            << " responses acknowledged, " << load.unserved()
            << " attempts not served\n";
  EXPECT_GT(terminated, kRounds);
  EXPECT_THAT(load.wrong(), IsEmpty());
  EXPECT_THAT(MissingReplays(stub(), acknowledged), IsEmpty());
}

TEST_F(DatabaseOutageTest, ReadOnlyDatabaseGrantsNobody) {
  Run("ALTER SYSTEM SET default_transaction_read_only = on");
  Run("SELECT pg_reload_conf()");
  while (Run("SHOW transaction_read_only") != "on") {
    std::this_thread::sleep_for(milliseconds(10));
  }
  const std::vector<Refused> refused = ClaimManyAtOnce();
  Run("ALTER SYSTEM RESET default_transaction_read_only");
  Run("SELECT pg_reload_conf()");
  EXPECT_THAT(DecisionsOf(refused), Each("STORE_UNAVAILABLE"));
  EXPECT_LE(LatestOf(refused), kDeadlineSlack);
  EXPECT_LE(TimeUntilServed(), seconds(5));
  EXPECT_EQ(RowsOf(refused), "0");
}

TEST_F(DatabaseOutageTest, NoFreeConnectionGrantsNobodyUntilThereIsOne) {
  gate_->Refuse();
  while (Run(absl::StrCat("SELECT count(*) ", kServersSessions)) != "0") {
    std::this_thread::sleep_for(milliseconds(10));
  }
  std::vector<std::unique_ptr<Session>> sessions;
  do {
    sessions.push_back(std::make_unique<Session>(*database_));
  } while (sessions.back()->connected() && sessions.size() < 100);
  gate_->Open();
  const std::vector<Refused> refused = ClaimManyAtOnce();
  sessions.clear();
  EXPECT_THAT(DecisionsOf(refused), Each(kUnavailable));
  EXPECT_LE(LatestOf(refused), kDeadlineSlack);
  EXPECT_LE(TimeUntilServed(), seconds(5));
  EXPECT_EQ(RowsOf(refused), "0");
}

class LockedRowTest : public DatabaseOutageTest {
 protected:
  // Calls about other keys while a row is locked, and how long each took.
  static std::vector<milliseconds> CallNeighbours(
      steady_clock::time_point end) {
    std::vector<milliseconds> took;
    while (steady_clock::now() < end) {
      const v1::ClaimRequest claim = ClaimOf(RandomKey());
      const steady_clock::time_point sent = steady_clock::now();
      EXPECT_EQ(Decided(Send(stub(), claim)), "Claimed");
      EXPECT_EQ(Decided(Send(stub(), FinalizeOf(claim, 200, ""))),
                "RESULT_RECORDED");
      took.push_back(
          std::chrono::duration_cast<milliseconds>(steady_clock::now() - sent));
    }
    std::sort(took.begin(), took.end());
    return took;
  }

  // Sends `request`, whose row is locked, with a deadline of two seconds,
  // among calls about other keys.
  template <typename Request>
  static void ExpectUnavailableAmongUnharmed(const Request& request) {
    constexpr milliseconds kDeadline{2000};
    std::vector<milliseconds> neighbours;
    const steady_clock::time_point sent = steady_clock::now();
    std::thread other([&] { neighbours = CallNeighbours(sent + kDeadline); });
    const std::string decided = Decided(Send(stub(), request, kDeadline));
    const auto took = steady_clock::now() - sent;
    other.join();
    EXPECT_EQ(decided, "STORE_UNAVAILABLE");
    EXPECT_GT(took, kDeadline / 2);
    EXPECT_LT(took, kDeadline + kDeadlineSlack);
    ASSERT_GT(neighbours.size(), 10U);
    std::cout << neighbours.size() << " neighbours, the median took "
              << neighbours[neighbours.size() / 2].count()
              << " ms, the slowest " << neighbours.back().count() << " ms\n";
    // One of them may have shared the first statement with the locked row.
    EXPECT_LT(neighbours[neighbours.size() * 9 / 10], milliseconds(200));
    EXPECT_LT(neighbours.back(), seconds(1));
  }
};

TEST_F(LockedRowTest, LockedRowMakesItsOwnCallsWaitAndNobodyElses) {
  const v1::ClaimRequest claim = ClaimOf(RandomKey());
  ASSERT_EQ(Decided(Send(stub(), claim)), "Claimed");
  Session session(*database_);
  session.Run("BEGIN");
  session.Run(absl::StrCat("SELECT FROM idempotency_records WHERE key = '",
                           claim.key(), "' FOR UPDATE"));
  // Who needs no lock is answered.
  EXPECT_EQ(Decided(Send(stub(), ByAnother(claim))), "InProgress");
  EXPECT_EQ(Decided(Send(stub(), LookupOf(claim))), "STATE_IN_PROGRESS");
  ExpectUnavailableAmongUnharmed(claim);
  ExpectUnavailableAmongUnharmed(FinalizeOf(claim, 201, "done"));
  ExpectUnavailableAmongUnharmed(
      ReleaseOf(claim, v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED));
  session.Run("ROLLBACK");
  EXPECT_EQ(Decided(Send(stub(), FinalizeOf(claim, 201, "done"))),
            "RESULT_RECORDED");
}

TEST_F(LockedRowTest, UncommittedRowOfAnotherIsNobodysClaim) {
  const v1::ClaimRequest model = ClaimOf(RandomKey());
  ASSERT_EQ(Decided(Send(stub(), model)), "Claimed");
  const v1::ClaimRequest claim = ClaimOf(RandomKey());
  Session session(*database_);
  session.Run("BEGIN");
  session.Run(
      absl::StrCat("CREATE TEMP TABLE copy ON COMMIT DROP AS SELECT * "
                   "FROM idempotency_records WHERE key = '",
                   model.key(), "'; UPDATE copy SET key = '", claim.key(),
                   "'; INSERT INTO idempotency_records TABLE copy"));
  ExpectUnavailableAmongUnharmed(claim);
  session.Run("ROLLBACK");
  EXPECT_EQ(Decided(Send(stub(), claim)), "Claimed");
}

}  // namespace
}  // namespace idempotency
