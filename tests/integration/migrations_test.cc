// The schema comes, goes and comes again, whoever brings it and however many
// do so at once; a database that does not fit is refused with its remedy.
#include "server/store/postgres/migrations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <future>
#include <string>
#include <vector>

#include "server/store/postgres/migrator.h"
#include "tests/integration/pg_samples.h"

namespace idempotency {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

class MigrationsTest : public testing::Test {
 protected:
  static ConnectionOptions EmptyDatabase() {
    const absl::StatusOr<std::string> uri = TempPostgres::SharedDatabase();
    EXPECT_TRUE(uri.ok()) << uri.status();
    ConnectionOptions options;
    options.uri = uri.value_or("");
    return options;
  }

  int MigrateNow() const {
    const absl::StatusOr<int> applied = Migrate(options_, SampleClock());
    EXPECT_TRUE(applied.ok()) << applied.status();
    return applied.value_or(-1);
  }

  absl::Status Check() const { return CheckSchema(options_, SampleClock()); }

  const int count_ = static_cast<int>(EmbeddedMigrations().size());
  const ConnectionOptions options_ = EmptyDatabase();
};

// Tables, columns, constraints, indexes, functions and triggers.
std::string SchemaOf(const ConnectionOptions& options) {
  return Sql(options,
             "SELECT string_agg(line, E'\\n' ORDER BY line) FROM ("
             "SELECT table_name || '.' || column_name || ' ' || data_type "
             "FROM information_schema.columns WHERE table_schema = 'public' "
             "UNION ALL SELECT conname || ' ' || pg_get_constraintdef(oid) "
             "FROM pg_constraint WHERE connamespace = 'public'::regnamespace "
             "UNION ALL SELECT indexdef FROM pg_indexes "
             "WHERE schemaname = 'public' "
             "UNION ALL SELECT proname::text FROM pg_proc "
             "WHERE pronamespace = 'public'::regnamespace "
             "UNION ALL SELECT tgname::text FROM pg_trigger "
             "WHERE NOT tgisinternal) AS schema (line)");
}

TEST_F(MigrationsTest, GoUpAndDownAndUpAgain) {
  EXPECT_EQ(SchemaOf(options_), "");
  EXPECT_EQ(MigrateNow(), count_);
  const std::string schema = SchemaOf(options_);
  EXPECT_THAT(schema, HasSubstr("idempotency_records.expires_at"));
  EXPECT_TRUE(Check().ok()) << Check();
  EXPECT_EQ(MigrateNow(), 0);

  for (int i = count_; i-- > 0;) {
    Sql(options_, std::string(EmbeddedMigrations()[i].down));
  }
  EXPECT_EQ(SchemaOf(options_), "");
  EXPECT_EQ(Check().code(), StatusCode::kFailedPrecondition);

  EXPECT_EQ(MigrateNow(), count_);
  EXPECT_EQ(SchemaOf(options_), schema);
}

TEST_F(MigrationsTest, AreAppliedOnceByTenAtATime) {
  std::vector<std::future<absl::StatusOr<int>>> migrators;
  for (int i = 0; i < 10; ++i) {
    migrators.push_back(std::async(
        std::launch::async, [&] { return Migrate(options_, SampleClock()); }));
  }
  int applied = 0;
  for (auto& migrator : migrators) {
    const absl::StatusOr<int> count = migrator.get();
    EXPECT_TRUE(count.ok()) << count.status();
    applied += count.value_or(0);
  }
  EXPECT_EQ(applied, count_);
  EXPECT_TRUE(Check().ok()) << Check();
}

TEST_F(MigrationsTest, OfPsqlAreRecognised) {
  for (const Migration& migration : EmbeddedMigrations()) {
    char file[32];
    std::snprintf(file, sizeof(file), "/%06d_", migration.version);
    const std::string command = "psql -X -q -1 -v ON_ERROR_STOP=1 -d '" +
                                options_.uri +
                                "' -f '" IDEMPOTENCY_MIGRATIONS_FOLDER + file +
                                std::string(migration.name) + ".up.sql'";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
  EXPECT_TRUE(Check().ok()) << Check();
  EXPECT_EQ(MigrateNow(), 0);
}

TEST_F(MigrationsTest, ThatFailLeaveNothingBehind) {
  // In the way of one of the tables.
  Sql(options_, "CREATE TABLE idempotency_conflicts (scope text)");
  const absl::StatusOr<int> applied = Migrate(options_, SampleClock());
  EXPECT_EQ(applied.status(), absl::InternalError("migrate: SQLSTATE 42P07"));
  EXPECT_EQ(Sql(options_,
                "SELECT count(*) FROM pg_tables WHERE schemaname = "
                "'public'"),
            "1");
}

TEST_F(MigrationsTest, ThatAreMissingAreNamedWithTheirRemedy) {
  const absl::Status missing = Check();
  EXPECT_EQ(missing.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("--migrate"));

  EXPECT_EQ(MigrateNow(), count_);
  Sql(options_, "DELETE FROM idempotency_schema WHERE version = " +
                    std::to_string(count_));
  const absl::Status old = Check();
  EXPECT_EQ(old.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(old.message()), HasSubstr("--migrate"));
}

TEST_F(MigrationsTest, OfANewerServerAreRefusedOnlyIfTheyAreMajor) {
  EXPECT_EQ(MigrateNow(), count_);
  Sql(options_,
      "INSERT INTO idempotency_schema VALUES (900, 'a_new_column', false)");
  EXPECT_TRUE(Check().ok()) << Check();
  EXPECT_EQ(MigrateNow(), 0);
  Sql(options_,
      "INSERT INTO idempotency_schema VALUES (901, 'another_world', true)");
  const absl::Status refused = Check();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("901"));
}

TEST_F(MigrationsTest, DrawANamespaceForEachDeployment) {
  EXPECT_EQ(MigrateNow(), count_);
  const ConnectionOptions other = MigratedDatabase();
  constexpr char kNamespace[] =
      "SELECT value::uuid FROM idempotency_settings WHERE name = "
      "'downstream_namespace'";
  EXPECT_EQ(Sql(options_, kNamespace).size(), 36u);
  EXPECT_NE(Sql(options_, kNamespace), Sql(other, kNamespace));
}

// Each is refused by the database itself.
TEST_F(MigrationsTest, GuardThePolicies) {
  EXPECT_EQ(MigrateNow(), count_);
  Sql(options_, "INSERT INTO scope_policies VALUES ('pay', 'payment')");
  for (const char* sql :
       {"DELETE FROM ttl_policies WHERE name = 'default'",
        "UPDATE ttl_policies SET name = 'x' WHERE name = 'default'",
        "TRUNCATE ttl_policies CASCADE",
        "DELETE FROM ttl_policies WHERE name = 'payment'",
        "UPDATE ttl_policies SET name = 'x' WHERE name = 'payment'",
        "UPDATE ttl_policies SET lease = '0' WHERE name = 'form'",
        "UPDATE ttl_policies SET lease = '99 ms' WHERE name = 'form'",
        "UPDATE ttl_policies SET lease = '2 h' WHERE name = 'form'",
        "UPDATE ttl_policies SET max_lease = '101 y' WHERE name = 'form'",
        "UPDATE ttl_policies SET retention = '0' WHERE name = 'form'",
        "UPDATE ttl_policies SET retention = '101 y' WHERE name = 'form'",
        "UPDATE ttl_policies SET retention_after_finalize = '1 h' WHERE name "
        "= 'form'",
        "UPDATE ttl_policies SET retention_after_finalize = '-1 h' WHERE name "
        "= 'task'",
        "UPDATE ttl_policies SET on_abandoned = 'ignore'",
        "UPDATE ttl_policies SET on_server_error = 'ignore'",
        "INSERT INTO scope_policies VALUES ('pay', 'none')",
        "INSERT INTO scope_policies VALUES ('', 'form')",
        "INSERT INTO scope_policies VALUES ('a//b', 'form')",
        "INSERT INTO scope_policies VALUES ('a/', 'form')",
        "INSERT INTO scope_policies VALUES (E'a\\n', 'form')",
        "INSERT INTO scope_policies VALUES (repeat('a', 129), 'form')"}) {
    EXPECT_THAT(
        std::string(TempPostgres::RunAt(options_.uri, sql).status().message()),
        HasSubstr("23"))
        << sql;
  }
  Sql(options_,
      "UPDATE ttl_policies SET lease = '100 ms' WHERE name = 'default';"
      "UPDATE ttl_policies SET retention_after_finalize = '30 days' WHERE name "
      "= 'task';"
      "DELETE FROM scope_policies;"
      "DELETE FROM ttl_policies WHERE name = 'payment'");
}

}  // namespace
}  // namespace idempotency
