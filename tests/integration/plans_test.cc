// How PostgreSQL runs the statements: by the indexes, whatever its statistics
// say, and with updates that leave the indexes alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/store/postgres/conninfo.h"
#include "server/store/postgres/record_table.h"
#include "server/store/postgres/statements.h"
#include "server/store/postgres/sweep_statements.h"
#include "tests/integration/pg_samples.h"

namespace idempotency {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::vector<Statement>& TableStatements() {
  static const std::vector<Statement> statements = {
      statements::kInsertNew,
      statements::kFinalizeOwned,
      statements::InsertAndFinalize(),
      statements::kReadRecords,
      statements::kReadBodies,
      statements::kFindUnchanged,
      statements::kReplace,
      statements::kKeepConflicts,
      statements::kCountConflicts,
      statements::kSweep,
      statements::SweepUnlocked(),
      statements::kParkByKey,
      statements::kDeleteByKey,
      statements::kSweepConflicts};
  return statements;
}

int ParametersOf(const Statement& statement) {
  int count = 0;
  const std::string sql(statement.sql);
  while (sql.find("$" + std::to_string(count + 1) + "::") !=
         std::string::npos) {
    ++count;
  }
  return count;
}

class PlansTest : public testing::Test {
 protected:
  // The statistics change only when a test says so.
  void SetUp() override {
    for (const char* table : {"idempotency_records", "idempotency_conflicts"}) {
      Sql(options_, std::string("ALTER TABLE ") + table +
                        " SET (autovacuum_enabled = off)");
    }
  }

  void Fill(int rows) {
    Sql(options_,
        "INSERT INTO idempotency_records (scope, key, created_at, claimed_at, "
        "lease_expires_at, expires_at, lease_us, fencing_token, version, "
        "policy_lease_us, policy_max_lease_us, attempt, on_abandoned, "
        "on_server_error, in_flight, held, claim_token, request_hash, policy) "
        "SELECT 'orders', 'filler-' || i, now(), now(), now() + interval "
        "'1 h', now() + i * interval '1 s', 1, 1, 1, 1, 1, 1, 0, 0, true, "
        "false, gen_random_uuid(), decode(repeat('00', 32), 'hex'), 'default' "
        "FROM generate_series(1, " +
            std::to_string(rows) +
            ") AS i;"
            "INSERT INTO idempotency_conflicts SELECT 'orders', 'filler-' || "
            "i, "
            "gen_random_uuid(), '\\x00', 200, now(), now() - interval '1 h' + "
            "i * "
            "interval '1 s', 1 FROM generate_series(1, " +
            std::to_string(rows) + ") AS i");
  }

  // The plan that a session of the store's would make now and keep.
  std::string PlanOf(const Statement& statement) {
    const absl::StatusOr<std::string> conninfo = MakeConninfo(options_);
    EXPECT_TRUE(conninfo.ok());
    std::string nulls;
    for (int i = 0; i < ParametersOf(statement); ++i) {
      nulls += i == 0 ? "NULL" : ", NULL";
    }
    const std::string settings =
        statement.plan == Plan::kInOrder ? "SET enable_indexscan = on;" : "";
    const absl::StatusOr<std::string> plan = TempPostgres::RunAt(
        conninfo.value_or(""),
        settings + "PREPARE one AS " + std::string(statement.sql) +
            "; EXPLAIN (COSTS OFF) EXECUTE one(" + nulls + ")");
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.value_or("");
  }

  void ExpectIndexedPlans() {
    for (const Statement& statement : TableStatements()) {
      const std::string plan = PlanOf(statement);
      EXPECT_THAT(plan, Not(HasSubstr("Seq Scan"))) << statement.name << plan;
      EXPECT_THAT(plan, Not(HasSubstr("Hash Join"))) << statement.name << plan;
      EXPECT_THAT(plan, Not(HasSubstr("Merge Join"))) << statement.name << plan;
      if (statement.name == statements::kInsertNew.name) continue;
      EXPECT_THAT(plan, HasSubstr("Index Cond:")) << statement.name << plan;
    }
  }

  // Of the records, after every session's counts have arrived.
  long long Counter(const std::string& column) {
    return std::stoll(Sql(options_, "SELECT " + column +
                                        " FROM pg_stat_user_tables WHERE "
                                        "relname = 'idempotency_records'"));
  }

  static bool FinalizeOnce(PgRecordTable& table) {
    const FinalizeCommand finalize = Finalize({"orders", "none"});
    const FinalizeCommand* const finalizes[] = {&finalize};
    return table.FinalizeOwned(finalizes).ok();
  }

  const ConnectionOptions options_ = MigratedDatabase();
};

TEST_F(PlansTest, OnATableThatWasNeverAnalysedUseTheIndexes) {
  ExpectIndexedPlans();
  Fill(5'000);
  ExpectIndexedPlans();
}

TEST_F(PlansTest, OnATableAnalysedWhileEmptyUseTheIndexes) {
  Sql(options_, "VACUUM ANALYZE idempotency_records");
  Sql(options_, "VACUUM ANALYZE idempotency_conflicts");
  ExpectIndexedPlans();
  Fill(5'000);
  ExpectIndexedPlans();
}

TEST_F(PlansTest, OnALargeTableUseTheIndexes) {
  Fill(200'000);
  for (int i = 0; i < 2; ++i) {
    ExpectIndexedPlans();
    Sql(options_, "VACUUM ANALYZE");
  }
  for (const Statement& sweep :
       {statements::kSweep, statements::SweepUnlocked(),
        statements::kSweepConflicts}) {
    EXPECT_THAT(PlanOf(sweep), Not(HasSubstr("Sort"))) << sweep.name;
  }
}

// The planner knows of no row, and might as well read all there are.
TEST_F(PlansTest, KeptSinceTheTableWasEmptyReadNoMoreThanTheyMust) {
  Sql(options_, "VACUUM ANALYZE idempotency_records");
  long long before = 0;
  {
    PgRecordTable table(options_, SampleClock());
    EXPECT_TRUE(FinalizeOnce(table));
    Fill(2'000);
    before = Counter("seq_tup_read + idx_tup_fetch");
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(FinalizeOnce(table));
  }
  // The session reports its counts when it ends.
  ASSERT_TRUE(Eventually([&] {
    return Sql(options_,
               "SELECT count(*) FROM pg_stat_activity WHERE datname = "
               "current_database() AND application_name = "
               "'idempotency-server'") == "0";
  }));
  EXPECT_EQ(Counter("seq_tup_read + idx_tup_fetch"), before);
}

TEST_F(PlansTest, FinalizesOfSmallBodiesAreHotUpdates) {
  constexpr int kBatches = 100;
  constexpr int kBatch = 32;
  {
    PgRecordTable table(options_, SampleClock());
    for (int batch = 0; batch < kBatches; ++batch) {
      std::vector<ClaimCommand> claims;
      std::vector<FinalizeCommand> finalizes;
      for (int i = 0; i < kBatch; ++i) {
        // Random-looking, as callers' keys are, and in order within a batch.
        const std::string key = std::to_string(1000 + i) +
                                std::string(25, 'k') +
                                std::to_string(batch * 7919 % 10'007);
        claims.push_back(Claim({"orders", key}));
        finalizes.push_back(Finalize({"orders", key}));
        // Three headers of common size.
        finalizes.back().response.headers = std::string(140, 'h');
      }
      const auto granted = table.InsertNew(Pointers(claims));
      ASSERT_TRUE(granted.ok()) << granted.status();
      const auto recorded = table.FinalizeOwned(Pointers(finalizes));
      ASSERT_TRUE(recorded.ok()) << recorded.status();
    }
  }
  ASSERT_TRUE(Eventually([&] {
    return Counter("n_tup_upd") == kBatches * kBatch;
  })) << Counter("n_tup_upd");
  EXPECT_GE(Counter("n_tup_hot_upd"), kBatches * kBatch * 95 / 100);
}

}  // namespace
}  // namespace idempotency
