// What each SQLSTATE and each exception of libpqxx is taken to mean.
#include "server/store/postgres/sqlstate.h"

#include <gtest/gtest.h>

#include <new>
#include <ostream>
#include <pqxx/pqxx>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "server/core/errors.h"

namespace idempotency {
namespace {

using absl::StatusCode;

struct StateCase {
  std::string sqlstate;
  StatusCode write;
  StatusCode read;
  bool discard;
};

std::ostream& operator<<(std::ostream& out, const StateCase& one) {
  return out << one.sqlstate;
}

class SqlStateTest : public testing::TestWithParam<StateCase> {};

TEST_P(SqlStateTest, HasOneMeaning) {
  const StateCase& one = GetParam();
  const Failure write =
      FailureOfSqlState("replace", one.sqlstate, Phase::kWrite);
  const Failure read =
      FailureOfSqlState("read_records", one.sqlstate, Phase::kRead);
  EXPECT_EQ(write.status.code(), one.write);
  EXPECT_EQ(read.status.code(), one.read);
  EXPECT_EQ(write.discard, one.discard);
  EXPECT_EQ(read.discard, one.discard);
}

TEST_P(SqlStateTest, NamesTheOperationAndTheState) {
  const StateCase& one = GetParam();
  const Failure failure =
      FailureOfSqlState("replace", one.sqlstate, Phase::kWrite);
  EXPECT_EQ(failure.status.message(), "replace: SQLSTATE " + one.sqlstate);
}

constexpr StatusCode kUnknown = StatusCode::kUnknown;
constexpr StatusCode kUnavailable = StatusCode::kUnavailable;
constexpr StatusCode kAborted = StatusCode::kAborted;
constexpr StatusCode kInternal = StatusCode::kInternal;
constexpr StatusCode kDataLoss = StatusCode::kDataLoss;

INSTANTIATE_TEST_SUITE_P(
    LostAnswer, SqlStateTest,
    testing::Values(StateCase{"08003", kUnknown, kUnavailable, true},
                    StateCase{"08006", kUnknown, kUnavailable, true},
                    StateCase{"08007", kUnknown, kUnavailable, true},
                    StateCase{"25P03", kUnknown, kUnavailable, true},
                    StateCase{"40003", kUnknown, kUnavailable, true},
                    StateCase{"57P01", kUnknown, kUnavailable, true},
                    StateCase{"57P02", kUnknown, kUnavailable, true},
                    StateCase{"57P04", kUnknown, kUnavailable, true},
                    StateCase{"57P05", kUnknown, kUnavailable, true}));

INSTANTIATE_TEST_SUITE_P(
    WithoutEffect, SqlStateTest,
    testing::Values(StateCase{"25006", kUnavailable, kUnavailable, true},
                    StateCase{"53300", kUnavailable, kUnavailable, true},
                    StateCase{"57P03", kUnavailable, kUnavailable, true},
                    StateCase{"53100", kUnavailable, kUnavailable, false},
                    StateCase{"53200", kUnavailable, kUnavailable, false},
                    StateCase{"58030", kUnavailable, kUnavailable, false}));

INSTANTIATE_TEST_SUITE_P(
    Contended, SqlStateTest,
    testing::Values(StateCase{"40001", kAborted, kAborted, false},
                    StateCase{"40P01", kAborted, kAborted, false},
                    StateCase{"55P03", kAborted, kAborted, false},
                    StateCase{"57014", kAborted, kAborted, false}));

INSTANTIATE_TEST_SUITE_P(
    Refused, SqlStateTest,
    testing::Values(StateCase{"21000", kInternal, kInternal, false},
                    StateCase{"22021", kInternal, kInternal, false},
                    StateCase{"23505", kInternal, kInternal, false},
                    StateCase{"23514", kInternal, kInternal, false},
                    StateCase{"28P01", kInternal, kInternal, false},
                    StateCase{"3D000", kInternal, kInternal, false},
                    StateCase{"42501", kInternal, kInternal, false},
                    StateCase{"42P01", kInternal, kInternal, false},
                    StateCase{"54000", kInternal, kInternal, false},
                    StateCase{"P0001", kInternal, kInternal, false},
                    StateCase{"XX000", kInternal, kInternal, false}));

INSTANTIATE_TEST_SUITE_P(
    Stale, SqlStateTest,
    testing::Values(StateCase{"0A000", kInternal, kInternal, true},
                    StateCase{"26000", kInternal, kInternal, true},
                    StateCase{"42P05", kInternal, kInternal, true}));

INSTANTIATE_TEST_SUITE_P(
    Corrupt, SqlStateTest,
    testing::Values(StateCase{"XX001", kDataLoss, kDataLoss, false},
                    StateCase{"XX002", kDataLoss, kDataLoss, false}));

TEST(SqlStateFlags, OnlyForgottenStatementsAreStale) {
  for (const char* state : {"0A000", "26000", "42P05"}) {
    EXPECT_TRUE(FailureOfSqlState("x", state, Phase::kWrite).stale_statement)
        << state;
  }
  for (const char* state : {"40001", "42P01", "57P01", "23505", "25006"}) {
    EXPECT_FALSE(FailureOfSqlState("x", state, Phase::kWrite).stale_statement)
        << state;
  }
}

TEST(SqlStateFlags, OnlyCorruptionIsADecision) {
  EXPECT_EQ(ReasonOf(FailureOfSqlState("x", "XX002", Phase::kRead).status),
            Reason::kRecordCorrupt);
  for (const char* state : {"40001", "57014", "53100", "42501", "08006"}) {
    EXPECT_FALSE(HasReason(FailureOfSqlState("x", state, Phase::kRead).status))
        << state;
  }
}

template <typename Exception>
Failure FailureOf(const Exception& exception, Phase phase) {
  try {
    throw exception;
  } catch (...) {
    return FailureOfCurrentException("replace", phase);
  }
}

constexpr char kSecret[] = "INSERT of key 4711 at postgresql://u:pw@host/db";

// Some take the query from libpqxx 7 on.
template <typename Exception>
Exception Make() {
  if constexpr (std::is_constructible_v<Exception, std::string, std::string>) {
    return Exception(kSecret, kSecret);
  } else {
    return Exception(kSecret);
  }
}

TEST(Exceptions, OfClass40AreToldApartThoughTheyMayHaveNoSqlState) {
  EXPECT_EQ(
      FailureOf(Make<pqxx::serialization_failure>(), Phase::kWrite).status,
      absl::AbortedError("replace: SQLSTATE 40001"));
  EXPECT_EQ(FailureOf(Make<pqxx::deadlock_detected>(), Phase::kWrite).status,
            absl::AbortedError("replace: SQLSTATE 40P01"));
  EXPECT_EQ(FailureOf(Make<pqxx::statement_completion_unknown>(), Phase::kWrite)
                .status,
            absl::UnknownError("replace: SQLSTATE 40003"));
  EXPECT_EQ(FailureOf(Make<pqxx::transaction_rollback>(), Phase::kWrite).status,
            absl::AbortedError("replace: SQLSTATE 40000"));
}

TEST(Exceptions, OfALostConnectionLeaveAWriteUnknown) {
  const Failure broken =
      FailureOf(pqxx::broken_connection(kSecret), Phase::kWrite);
  EXPECT_EQ(broken.status.code(), kUnknown);
  EXPECT_TRUE(broken.discard);
  EXPECT_EQ(
      FailureOf(pqxx::in_doubt_error(kSecret), Phase::kWrite).status.code(),
      kUnknown);
  EXPECT_EQ(
      FailureOf(pqxx::broken_connection(kSecret), Phase::kRead).status.code(),
      kUnavailable);
}

TEST(Exceptions, WhileConnectingAreWithoutEffect) {
  EXPECT_EQ(
      FailureOf(pqxx::broken_connection("Connection refused"), Phase::kConnect)
          .status.code(),
      kUnavailable);
  EXPECT_EQ(FailureOf(pqxx::failure("no"), Phase::kConnect).status.code(),
            kUnavailable);
}

TEST(Exceptions, OfNoPrivilegeAreNoLostConnection) {
  const Failure failure =
      FailureOf(pqxx::insufficient_privilege(kSecret, kSecret), Phase::kWrite);
  EXPECT_EQ(failure.status, absl::InternalError("replace: SQLSTATE 42501"));
  EXPECT_FALSE(failure.discard);
}

TEST(Exceptions, OfTooManyConnectionsAreUnavailable) {
  EXPECT_EQ(FailureOf(pqxx::too_many_connections(kSecret), Phase::kWrite)
                .status.code(),
            kUnavailable);
}

TEST(Exceptions, WithASqlStateHaveItsMeaning) {
  EXPECT_EQ(FailureOf(pqxx::sql_error(kSecret, kSecret, "55P03"), Phase::kWrite)
                .status,
            absl::AbortedError("replace: SQLSTATE 55P03"));
  EXPECT_EQ(FailureOf(pqxx::unique_violation(kSecret, kSecret, "23505"),
                      Phase::kWrite)
                .status.code(),
            kInternal);
}

TEST(Exceptions, OfUnknownKindLeaveAWriteUnknownAndDropTheConnection) {
  const Failure failures[] = {
      FailureOf(pqxx::sql_error(kSecret, kSecret), Phase::kWrite),
      FailureOf(pqxx::failure(kSecret), Phase::kWrite),
      FailureOf(std::runtime_error(kSecret), Phase::kWrite),
      FailureOf(std::bad_alloc(), Phase::kWrite),
      FailureOf(42, Phase::kWrite),
  };
  for (const Failure& failure : failures) {
    EXPECT_EQ(failure.status.code(), kUnknown);
    EXPECT_TRUE(failure.discard);
  }
  EXPECT_EQ(FailureOf(std::bad_alloc(), Phase::kRead).status.code(), kInternal);
}

TEST(Exceptions, NeverShowWhatTheLibrarySaid) {
  for (const Phase phase : {Phase::kConnect, Phase::kRead, Phase::kWrite}) {
    for (const Failure& failure :
         {FailureOf(pqxx::broken_connection(kSecret), phase),
          FailureOf(pqxx::sql_error(kSecret, kSecret, "XX000"), phase),
          FailureOf(std::runtime_error(kSecret), phase)}) {
      EXPECT_EQ(std::string(failure.status.message()).find("4711"),
                std::string::npos);
      EXPECT_EQ(std::string(failure.status.message()).find("pw"),
                std::string::npos);
    }
  }
}

TEST(Notices, OfACancelledWaitForTheStandbyAreRecognisedInAnyLanguage) {
  EXPECT_TRUE(IsUnconfirmedWriteNotice(
      "WARNING:  01000: canceling wait for synchronous replication due to "
      "user request\nDETAIL:  The transaction has already committed locally"));
  EXPECT_TRUE(IsUnconfirmedWriteNotice(
      "WARNUNG:  01000: storniere das Warten auf synchrone Replikation"));
  EXPECT_TRUE(IsUnconfirmedWriteNotice(
      "WARNING:  57P01: canceling the wait for synchronous replication and "
      "terminating connection due to administrator command"));
}

TEST(Notices, OfOtherKindsAreNot) {
  EXPECT_FALSE(IsUnconfirmedWriteNotice(""));
  EXPECT_FALSE(IsUnconfirmedWriteNotice("WARNING:  0100"));
  EXPECT_FALSE(IsUnconfirmedWriteNotice("NOTICE:  00000: 01000: no"));
  EXPECT_FALSE(
      IsUnconfirmedWriteNotice("WARNING:  25001: there is already a "
                               "transaction in progress"));
}

}  // namespace
}  // namespace idempotency
