// Operations that are executed in the transaction of their rows: every outcome,
// and that rows and record live and die together.
#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/integration/transaction_fixture.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

std::string Problem(RunOutcome outcome, const absl::Status& status) {
  return std::string(NameOf(outcome)) + ": " + status.ToString();
}

std::string Answer(const v1::Response& response) { return response.body(); }

std::string PlaceOrder(
    pqxx::connection& connection, const std::string& key,
    const std::string& hash,
    const std::function<std::string(pqxx::work&)>& InsertOrder) {
#include "transaction_readme.inc"
}

class OnceInTransactionTest : public TransactionTest {
 protected:
  // Executed and committed.
  v1::Response MustOrder(const std::string& key) {
    pqxx::work work(connection_);
    const RunResult result =
        once_.Run(work, OperationOf(ClaimOf(key)), Order(work, key));
    EXPECT_EQ(result.outcome, RunOutcome::kExecuted) << result.status;
    EXPECT_TRUE(result.recorded);
    work.commit();
    return result.response;
  }

  // Run in a transaction of its own, which is committed if it can be.
  RunResult Ask(const Operation& operation) {
    pqxx::work work(connection_);
    const RunResult result = once_.Run(work, operation, MustNotRun);
    EXPECT_FALSE(result.recorded);
    return result;
  }

  // A claim of a coordinator's whose lease is over.
  v1::ClaimRequest Abandoned(const std::string& policy) {
    const v1::ClaimRequest claim =
        ClaimFor(milliseconds(100), RandomKey(), policy);
    EXPECT_EQ(Decided(Send(stub(), claim)), "Claimed");
    while (State(claim.key()) != "STATE_IN_DOUBT") {
      std::this_thread::sleep_for(milliseconds(10));
    }
    return claim;
  }

  // commit() must not pass for one that was kept.
  static void ExpectAborted(pqxx::work& work) {
    EXPECT_THROW(work.commit(), std::exception);
  }
};

TEST_F(OnceInTransactionTest, RowsAndResponseAreCommittedTogether) {
  const std::string key = RandomKey();
  pqxx::work work(connection_);
  const RunResult result =
      once_.Run(work, OperationOf(ClaimOf(key)), Order(work, key));
  ASSERT_EQ(result.outcome, RunOutcome::kExecuted) << result.status;
  EXPECT_EQ(State(key), "RECORD_NOT_FOUND");
  EXPECT_EQ(Orders(key), "0");
  work.commit();
  EXPECT_EQ(Orders(key), "1");
  const v1::Record record = RecordOf(key);
  EXPECT_EQ(record.state(), v1::Record::STATE_FINALIZED);
  EXPECT_EQ(record.response().SerializeAsString(),
            result.response.SerializeAsString());
  EXPECT_EQ(record.attempt(), 1);
  EXPECT_EQ(record.policy(), "default");
}

TEST_F(OnceInTransactionTest, TheLinesOfTheReadmePlaceAnOrderOnce) {
  const std::string key = RandomKey();
  const std::string hash(32, 'h');
  const auto insert = [&](pqxx::work& work) {
    work.exec("INSERT INTO orders (key) VALUES ('" + key + "')");
    return "order of " + key;
  };
  for (int twice = 0; twice < 2; ++twice) {
    EXPECT_EQ(PlaceOrder(connection_, key, hash, insert), "order of " + key);
  }
  EXPECT_EQ(Orders(key), "1");
  EXPECT_THAT(PlaceOrder(connection_, key, hash + "2", insert),
              HasSubstr("Mismatch"));
}

TEST_F(OnceInTransactionTest, WhoeverComesNextIsGivenTheResponse) {
  const std::string key = RandomKey();
  const v1::Response response = MustOrder(key);
  const RunResult result = Ask(OperationOf(ClaimOf(key)));
  EXPECT_EQ(result.outcome, RunOutcome::kReplayed) << result.status;
  EXPECT_EQ(result.response.SerializeAsString(), response.SerializeAsString());
  EXPECT_EQ(Orders(key), "1");
}

TEST_F(OnceInTransactionTest, AResponseMadeThroughACoordinatorIsReplayed) {
  const v1::ClaimRequest claim = ClaimOf(RandomKey());
  ASSERT_EQ(Decided(Send(stub(), claim)), "Claimed");
  ASSERT_EQ(Decided(Send(stub(), FinalizeOf(claim, 201, "of the other"))),
            "RESULT_RECORDED");
  const RunResult result = Ask(OperationOf(claim));
  EXPECT_EQ(result.outcome, RunOutcome::kReplayed) << result.status;
  EXPECT_EQ(result.response.body(), "of the other");
}

TEST_F(OnceInTransactionTest, ACoordinatorReplaysAResponseMadeHere) {
  const std::string key = RandomKey();
  const v1::Response response = MustOrder(key);
  const auto replay = Send(stub(), ClaimOf(key));
  ASSERT_EQ(Decided(replay), "Replay");
  EXPECT_EQ(replay->replay().response().SerializeAsString(),
            response.SerializeAsString());
}

TEST_F(OnceInTransactionTest, RolledBackItNeverWas) {
  const std::string key = RandomKey();
  {
    pqxx::work work(connection_);
    const RunResult result =
        once_.Run(work, OperationOf(ClaimOf(key)), Order(work, key));
    EXPECT_EQ(result.outcome, RunOutcome::kExecuted) << result.status;
  }
  EXPECT_EQ(State(key), "RECORD_NOT_FOUND");
  EXPECT_EQ(Orders(key), "0");
  MustOrder(key);
  EXPECT_EQ(RecordOf(key).attempt(), 1);
}

TEST_F(OnceInTransactionTest, RolledBackASubtransactionLeavesTheRest) {
  const std::string key = RandomKey();
  const std::string other = RandomKey();
  pqxx::work work(connection_);
  ASSERT_EQ(
      once_.Run(work, OperationOf(ClaimOf(other)), Order(work, other)).outcome,
      RunOutcome::kExecuted);
  {
    pqxx::subtransaction part(work);
    EXPECT_EQ(
        once_.Run(part, OperationOf(ClaimOf(key)), Order(part, key)).outcome,
        RunOutcome::kExecuted);
  }
  {
    pqxx::subtransaction part(work);
    EXPECT_EQ(once_
                  .Run(part, OperationOf(ClaimOf(key)),
                       [](const v1::Claimed&) -> absl::StatusOr<v1::Response> {
                         return absl::FailedPreconditionError("no stock");
                       })
                  .outcome,
              RunOutcome::kNothingHappened);
  }
  work.commit();
  EXPECT_EQ(State(key), "RECORD_NOT_FOUND");
  EXPECT_EQ(Orders(key), "0");
  EXPECT_EQ(State(other), "STATE_FINALIZED");
  EXPECT_EQ(Orders(other), "1");
}

TEST_F(OnceInTransactionTest, WhoeverTakesOverIsToldAndMayRollBack) {
  const v1::ClaimRequest claim = Abandoned("default");
  const std::string before = RecordOf(claim.key()).SerializeAsString();
  v1::Claimed told;
  const auto take_over = [&](pqxx::work& work) {
    return once_.Run(work, OperationOf(claim), [&](const v1::Claimed& claimed) {
      told = claimed;
      return Order(work, claim.key())(claimed);
    });
  };
  {
    pqxx::work work(connection_);
    ASSERT_EQ(take_over(work).outcome, RunOutcome::kExecuted);
  }
  EXPECT_EQ(told.attempt(), 2);
  EXPECT_EQ(told.abandoned().attempt(), 1);
  EXPECT_EQ(told.abandoned().reason(), v1::Abandoned::REASON_LEASE_LAPSED);
  EXPECT_EQ(RecordOf(claim.key()).SerializeAsString(), before);
  EXPECT_EQ(Orders(claim.key()), "0");

  pqxx::work work(connection_);
  ASSERT_EQ(take_over(work).outcome, RunOutcome::kExecuted);
  work.commit();
  EXPECT_EQ(told.attempt(), 2);
  EXPECT_EQ(RecordOf(claim.key()).state(), v1::Record::STATE_FINALIZED);
  // The first owner is too late.
  EXPECT_EQ(Decided(Send(stub(), FinalizeOf(claim, 201, "late"))),
            "CLAIM_SUPERSEDED");
}

TEST_F(OnceInTransactionTest, ARunningOwnerIsLeftAlone) {
  const v1::ClaimRequest claim = ClaimOf(RandomKey());
  ASSERT_EQ(Decided(Send(stub(), claim)), "Claimed");
  pqxx::work work(connection_);
  const RunResult result = once_.Run(work, OperationOf(claim), MustNotRun);
  EXPECT_EQ(result.outcome, RunOutcome::kInProgress);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kAborted);
  EXPECT_GT(result.retry_after.count(), 0);
  // What the caller does besides is not touched.
  Order(work, claim.key())(v1::Claimed()).IgnoreError();
  work.commit();
  EXPECT_EQ(Orders(claim.key()), "1");
}

TEST_F(OnceInTransactionTest, AnotherRequestUnderTheKeyIsRefused) {
  const std::string key = RandomKey();
  MustOrder(key);
  Operation other = OperationOf(ClaimOf(key));
  other.request_hash = std::string(32, 'o');
  EXPECT_EQ(Ask(other).outcome, RunOutcome::kMismatch);
}

TEST_F(OnceInTransactionTest, AHeldRecordWaitsForWhoeverResolvesIt) {
  const v1::ClaimRequest claim = Abandoned("payment");
  EXPECT_EQ(Ask(OperationOf(claim)).outcome, RunOutcome::kInDoubt);
  v1::ClaimRequest resolving = ByAnother(claim);
  resolving.set_resolve_in_doubt(true);
  pqxx::work work(connection_);
  const auto claimed = once_.Claim(work, resolving);
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  EXPECT_EQ(claimed->claimed().abandoned().attempt(), 1);
  const auto finalized =
      once_.Finalize(work, FinalizeOf(resolving, 200, "was executed"));
  ASSERT_TRUE(finalized.ok()) << finalized.status();
  EXPECT_EQ(State(claim.key()), "STATE_IN_DOUBT");
  work.commit();
  EXPECT_EQ(Ask(OperationOf(claim)).response.body(), "was executed");
}

TEST_F(OnceInTransactionTest, AClaimOfACoordinatorIsFinalizedWithTheRows) {
  const v1::ClaimRequest claim = ClaimOf(RandomKey());
  ASSERT_EQ(Decided(Send(stub(), claim)), "Claimed");
  pqxx::work work(connection_);
  Order(work, claim.key())(v1::Claimed()).IgnoreError();
  const auto finalized = once_.Finalize(work, FinalizeOf(claim, 201, "both"));
  ASSERT_TRUE(finalized.ok()) << finalized.status();
  EXPECT_EQ(finalized->result(), v1::FinalizeResponse::RESULT_RECORDED);
  EXPECT_EQ(State(claim.key()), "STATE_IN_PROGRESS");
  work.commit();
  EXPECT_EQ(State(claim.key()), "STATE_FINALIZED");
  EXPECT_EQ(Orders(claim.key()), "1");
}

TEST_F(OnceInTransactionTest, AClaimCommittedHereIsFinalizedByACoordinator) {
  const v1::ClaimRequest claim = ClaimOf(RandomKey());
  pqxx::work work(connection_);
  const auto claimed = once_.Claim(work, claim);
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  work.commit();
  EXPECT_EQ(Decided(Send(stub(), ByAnother(claim))), "InProgress");
  const auto again = Send(stub(), claim);
  ASSERT_EQ(Decided(again), "Claimed");
  EXPECT_EQ(again->claimed().fencing_token(),
            claimed->claimed().fencing_token());
  EXPECT_EQ(again->claimed().downstream_key(),
            claimed->claimed().downstream_key());
  EXPECT_EQ(Decided(Send(stub(), FinalizeOf(claim, 200, "there"))),
            "RESULT_RECORDED");
}

TEST_F(OnceInTransactionTest, ARefusedFinalizeLeavesEvidenceIfCommitted) {
  const v1::ClaimRequest claim = Abandoned("default");
  ASSERT_EQ(Decided(Send(stub(), ByAnother(claim))), "Claimed");
  pqxx::work work(connection_);
  const auto refused = once_.Finalize(work, FinalizeOf(claim, 201, "late"));
  EXPECT_EQ(ErrorReasonOf(refused.status()), "CLAIM_SUPERSEDED");
  EXPECT_EQ(RecordOf(claim.key()).conflict_count(), 0);
  work.commit();
  EXPECT_EQ(RecordOf(claim.key()).conflict_count(), 1);
}

TEST_F(OnceInTransactionTest, AFunctionThatGivesUpOrThrowsKeepsNothing) {
  const std::string key = RandomKey();
  {
    pqxx::work work(connection_);
    const RunResult result = once_.Run(
        work, OperationOf(ClaimOf(key)),
        [&](const v1::Claimed& claimed) -> absl::StatusOr<v1::Response> {
          Order(work, key)(claimed).IgnoreError();
          return absl::FailedPreconditionError("no stock");
        });
    EXPECT_EQ(result.outcome, RunOutcome::kNothingHappened);
    EXPECT_EQ(result.status, absl::FailedPreconditionError("no stock"));
    ExpectAborted(work);
  }
  {
    pqxx::work work(connection_);
    EXPECT_THROW(
        once_.Run(work, OperationOf(ClaimOf(key)),
                  [&](const v1::Claimed&) -> absl::StatusOr<v1::Response> {
                    work.exec("SELECT 1 / 0");
                    return MakeResponse(200, "");
                  }),
        pqxx::sql_error);
    ExpectAborted(work);
  }
  EXPECT_EQ(State(key), "RECORD_NOT_FOUND");
  EXPECT_EQ(Orders(key), "0");
}

TEST_F(OnceInTransactionTest, AFunctionCannotHideThatAStatementFailed) {
  const std::string key = RandomKey();
  pqxx::work work(connection_);
  const RunResult result =
      once_.Run(work, OperationOf(ClaimOf(key)),
                [&](const v1::Claimed&) -> absl::StatusOr<v1::Response> {
                  try {
                    work.exec("SELECT 1 / 0");
                  } catch (const pqxx::sql_error&) {
                  }
                  return MakeResponse(200, "all is well");
                });
  EXPECT_EQ(result.outcome, RunOutcome::kNothingHappened);
  EXPECT_FALSE(result.status.ok());
  ExpectAborted(work);
  EXPECT_EQ(State(key), "RECORD_NOT_FOUND");
}

TEST_F(OnceInTransactionTest, AServerErrorIsKeptOnlyWhereThePolicyRecordsIt) {
  const auto fail = [](const v1::Claimed&) {
    return MakeResponse(503, "later");
  };
  const std::string key = RandomKey();
  {
    pqxx::work work(connection_);
    const RunResult result = once_.Run(work, OperationOf(ClaimOf(key)), fail);
    EXPECT_EQ(result.outcome, RunOutcome::kNothingHappened);
    EXPECT_EQ(result.response.status_code(), 503);
    ExpectAborted(work);
  }
  EXPECT_EQ(State(key), "RECORD_NOT_FOUND");
  // A policy that was not there when the rules were last read.
  Sql("INSERT INTO ttl_policies (name, lease, on_server_error) "
      "VALUES ('recording', '30 s', 'record')");
  pqxx::work work(connection_);
  const RunResult result =
      once_.Run(work, OperationOf(ClaimOf(key, "recording")), fail);
  EXPECT_EQ(result.outcome, RunOutcome::kExecuted) << result.status;
  work.commit();
  EXPECT_EQ(State(key), "STATE_FINALIZED");
}

TEST_F(OnceInTransactionTest, ABadRequestIsRefusedAndNothingIsSent) {
  const Operation good = OperationOf(ClaimOf(RandomKey()));
  Operation no_key = good;
  no_key.key = "";
  Operation no_text = good;
  no_text.key = "\xff";
  Operation no_scope = good;
  no_scope.scope = "/a";
  Operation no_lease = good;
  no_lease.lease = milliseconds(-1);
  Operation no_policy = good;
  no_policy.policy = "of nobody";
  pqxx::work work(connection_);
  for (const Operation& bad :
       {no_key, no_text, no_scope, no_lease, no_policy}) {
    const RunResult result = once_.Run(work, bad, MustNotRun);
    EXPECT_EQ(result.outcome, RunOutcome::kInvalid) << result.status;
    EXPECT_EQ(ErrorReasonOf(result.status),
              bad.policy.empty() ? "INVALID_FIELD" : "UNKNOWN_POLICY");
  }
  EXPECT_EQ(once_.Run(work, good, nullptr).outcome, RunOutcome::kInvalid);
  EXPECT_EQ(once_.Run(work, good, Order(work, good.key)).outcome,
            RunOutcome::kExecuted);
  work.commit();
}

TEST_F(OnceInTransactionTest, TooLongABodyIsLeftOutAndTheRecordIsFinal) {
  OnceInTransaction once({.body_bytes_max = 4});
  const v1::ClaimRequest claim = ClaimOf(RandomKey());
  pqxx::work work(connection_);
  EXPECT_EQ(
      once.Run(work, OperationOf(claim),
               [](const v1::Claimed&) { return MakeResponse(200, "12345"); })
          .response.body(),
      "12345");
  work.commit();
  const RunResult replay = Ask(OperationOf(claim));
  EXPECT_EQ(replay.outcome, RunOutcome::kReplayed);
  EXPECT_TRUE(replay.response.body_omitted());
}

TEST_F(OnceInTransactionTest, DownstreamKeysAreThoseOfTheCoordinators) {
  const std::string key = RandomKey();
  std::string of_the_database;
  std::string of_another;
  const auto note = [](std::string& noted) {
    return [&noted](const v1::Claimed& claimed) {
      noted = claimed.downstream_key();
      return absl::StatusOr<v1::Response>(absl::CancelledError());
    };
  };
  {
    pqxx::work work(connection_);
    once_.Run(work, OperationOf(ClaimOf(key)), note(of_the_database));
  }
  {
    OnceInTransaction other(
        {.downstream_namespace = "6BA7B810-9dad-11d1-80b4-00c04fd430c8"});
    pqxx::work work(connection_);
    other.Run(work, OperationOf(ClaimOf(key)), note(of_another));
  }
  EXPECT_EQ(Require(Send(stub(), ClaimOf(key))).claimed().downstream_key(),
            of_the_database);
  EXPECT_NE(of_another, of_the_database);
}

TEST_F(OnceInTransactionTest, TheDatabaseMustBeOneThatItKnows) {
  const std::string empty = Require(TempPostgres::SharedDatabase());
  const auto ask = [&](const std::string& uri, const std::string& before) {
    pqxx::connection connection(uri);
    pqxx::work work(connection);
    work.exec(before);
    const RunResult result =
        once_.Run(work, OperationOf(ClaimOf(RandomKey())), MustNotRun);
    EXPECT_EQ(result.outcome, RunOutcome::kUnavailable);
    ExpectAborted(work);
    return std::string(result.status.message());
  };
  EXPECT_THAT(ask(empty, "SELECT 1"), HasSubstr("migrations"));
  EXPECT_THAT(ask(database(), "SET bytea_output = 'escape'"),
              HasSubstr("bytea_output"));
  EXPECT_THAT(ask(database(),
                  "INSERT INTO idempotency_schema (version, name, major) "
                  "VALUES (999999, 'of_tomorrow', true)"),
              HasSubstr("999999"));
}

TEST_F(OnceInTransactionTest, StatementsThatWereDiscardedArePreparedAgain) {
  for (int i = 0; i < 30; ++i) MustOrder(RandomKey());
  const auto prepared = [&] {
    pqxx::nontransaction session(connection_);
    return session
        .exec(
            "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE "
            "'idempotency\\_%'")[0][0]
        .as<int>();
  };
  EXPECT_EQ(prepared(), 2);
  pqxx::nontransaction(connection_).exec("DISCARD ALL");
  {
    pqxx::work work(connection_);
    EXPECT_EQ(
        once_.Run(work, OperationOf(ClaimOf(RandomKey())), MustNotRun).outcome,
        RunOutcome::kUnavailable);
    ExpectAborted(work);
  }
  MustOrder(RandomKey());
  EXPECT_EQ(prepared(), 2);
}

TEST_F(OnceInTransactionTest, BehindAPoolerNothingIsPrepared) {
  OnceInTransaction pooled({.pooled = true});
  const std::string key = RandomKey();
  for (const RunOutcome outcome :
       {RunOutcome::kExecuted, RunOutcome::kReplayed}) {
    pqxx::work work(connection_);
    EXPECT_EQ(
        pooled.Run(work, OperationOf(ClaimOf(key)), Order(work, key)).outcome,
        outcome);
    EXPECT_EQ(work.exec("SELECT count(*) FROM pg_prepared_statements")[0][0]
                  .as<int>(),
              0);
    work.commit();
  }
}

TEST_F(OnceInTransactionTest, EverySessionMustSpeakUtf8) {
  MustOrder(RandomKey());
  pqxx::work work(connection_);
  work.exec("SET client_encoding = 'LATIN1'");
  const RunResult result =
      once_.Run(work, OperationOf(ClaimOf(RandomKey())), MustNotRun);
  EXPECT_EQ(result.outcome, RunOutcome::kUnavailable);
  EXPECT_THAT(std::string(result.status.message()),
              HasSubstr("client_encoding"));
}

}  // namespace
}  // namespace idempotency
