// The store over a real PostgreSQL that this program starts itself.
#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "server/core/clock.h"
#include "server/core/metrics.h"
#include "server/store/postgres/connection_options.h"
#include "server/store/postgres/factory.h"
#include "server/store/postgres/migrator.h"
#include "tests/contract/store_contract.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {
namespace {

std::string Quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    quoted.append(c == '\'' ? 2 : 1, c);
  }
  return quoted + "'";
}

std::string Interval(absl::Duration duration) {
  return "(" + std::to_string(absl::ToInt64Microseconds(duration)) +
         " * interval '1 microsecond')";
}

std::string IntervalOrNull(const std::optional<absl::Duration>& duration) {
  return duration.has_value() ? Interval(*duration) : "NULL";
}

std::string WhereIs(const RecordId& id) {
  return " WHERE scope = " + Quoted(id.scope) + " AND key = " + Quoted(id.key);
}

class PostgresContractDatabase final : public ContractDatabase {
 public:
  explicit PostgresContractDatabase(std::string uri) {
    options_.uri = std::move(uri);
  }

  absl::Status Prepare() { return Migrate(options_, clock_).status(); }

  std::unique_ptr<Store> MakeStore() override {
    return MakePostgresStore(options_, clock_, metrics_);
  }

  std::unique_ptr<Sweeper> MakeSweeper() override {
    return MakePostgresSweeper(options_, clock_, metrics_);
  }

  void Age(const RecordId& id, absl::Duration by) override {
    std::string set;
    for (const char* column : {"created_at", "claimed_at", "lease_expires_at",
                               "expires_at", "gave_up_at", "finalized_at"}) {
      set += set.empty() ? "" : ", ";
      set += std::string(column) + " = " + column + " - " + Interval(by);
    }
    EXPECT_EQ(Run("UPDATE idempotency_records SET " + set + WhereIs(id) +
                  " RETURNING 1"),
              "1");
  }

  void AgeEvidence(absl::Duration by) override {
    Run("UPDATE idempotency_conflicts SET first_seen_at = first_seen_at - " +
        Interval(by) + ", last_seen_at = last_seen_at - " + Interval(by));
  }

  std::vector<Evidence> EvidenceOf(const RecordId& id) override {
    std::istringstream rows(Run(
        "SELECT status_code, count FROM idempotency_conflicts" + WhereIs(id)));
    std::vector<Evidence> evidence;
    Evidence row;
    while (rows >> row.status_code >> row.count) evidence.push_back(row);
    return evidence;
  }

  void AddPolicy(const Policy& policy) override {
    static const char* const kOnAbandoned[] = {"take_over", "hold"};
    static const char* const kOnServerError[] = {"release", "record", "hold"};
    Run("INSERT INTO ttl_policies (name, lease, max_lease, retention, "
        "retention_after_finalize, on_abandoned, on_server_error) VALUES (" +
        Quoted(policy.name) + ", " + Interval(policy.lease) + ", " +
        Interval(policy.max_lease) + ", " + IntervalOrNull(policy.retention) +
        ", " + IntervalOrNull(policy.retention_after_finalize) + ", " +
        Quoted(kOnAbandoned[static_cast<int>(policy.on_abandoned)]) + ", " +
        Quoted(kOnServerError[static_cast<int>(policy.on_server_error)]) + ")");
  }

  void AddScope(const std::string& scope, const ScopePolicy& rule) override {
    Run("INSERT INTO scope_policies (scope, policy, enforced) VALUES (" +
        Quoted(scope) + ", " + Quoted(rule.policy) + ", " +
        (rule.enforced ? "true" : "false") + ")");
  }

 private:
  std::string Run(const std::string& sql) {
    const absl::StatusOr<std::string> rows =
        TempPostgres::RunAt(options_.uri, sql);
    EXPECT_TRUE(rows.ok()) << rows.status();
    return rows.ok() ? *rows : std::string();
  }

  ConnectionOptions options_;
  SystemClock clock_;
  Metrics metrics_;
};

std::unique_ptr<ContractDatabase> MakePostgresDatabase() {
  absl::StatusOr<std::string> uri = TempPostgres::SharedDatabase();
  if (!uri.ok()) {
    ADD_FAILURE() << uri.status();
    return nullptr;
  }
  auto database = std::make_unique<PostgresContractDatabase>(*std::move(uri));
  const absl::Status prepared = database->Prepare();
  if (!prepared.ok()) {
    ADD_FAILURE() << prepared;
    return nullptr;
  }
  return database;
}

INSTANTIATE_TEST_SUITE_P(Postgres, StoreContract,
                         testing::Values(StoreUnderContract{
                             "postgres", &MakePostgresDatabase}));

}  // namespace
}  // namespace idempotency
