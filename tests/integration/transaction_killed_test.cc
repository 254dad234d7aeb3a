// Processes that are killed between any two steps of a transaction: its row and
// its record always agree, and whoever comes next finishes, once.
#include <gmock/gmock.h>
#include <signal.h>

#include <chrono>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/transaction_fixture.h"
#include "tests/support/server_process.h"

namespace idempotency {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;

class TransactionKilledTest : public TransactionTest {
 protected:
  static void SetUpTestSuite() {
    TransactionTest::SetUpTestSuite();
    // A commit that waits for whoever holds lock 1, or fails.
    Sql("CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ "
        "BEGIN "
        "  IF NEW.key LIKE 'slow-%' THEN "
        "    PERFORM pg_advisory_xact_lock(1); "
        "  ELSIF NEW.key LIKE 'refused-%' THEN "
        "    RAISE EXCEPTION 'no'; "
        "  END IF; "
        "  RETURN NEW; "
        "END $$; "
        "CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON orders "
        "DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION at_commit()");
  }

  static std::unique_ptr<ServerProcess> StartLife(const std::string& key,
                                                  const std::string& death) {
    return Require(
        ServerProcess::Start({.program = TRANSACTION_VICTIM_PROGRAM,
                              .arguments = {database(), key, death},
                              .environment = {absl::StrCat("PGAPPNAME=", key)},
                              .output_file = {}}));
  }

  // Until PostgreSQL has noticed that the process is gone.
  static void WaitForSessionsToEnd(const std::string& key) {
    WaitFor(
        "SELECT count(*) = 0 FROM pg_stat_activity WHERE "
        "application_name = '" +
        key + "'");
  }
  static void WaitFor(const std::string& condition) {
    const auto end = std::chrono::steady_clock::now() + seconds(30);
    while (Sql(condition) != "t") {
      ASSERT_LT(std::chrono::steady_clock::now(), end) << condition;
      std::this_thread::sleep_for(milliseconds(5));
    }
  }

  // Either both are there, and the response names the row, or neither.
  static bool IsDone(const std::string& key) {
    const std::string ids =
        Sql("SELECT string_agg(id::text, ' ') FROM orders WHERE key = '" + key +
            "'");
    const std::string state = State(key);
    EXPECT_EQ(state, ids.empty() ? "RECORD_NOT_FOUND" : "STATE_FINALIZED");
    if (state != "STATE_FINALIZED") return false;
    EXPECT_EQ(RecordOf(key).response().body(), "order " + ids);
    return true;
  }

  // Somebody else's turn: answers with what is recorded, and was done once.
  static void ExpectDoneOnceByTheNext(const std::string& key, bool done) {
    const auto next = StartLife(key, "");
    const auto exit = next->WaitForExit();
    ASSERT_TRUE(exit.ok()) << exit.status();
    EXPECT_EQ(exit->code, 0) << next->Output();
    std::istringstream words(Require(next->WaitForLine("answer: ")));
    std::string word;
    std::string outcome;
    std::string bytes;
    words >> word >> outcome >> bytes;
    EXPECT_EQ(outcome, done ? "Replayed" : "Executed");
    std::string answer;
    EXPECT_TRUE(absl::WebSafeBase64Unescape(bytes, &answer));
    EXPECT_TRUE(IsDone(key));
    EXPECT_EQ(RecordOf(key).response().SerializeAsString(), answer);
    EXPECT_EQ(RecordOf(key).attempt(), 1);
  }

  static std::vector<std::string> StepsIn(const std::string& output) {
    const std::string mark = "step: ";
    std::vector<std::string> steps;
    std::istringstream lines(output);
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind(mark, 0) == 0) steps.push_back(line.substr(mark.size()));
    }
    return steps;
  }
};

TEST_F(TransactionKilledTest, KilledAtAnyStepRowAndRecordAgree) {
  const auto whole = StartLife(RandomKey(), "");
  ASSERT_TRUE(whole->WaitForExit().ok());
  const std::vector<std::string> steps = StepsIn(whole->Output());
  ASSERT_THAT(steps, ElementsAre("connected", "transaction begun", "claimed",
                                 "row written", "finalized", "committed"));
  for (const std::string& step : steps) {
    SCOPED_TRACE(step);
    const std::string key = RandomKey();
    const auto exit = Require(StartLife(key, step)->WaitForExit());
    EXPECT_EQ(exit.signal, SIGKILL);
    WaitForSessionsToEnd(key);
    const bool done = IsDone(key);
    EXPECT_EQ(done, step == "committed");
    ExpectDoneOnceByTheNext(key, done);
  }
}

TEST_F(TransactionKilledTest, KilledAtAnyMomentRowAndRecordAgree) {
  std::mt19937 random(SeedOfRun());
  std::uniform_int_distribution<int> moment(0, 30'000);
  for (int i = 0; i < (IsLongRun() ? 500 : 10); ++i) {
    const std::string key = RandomKey();
    const auto life = StartLife(key, "");
    ASSERT_TRUE(life->WaitForLine("step: connected").ok());
    std::this_thread::sleep_for(microseconds(moment(random)));
    life->Kill();
    ASSERT_TRUE(life->WaitForExit().ok());
    WaitForSessionsToEnd(key);
    ExpectDoneOnceByTheNext(key, IsDone(key));
  }
}

// The database carries out the commit that it was told of.
TEST_F(TransactionKilledTest, KilledBeforeTheCommitIsAnsweredBothAreKept) {
  const std::string key = "slow-" + RandomKey();
  pqxx::connection holder(database());
  pqxx::nontransaction session(holder);
  session.exec("SELECT pg_advisory_lock(1)");
  const auto life = StartLife(key, "");
  WaitFor(
      "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name "
      "= '" +
      key + "' AND query = 'COMMIT' AND wait_event_type = 'Lock'");
  life->Kill();
  ASSERT_TRUE(life->WaitForExit().ok());
  EXPECT_FALSE(IsDone(key));
  session.exec("SELECT pg_advisory_unlock(1)");
  WaitForSessionsToEnd(key);
  EXPECT_TRUE(IsDone(key));
  ExpectDoneOnceByTheNext(key, true);
}

TEST_F(TransactionKilledTest, ACommitThatFailsKeepsNeither) {
  const std::string key = "refused-" + RandomKey();
  pqxx::work work(connection_);
  EXPECT_EQ(
      once_.Run(work, OperationOf(ClaimOf(key)), Order(work, key)).outcome,
      RunOutcome::kExecuted);
  EXPECT_THROW(work.commit(), std::exception);
  EXPECT_FALSE(IsDone(key));
}

}  // namespace
}  // namespace idempotency
