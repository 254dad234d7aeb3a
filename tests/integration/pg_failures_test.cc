// What the statements answer when the database, the connection or another
// session is in the way, and that they work again afterwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>

#include "server/store/postgres/record_table.h"
#include "tests/integration/pg_samples.h"

namespace idempotency {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

absl::Status InsertOne(PgRecordTable& table, const std::string& key) {
  const ClaimCommand claim = Claim({"orders", key});
  const ClaimCommand* const claims[] = {&claim};
  return table.InsertNew(claims).status();
}

absl::Status ReadOne(PgRecordTable& table, const std::string& key) {
  const RecordId id{"orders", key};
  const RecordId* const ids[] = {&id};
  return table.Read(ids, ReadBodies::kYes).status();
}

absl::Status FinalizeOne(PgRecordTable& table, const std::string& key) {
  const FinalizeCommand finalize = Finalize({"orders", key});
  const FinalizeCommand* const finalizes[] = {&finalize};
  return table.FinalizeOwned(finalizes).status();
}

// The server processes of the store's sessions in this database.
std::string Backends(const ConnectionOptions& options) {
  return Sql(options,
             "SELECT pid FROM pg_stat_activity WHERE datname = "
             "current_database() AND application_name = 'idempotency-server' "
             "ORDER BY pid");
}

bool OneWaitsFor(const ConnectionOptions& options, const std::string& event) {
  return Sql(options,
             "SELECT count(*) FROM pg_stat_activity WHERE datname = "
             "current_database() AND application_name = 'idempotency-server' "
             "AND '" +
                 event + "' IN (wait_event, wait_event_type)") == "1";
}

// A session of somebody else, which holds what it locked until it ends.
class OtherSession {
 public:
  OtherSession(const ConnectionOptions& options, const std::string& sql)
      : connection_(options.uri), transaction_(connection_) {
    transaction_.exec(sql);
  }
  void Commit() { transaction_.commit(); }

 private:
  pqxx::connection connection_;
  pqxx::work transaction_;
};

class PgFailuresTest : public testing::Test {
 protected:
  const ConnectionOptions options_ = MigratedDatabase();
  PgRecordTable table_{options_, SampleClock()};
};

TEST_F(PgFailuresTest, AKilledSessionLeavesAWriteUnknownAndIsReplaced) {
  ASSERT_TRUE(InsertOne(table_, "a").ok());
  const std::string first = Backends(options_);
  Sql(options_, "SELECT pg_terminate_backend(" + first + ", 10000)");
  EXPECT_EQ(InsertOne(table_, "b").code(), StatusCode::kUnknown);
  EXPECT_TRUE(InsertOne(table_, "b").ok());
  const std::string second = Backends(options_);
  EXPECT_NE(second, first);
  Sql(options_, "SELECT pg_terminate_backend(" + second + ", 10000)");
  EXPECT_EQ(ReadOne(table_, "b").code(), StatusCode::kUnavailable);
  EXPECT_TRUE(ReadOne(table_, "b").ok());
}

TEST_F(PgFailuresTest, ASessionKilledUnderAStatementLeavesItUnknown) {
  ConnectionOptions patient = options_;
  patient.lock_timeout = std::chrono::seconds(20);
  patient.statement_timeout = std::chrono::seconds(20);
  PgRecordTable table(patient, SampleClock());
  ASSERT_TRUE(InsertOne(table, "a").ok());
  OtherSession other(options_, "UPDATE idempotency_records SET attempt = 2");
  auto answer =
      std::async(std::launch::async, [&] { return FinalizeOne(table, "a"); });
  ASSERT_TRUE(Eventually([&] { return OneWaitsFor(options_, "Lock"); }));
  Sql(options_, "SELECT pg_terminate_backend(" + Backends(options_) + ")");
  EXPECT_EQ(answer.get().code(), StatusCode::kUnknown);
  other.Commit();
  EXPECT_TRUE(FinalizeOne(table, "a").ok());
}

TEST_F(PgFailuresTest, ALockedRowIsContendedAndTheSessionStays) {
  ASSERT_TRUE(InsertOne(table_, "a").ok());
  const std::string session = Backends(options_);
  OtherSession other(options_, "UPDATE idempotency_records SET attempt = 2");
  const absl::Status status = FinalizeOne(table_, "a");
  EXPECT_EQ(status, absl::AbortedError("finalize_owned: SQLSTATE 55P03"));
  other.Commit();
  EXPECT_TRUE(FinalizeOne(table_, "a").ok());
  EXPECT_EQ(Backends(options_), session);
}

TEST_F(PgFailuresTest, AnUncommittedClaimOfTheSameKeyIsContended) {
  ASSERT_TRUE(ReadOne(table_, "a").ok());
  ConnectionOptions others = options_;
  OtherSession other(others,
                     "INSERT INTO idempotency_records (scope, key, created_at, "
                     "claimed_at, lease_expires_at, expires_at, lease_us, "
                     "fencing_token, version, policy_lease_us, "
                     "policy_max_lease_us, attempt, on_abandoned, "
                     "on_server_error, in_flight, held, claim_token, "
                     "request_hash, policy) VALUES ('orders', 'a', now(), "
                     "now(), now() + interval '1 s', now() + interval '1 h', "
                     "1, 1, 1, 1, 1, 1, 0, 0, true, false, "
                     "gen_random_uuid(), decode(repeat('00', 32), 'hex'), "
                     "'default')");
  EXPECT_EQ(InsertOne(table_, "a").code(), StatusCode::kAborted);
  other.Commit();
  EXPECT_TRUE(InsertOne(table_, "a").ok());
}

TEST_F(PgFailuresTest, AStatementThatTakesTooLongIsContended) {
  ConnectionOptions hasty = options_;
  hasty.lock_timeout = std::chrono::seconds(20);
  hasty.statement_timeout = std::chrono::milliseconds(150);
  PgRecordTable table(hasty, SampleClock());
  ASSERT_TRUE(InsertOne(table, "a").ok());
  OtherSession other(options_, "UPDATE idempotency_records SET attempt = 2");
  EXPECT_EQ(FinalizeOne(table, "a"),
            absl::AbortedError("finalize_owned: SQLSTATE 57014"));
}

TEST_F(PgFailuresTest, AValueThatIsRefusedIsInternalAndNotShown) {
  const absl::Status status = InsertOne(table_, "not UTF-8: \xff");
  EXPECT_EQ(status, absl::InternalError("insert_new: SQLSTATE 22021"));
  EXPECT_TRUE(InsertOne(table_, "a").ok());
}

// The rows are there before the commit, which may still fail.
TEST_F(PgFailuresTest, RowsWhoseCommitIsRefusedAreNoGrant) {
  Sql(options_,
      "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
      "$$ BEGIN RAISE EXCEPTION 'too late'; END $$");
  Sql(options_,
      "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON idempotency_records "
      "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()");
  EXPECT_EQ(InsertOne(table_, "a"),
            absl::InternalError("insert_new: SQLSTATE P0001"));
  EXPECT_EQ(Sql(options_, "SELECT count(*) FROM idempotency_records"), "0");
}

TEST_F(PgFailuresTest, AMissingTableIsInternal) {
  Sql(options_, "DROP TABLE idempotency_conflicts");
  const RecordId id{"orders", "a"};
  const RecordId* const ids[] = {&id};
  EXPECT_EQ(table_.CountConflicts(ids).status(),
            absl::InternalError("count_conflicts: SQLSTATE 42P01"));
}

TEST_F(PgFailuresTest, AStaleStatementIsPreparedAgain) {
  ASSERT_TRUE(InsertOne(table_, "a").ok());
  ASSERT_TRUE(ReadOne(table_, "a").ok());
  const std::string session = Backends(options_);
  Sql(options_,
      "ALTER TABLE idempotency_records ALTER COLUMN owner TYPE varchar(128)");
  EXPECT_TRUE(ReadOne(table_, "a").ok());
  EXPECT_NE(Backends(options_), session);
}

TEST_F(PgFailuresTest, NobodyThereIsUnavailable) {
  ConnectionOptions nowhere = options_;
  nowhere.uri = "postgresql://idempotency@127.0.0.1:1/none";
  PgRecordTable table(nowhere, SampleClock());
  EXPECT_EQ(InsertOne(table, "a").code(), StatusCode::kUnavailable);
  nowhere.uri = options_.uri + "_none";
  PgRecordTable other(nowhere, SampleClock());
  EXPECT_EQ(InsertOne(other, "a"),
            absl::UnavailableError(
                "connect: the database or the role does not exist"));
}

TEST_F(PgFailuresTest, AnAddressThatIsNoneIsRefusedWithoutBeingShown) {
  ConnectionOptions wrong = options_;
  wrong.uri = "host=db password=hunter2 nonsense";
  PgRecordTable table(wrong, SampleClock());
  const absl::Status status = InsertOne(table, "a");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("hunter2")));
}

TEST_F(PgFailuresTest, ADatabaseOfAnotherEncodingIsRefused) {
  const auto shared = TempPostgres::Shared();
  ASSERT_TRUE(shared.ok()) << shared.status();
  const auto made = (*shared)->Run(
      "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' "
      "TEMPLATE template0");
  ASSERT_TRUE(made.ok()) << made.status();
  ConnectionOptions ascii = options_;
  ascii.uri = (*shared)->Uri("ascii");
  const absl::Status status = CheckSchema(ascii, SampleClock());
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("UTF8"));
}

// Behind a pooler the settings come from the role. The commands that the error
// names are all that is needed.
TEST_F(PgFailuresTest, MissingSettingsAreNamedWithTheirRemedy) {
  Sql(options_, "CREATE ROLE \"app \"\"x\"\"\" LOGIN SUPERUSER");
  ConnectionOptions pooled = options_;
  pooled.pooled = true;
  pooled.uri.replace(pooled.uri.find("idempotency@"), 11, "app%20%22x%22");
  PgRecordTable table(pooled, SampleClock());
  const absl::Status refused = InsertOne(table, "a");
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  const std::string message(refused.message());
  EXPECT_THAT(message, HasSubstr("ALTER ROLE \"app \"\"x\"\"\" SET "
                                 "plan_cache_mode = 'force_generic_plan';"));
  Sql(options_, message.substr(message.find("ALTER ROLE")));
  EXPECT_TRUE(InsertOne(table, "a").ok());
  EXPECT_TRUE(FinalizeOne(table, "a").ok());
  EXPECT_TRUE(ReadOne(table, "a").ok());
  Sql(options_, "DROP ROLE \"app \"\"x\"\"\"");
}

// With a server of its own, whose configuration may change.
class PgServerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = TempPostgres::Make();
    ASSERT_TRUE(made.ok()) << made.status();
    postgres_ = *std::move(made);
    const auto uri = postgres_->CreateDatabase("records");
    ASSERT_TRUE(uri.ok()) << uri.status();
    options_.uri = *uri;
    ASSERT_TRUE(Migrate(options_, SampleClock()).ok());
    table_ = std::make_unique<PgRecordTable>(options_, SampleClock());
  }

  // Returns when the sessions that are open have taken the setting over.
  void Configure(const std::string& name, const std::string& value) {
    Sql(options_, "ALTER SYSTEM SET " + name + " = '" + value + "'");
    Sql(options_, "SELECT pg_reload_conf()");
    EXPECT_TRUE(
        Eventually([&] { return Sql(options_, "SHOW " + name) == value; }));
  }

  ConnectionOptions options_;
  std::unique_ptr<TempPostgres> postgres_;
  std::unique_ptr<PgRecordTable> table_;
};

TEST_F(PgServerTest, AReadOnlyDatabaseIsUnavailableUntilItIsNot) {
  ASSERT_TRUE(InsertOne(*table_, "a").ok());
  const std::string session = Backends(options_);
  Configure("default_transaction_read_only", "on");
  const absl::Status refused = InsertOne(*table_, "b");
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable) << refused;
  ASSERT_TRUE(Eventually([&] { return Backends(options_).empty(); }));
  EXPECT_EQ(InsertOne(*table_, "b"),
            absl::UnavailableError(
                "connect: no writable primary among the addresses"));
  Configure("default_transaction_read_only", "off");
  EXPECT_TRUE(InsertOne(*table_, "b").ok());
  EXPECT_EQ(Sql(options_, "SELECT count(*) FROM idempotency_records"), "2");
}

// A commit that no standby has confirmed must not be answered as done, though
// PostgreSQL reports success with a mere warning.
class UnconfirmedCommitTest : public PgServerTest,
                              public testing::WithParamInterface<const char*> {
};

TEST_P(UnconfirmedCommitTest, IsUnknownAndIsConfirmedByAWrite) {
  ASSERT_TRUE(InsertOne(*table_, "a").ok());
  const std::string session = Backends(options_);
  Configure("synchronous_standby_names", "nobody");
  auto answer =
      std::async(std::launch::async, [&] { return FinalizeOne(*table_, "a"); });
  ASSERT_TRUE(Eventually([&] { return OneWaitsFor(options_, "SyncRep"); }));
  Sql(options_, std::string("SELECT ") + GetParam() + "(" + session + ")");
  const absl::Status status = answer.get();
  EXPECT_EQ(status.code(), StatusCode::kUnknown) << status;
  ASSERT_TRUE(Eventually([&] { return Backends(options_).empty(); }));
  // It was committed all the same, and everybody can see it.
  EXPECT_EQ(Sql(options_, "SELECT status_code FROM idempotency_records"),
            "200");
  Configure("synchronous_standby_names", "");
  EXPECT_TRUE(FinalizeOne(*table_, "a").ok());
}

INSTANTIATE_TEST_SUITE_P(Ways, UnconfirmedCommitTest,
                         testing::Values("pg_cancel_backend",
                                         "pg_terminate_backend"));

TEST_F(PgServerTest, ARestartIsSurvived) {
  ASSERT_TRUE(InsertOne(*table_, "a").ok());
  for (const auto mode :
       {TempPostgres::StopMode::kFast, TempPostgres::StopMode::kImmediate}) {
    ASSERT_TRUE(postgres_->Stop(mode).ok());
    EXPECT_EQ(InsertOne(*table_, "b").code(), StatusCode::kUnknown);
    EXPECT_EQ(InsertOne(*table_, "b").code(), StatusCode::kUnavailable);
    ASSERT_TRUE(postgres_->Start().ok());
    EXPECT_TRUE(InsertOne(*table_, "b").ok());
  }
}

}  // namespace
}  // namespace idempotency
