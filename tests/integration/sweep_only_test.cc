// The server that serves no calls and only cleans a database.
#include <gmock/gmock.h>

#include <chrono>
#include <string>
#include <thread>

#include "tests/integration/metrics_page.h"
#include "tests/integration/transaction_fixture.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

TEST(SweepOnlyTest, DeletesWhatServicesWroteThemselvesUntilSigterm) {
  const std::string database = Require(TempPostgres::SharedDatabase());
  Replica::Options options;
  options.database = database;
  options.flags = {"--sweep_only", "--admin_listen=127.0.0.1:0",
                   "--reaper_pause=50ms"};
  options.wait_until_serving = false;
  const auto sweeping = Require(Replica::Start(options));
  const auto line = sweeping->WaitForLogLine("sweeping: the database answers");
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(sweeping->Log(), Not(HasSubstr("\"listening\"")));
  EXPECT_FALSE(
      sweeping->process().WaitForPort(sweeping->port(), milliseconds(50)).ok());

  const auto sql = [&](const std::string& text) {
    return Require(TempPostgres::RunAt(database, text));
  };
  sql("INSERT INTO ttl_policies (name, lease, retention) "
      "VALUES ('short', '100 ms', '100 ms')");
  OnceInTransaction once;
  pqxx::connection connection(database);
  for (const std::string policy : {"short", "default"}) {
    pqxx::work work(connection);
    const RunResult result =
        once.Run(work, OperationOf(ClaimOf(RandomKey(), policy)),
                 [](const v1::Claimed&) { return MakeResponse(200, "done"); });
    ASSERT_EQ(result.outcome, RunOutcome::kExecuted) << result.status;
    work.commit();
  }
  const auto end = std::chrono::steady_clock::now() + seconds(30);
  while (sql("SELECT string_agg(policy, ' ') FROM idempotency_records") !=
         "default") {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << sweeping->Log();
    std::this_thread::sleep_for(milliseconds(10));
  }
  // Counted when the answer to the DELETE is there.
  MetricsPage page = Require(MetricsPage::Get(AdminPortOf(*sweeping)));
  constexpr char kDeleted[] =
      "idempotency_reaper_rows_total{result=\"deleted\"}";
  while (page.Value(kDeleted) == 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << sweeping->Log();
    std::this_thread::sleep_for(milliseconds(10));
    page = Require(MetricsPage::Get(AdminPortOf(*sweeping)));
  }
  EXPECT_EQ(page.Value(kDeleted), 1);
  EXPECT_EQ(page.Value("idempotency_serving"), 1);
  EXPECT_EQ(page.Value("idempotency_queue_calls"), 0);

  sweeping->Terminate();
  EXPECT_EQ(Require(sweeping->WaitForExit()).code, 0) << sweeping->Log();
}

TEST(SweepOnlyTest, APrivateDatabaseHasItsServer) {
  Replica::Options options;
  options.flags = {"--sweep_only"};
  options.wait_until_serving = false;
  const auto refused = Replica::Start(options);
  if (refused.ok()) {
    EXPECT_EQ(Require((*refused)->WaitForExit()).code, 2);
    EXPECT_THAT((*refused)->Log(), HasSubstr("--database"));
  } else {
    EXPECT_THAT(std::string(refused.status().message()),
                HasSubstr("--database"));
  }
}

}  // namespace
}  // namespace idempotency
