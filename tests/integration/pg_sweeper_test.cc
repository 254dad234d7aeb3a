// The sweeper takes what is over, parks what waits, and touches nothing else;
// a table that is swept and vacuumed stops growing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <future>
#include <iostream>
#include <memory>
#include <string>

#include "server/store/postgres/sweeper.h"
#include "tests/integration/open_transaction.h"
#include "tests/integration/pg_samples.h"

namespace idempotency {
namespace {

// One row: `expires_in` as an interval, and further columns with their values.
std::string InsertRow(const std::string& key, const std::string& expires_in,
                      bool in_flight, bool held,
                      const std::string& policy = "default") {
  const std::string response = in_flight ? "NULL, NULL, NULL, NULL, NULL"
                                         : "now(), 200, '\\x00', '', ''";
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  return "INSERT INTO idempotency_records (scope, key, created_at, claimed_at, "
         "lease_expires_at, expires_at, lease_us, fencing_token, version, "
         "policy_lease_us, policy_max_lease_us, attempt, on_abandoned, "
         "on_server_error, in_flight, held, claim_token, request_hash, policy, "
         "finalized_at, status_code, response_digest, headers, body) VALUES "
         "('orders', '" +
         key +
         "', now(), now(), now() + interval '1 s', "
         "now() + interval '" +
         expires_in + "', 1, 1, 1, 1, 1, 1, 0, 0, " + flag(in_flight) + ", " +
         flag(held) +
         ", gen_random_uuid(), "
         "decode(repeat('00', 32), 'hex'), '" +
         policy + "', " + response + ");";
}

class PgSweeperTest : public testing::TestWithParam<bool> {
 protected:
  static ConnectionOptions Options() {
    ConnectionOptions options = MigratedDatabase();
    options.citus = GetParam();
    options.lock_timeout = std::chrono::seconds(10);
    options.statement_timeout = std::chrono::seconds(10);
    return options;
  }

  SweepReport Sweep(int limit = 1000) {
    const absl::StatusOr<SweepReport> report = sweeper_.SweepRecords(limit);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *report : SweepReport();
  }

  std::string Keys() {
    return Sql(options_,
               "SELECT string_agg(key, ',' ORDER BY key) FROM "
               "idempotency_records");
  }

  const ConnectionOptions options_ = Options();
  PgSweeper sweeper_{options_, SampleClock()};
};

INSTANTIATE_TEST_SUITE_P(Forms, PgSweeperTest, testing::Values(false, true),
                         [](const auto& form) {
                           return form.param ? "ByKey" : "ByPlace";
                         });

TEST_P(PgSweeperTest, DeletesWhatHasExpiredAndCountsTheUnfinished) {
  Sql(options_, InsertRow("final", "-1 s", false, false) +
                    InsertRow("final-held", "-1 s", false, true) +
                    InsertRow("unfinished-1", "-1 s", true, false) +
                    InsertRow("unfinished-2", "-1 s", true, false) +
                    InsertRow("unfinished-3", "-1 s", true, false, "task") +
                    InsertRow("alive", "1 h", true, false) +
                    InsertRow("alive-final", "1 h", false, false));
  const SweepReport report = Sweep();
  EXPECT_EQ(report.deleted, 5);
  EXPECT_EQ(report.parked, 0);
  EXPECT_EQ(report.unfinished,
            (std::map<std::string, std::int64_t>{{"default", 2}, {"task", 1}}));
  EXPECT_EQ(Keys(), "alive,alive-final");
  EXPECT_EQ(Sweep().deleted, 0);
}

TEST_P(PgSweeperTest, ParksHeldUnfinishedRecords) {
  Sql(options_, InsertRow("held", "-1 s", true, true) +
                    InsertRow("held-alive", "1 h", true, true) +
                    InsertRow("final", "-1 s", false, false));
  const SweepReport report = Sweep();
  EXPECT_EQ(report.deleted, 1);
  EXPECT_EQ(report.parked, 1);
  EXPECT_EQ(Sql(options_,
                "SELECT key, expires_at = 'infinity', version FROM "
                "idempotency_records ORDER BY key"),
            "held\tt\t2\nheld-alive\tf\t1");
  EXPECT_EQ(Sweep().parked, 0);
}

TEST_P(PgSweeperTest, TakesTheOldestFirstAndNoMoreThanAsked) {
  std::string rows;
  for (int i = 1; i <= 9; ++i) {
    rows += InsertRow(std::to_string(i), "-" + std::to_string(i) + " s", false,
                      false);
  }
  Sql(options_, rows);
  EXPECT_EQ(Sweep(4).deleted, 4);
  EXPECT_EQ(Keys(), "1,2,3,4,5");
}

TEST(PgSweeper, IsNotHeldUpByARowThatSomebodyHasLocked) {
  ConnectionOptions options = MigratedDatabase();
  Sql(options, InsertRow("locked", "-2 s", false, false) +
                   InsertRow("other", "-1 s", false, false));
  const OpenTransaction open(
      options.uri,
      "SELECT FROM idempotency_records WHERE key = 'locked' FOR UPDATE");
  PgSweeper sweeper(options, SampleClock());
  const absl::StatusOr<SweepReport> report = sweeper.SweepRecords(1000);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->deleted, 1);
  EXPECT_EQ(Sql(options, "SELECT key FROM idempotency_records"), "locked");
}

TEST_P(PgSweeperTest, LeavesARowThatIsClaimedAgainUnderIt) {
  Sql(options_, InsertRow("reclaimed", "-1 s", false, false));
  pqxx::connection connection(options_.uri);
  pqxx::work claim(connection);
  claim.exec(
      "UPDATE idempotency_records SET expires_at = now() + interval '1 h', "
      "version = version + 1");
  auto report = std::async(std::launch::async, [&] { return Sweep(); });
  ASSERT_TRUE(Eventually([&] {
    return Sql(options_,
               "SELECT count(*) FROM pg_stat_activity WHERE datname = "
               "current_database() AND wait_event_type = 'Lock'") == "1";
  }));
  claim.commit();
  EXPECT_EQ(report.get().deleted, 0);
  EXPECT_EQ(Keys(), "reclaimed");
}

TEST_P(PgSweeperTest, DeletesOldEvidence) {
  Sql(options_,
      "INSERT INTO idempotency_conflicts SELECT 'orders', i::text, "
      "gen_random_uuid(), '\\x00', 200, now() - interval '100 days', now() - i "
      "* interval '1 day', 1 FROM generate_series(1, 10) AS i");
  const absl::Duration kept_for = absl::Hours(24 * 5) + absl::Hours(12);
  EXPECT_EQ(sweeper_.SweepConflicts(3, kept_for).value_or(-1), 3);
  EXPECT_EQ(sweeper_.SweepConflicts(1000, kept_for).value_or(-1), 2);
  EXPECT_EQ(Sql(options_, "SELECT count(*) FROM idempotency_conflicts"), "5");
}

// ---- The table over many retention periods.

struct Sizes {
  std::int64_t table = 0;
  std::int64_t indexes = 0;
};

class TableGrowthTest : public testing::Test {
 protected:
  static constexpr int kRows = 2000;

  // A period's worth of records is claimed and finalized while that of the
  // period before expires and is swept. What autovacuum does now and then is
  // done at the end.
  Sizes LiveOnePeriod(bool vacuum = true) {
    Sql(options_,
        "INSERT INTO idempotency_records (scope, key, created_at, claimed_at, "
        "lease_expires_at, expires_at, lease_us, fencing_token, version, "
        "policy_lease_us, policy_max_lease_us, attempt, on_abandoned, "
        "on_server_error, in_flight, held, claim_token, request_hash, policy) "
        "SELECT 'orders', gen_random_uuid()::text, now(), now(), now() + "
        "interval '1 s', clock_timestamp(), 1, 1, 1, 1, 1, 1, 0, 0, true, "
        "false, gen_random_uuid(), decode(repeat('00', 32), 'hex'), 'default' "
        "FROM generate_series(1, " +
            std::to_string(kRows) + ")");
    Sql(options_,
        "UPDATE idempotency_records SET in_flight = false, version = 2, "
        "finalized_at = now(), status_code = 200, response_digest = "
        "decode(repeat('00', 32), 'hex'), headers = decode(repeat('00', 100), "
        "'hex'), body = decode(repeat('00', 200), 'hex') WHERE in_flight");
    // The oldest are those of the period before.
    for (int left = periods_++ == 0 ? 0 : kRows; left > 0; left -= kRows / 5) {
      EXPECT_EQ(
          sweeper_.SweepRecords(kRows / 5).value_or(SweepReport()).deleted,
          kRows / 5);
    }
    if (vacuum) Sql(options_, "VACUUM idempotency_records");
    const std::string sizes =
        Sql(options_,
            "SELECT pg_table_size('idempotency_records'), "
            "pg_indexes_size('idempotency_records')");
    return {.table = std::stoll(sizes),
            .indexes = std::stoll(sizes.substr(sizes.find('\t') + 1))};
  }

  const ConnectionOptions options_ = MigratedDatabase();
  PgSweeper sweeper_{options_, SampleClock()};
  int periods_ = 0;
};

TEST_F(TableGrowthTest, TableAndIndexesStopGrowingAfterAFewPeriods) {
  Sizes most;  // of the first periods
  for (int period = 1; period <= 7; ++period) {
    const Sizes now = LiveOnePeriod();
    std::cout << "table " << now.table / 1024 << " KiB, indexes "
              << now.indexes / 1024 << " KiB\n";
    if (period <= 4) {
      most.table = std::max(most.table, now.table);
      most.indexes = std::max(most.indexes, now.indexes);
    } else {
      EXPECT_LE(now.table, most.table * 11 / 10);
      EXPECT_LE(now.indexes, most.indexes * 5 / 4);
    }
  }
  // Without vacuum they would grow.
  for (int period = 0; period < 2; ++period) LiveOnePeriod(false);
  EXPECT_GT(LiveOnePeriod(false).table, most.table * 11 / 10);
}

}  // namespace
}  // namespace idempotency
