// What the session of a transaction brings with it: its tables, its age, what
// is prepared in it, and its end.
#include <gmock/gmock.h>

#include <exception>
#include <string>

#include "tests/integration/transaction_fixture.h"

namespace idempotency {
namespace {

using testing::HasSubstr;
using testing::Not;

using RepeatableRead =
    pqxx::transaction<pqxx::isolation_level::repeatable_read>;

class TransactionSessionTest : public TransactionTest {
 protected:
  // Those tables again, with a namespace of their own and another lease.
  static void SetUpTestSuite() {
    TransactionTest::SetUpTestSuite();
    Sql(R"sql(
CREATE SCHEMA tenant;
DO $$
DECLARE t name;
BEGIN
  FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
    EXECUTE format('CREATE TABLE tenant.%1$I (LIKE public.%1$I INCLUDING ALL)',
                   t);
    EXECUTE format('INSERT INTO tenant.%1$I SELECT * FROM public.%1$I', t);
  END LOOP;
END $$;
UPDATE tenant.idempotency_settings
  SET value = '6ba7b810-9dad-11d1-80b4-00c04fd430c8'
  WHERE name = 'downstream_namespace';
UPDATE tenant.ttl_policies SET lease = '7 s' WHERE name = 'default';
)sql");
  }

  static void UseTenant(pqxx::dbtransaction& work) {
    work.exec("SET LOCAL search_path = tenant");
  }

  // How often the transaction has read the policies.
  static int Reads(pqxx::dbtransaction& work) {
    return work
        .exec(
            "SELECT seq_scan + coalesce(idx_scan, 0) FROM "
            "pg_stat_xact_user_tables WHERE relname = 'ttl_policies' AND "
            "schemaname = 'public'")[0][0]
        .as<int>();
  }

  // One that is older than the age that policies are kept for.
  static void GrowOld(pqxx::dbtransaction& work) {
    work.exec("SELECT pg_sleep(2.5)");
  }

  void MustOrder() {
    pqxx::work work(connection_);
    const std::string key = RandomKey();
    EXPECT_EQ(
        once_.Run(work, OperationOf(ClaimOf(key)), Order(work, key)).outcome,
        RunOutcome::kExecuted);
    work.commit();
  }
};

TEST_F(TransactionSessionTest, EachSchemaHasItsObjectAndItsRules) {
  OnceInTransaction once_of_tenant;
  // More than a statement is executed before it is prepared again.
  for (int i = 0; i < 7; ++i) {
    const v1::ClaimRequest claim = ClaimOf(RandomKey());
    v1::Claimed ours;
    v1::Claimed theirs;
    {
      pqxx::work work(connection_);
      ours = Require(once_.Claim(work, claim)).claimed();
      work.commit();
    }
    {
      pqxx::work work(connection_);
      UseTenant(work);
      theirs = Require(once_of_tenant.Claim(work, ByAnother(claim))).claimed();
      work.commit();
    }
    EXPECT_EQ(ours.attempt(), 1);
    EXPECT_EQ(theirs.attempt(), 1);
    EXPECT_GT(ours.lease().seconds(), 7);
    EXPECT_LE(theirs.lease().seconds(), 7);
    EXPECT_NE(ours.downstream_key(), theirs.downstream_key());
  }
}

TEST_F(TransactionSessionTest, OneObjectForTwoSchemasIsFoundOut) {
  MustOrder();
  pqxx::work work(connection_);
  UseTenant(work);
  // The rules are read at once.
  const auto claimed = once_.Claim(work, ClaimOf(RandomKey(), "of nobody"));
  EXPECT_EQ(claimed.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(claimed.status().message()),
              HasSubstr("one OnceInTransaction for each database and schema"));
  EXPECT_THROW(work.commit(), std::exception);
}

TEST_F(TransactionSessionTest, AnOldTransactionReadsNoMoreThanAYoungOne) {
  constexpr int kClaims = 5;
  pqxx::work work(connection_);
  GrowOld(work);
  for (int i = 0; i < kClaims; ++i) {
    ASSERT_TRUE(once_.Claim(work, ClaimOf(RandomKey())).ok());
  }
  EXPECT_LT(Reads(work), kClaims);
}

TEST_F(TransactionSessionTest, AFinalizeReadsNoPoliciesAgain) {
  RepeatableRead work(connection_);
  GrowOld(work);
  const v1::ClaimRequest claim = ClaimOf(RandomKey());
  ASSERT_TRUE(once_.Claim(work, claim).ok());
  ASSERT_TRUE(once_.Finalize(work, FinalizeOf(claim, 201, "done")).ok());
  EXPECT_EQ(Reads(work), 1);
}

TEST_F(TransactionSessionTest, OneKeyTwiceInATransactionIsOneExecution) {
  const Operation operation = OperationOf(ClaimOf(RandomKey()));
  for (const bool commit : {false, true}) {
    pqxx::work work(connection_);
    const RunResult first =
        once_.Run(work, operation, Order(work, operation.key));
    const RunResult second = once_.Run(work, operation, MustNotRun);
    ASSERT_EQ(first.outcome, RunOutcome::kExecuted) << first.status;
    EXPECT_EQ(second.outcome, RunOutcome::kReplayed) << second.status;
    EXPECT_EQ(second.response.body(), first.response.body());
    if (commit) work.commit();
  }
  // The replay of the first transaction went with it.
  EXPECT_EQ(Orders(operation.key), "1");
  EXPECT_EQ(RecordOf(operation.key).attempt(), 1);
}

TEST_F(TransactionSessionTest, WhatLibpqxxForgotIsPreparedAgain) {
  MustOrder();
  const pqxx::result names =
      pqxx::nontransaction(connection_)
          .exec("SELECT name FROM pg_prepared_statements");
  EXPECT_EQ(names.size(), 2u);
  for (const auto& row : names) {
    connection_.unprepare(row[0].as<std::string>());
  }
  {
    pqxx::work work(connection_);
    const RunResult result =
        once_.Run(work, OperationOf(ClaimOf(RandomKey())), MustNotRun);
    EXPECT_EQ(result.outcome, RunOutcome::kUnavailable);
    EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable)
        << result.status;
  }
  MustOrder();
}

TEST_F(TransactionSessionTest, ALostSessionIsToldAsOne) {
  MustOrder();
  pqxx::work work(connection_);
  Sql("SELECT pg_terminate_backend(" +
      work.exec("SELECT pg_backend_pid()")[0][0].as<std::string>() + ")");
  EXPECT_THROW(work.exec("SELECT 1"), std::exception);
  const RunResult result =
      once_.Run(work, OperationOf(ClaimOf(RandomKey())), MustNotRun);
  EXPECT_EQ(result.outcome, RunOutcome::kUnavailable);
  EXPECT_THAT(std::string(result.status.message()),
              HasSubstr("the connection was lost"));
  EXPECT_THAT(std::string(result.status.message()),
              Not(HasSubstr("client_encoding")));
}

}  // namespace
}  // namespace idempotency
