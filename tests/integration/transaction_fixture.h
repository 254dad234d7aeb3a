// A service's own table, in a database that a coordinator serves too.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_TRANSACTION_FIXTURE_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_TRANSACTION_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <pqxx/pqxx>
#include <string>

#include "client/status.h"
#include "client/transaction/once_in_transaction.h"
#include "tests/integration/fault_calls.h"
#include "tests/support/replica.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {

inline Operation OperationOf(const v1::ClaimRequest& claim) {
  return {.scope = claim.scope(),
          .key = claim.key(),
          .request_hash = claim.request_hash(),
          .policy = claim.policy()};
}

// For keys that must not be executed.
inline absl::StatusOr<v1::Response> MustNotRun(const v1::Claimed&) {
  ADD_FAILURE() << "the function ran";
  return absl::InternalError("the function ran");
}

class TransactionTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    database_ = new std::string(Require(TempPostgres::SharedDatabase()));
    replica_ = StartReplica(*database_).release();
    Sql("CREATE TABLE orders (id bigserial PRIMARY KEY, key text NOT NULL)");
  }
  static void TearDownTestSuite() {
    delete replica_;
    delete database_;
  }

  static const std::string& database() { return *database_; }
  static v1::IdempotencyService::Stub& stub() { return replica_->stub(); }

  static std::string Sql(const std::string& sql) {
    return Require(TempPostgres::RunAt(*database_, sql));
  }
  // As anybody else sees them.
  static std::string Orders(const std::string& key) {
    return Sql("SELECT count(*) FROM orders WHERE key = '" + key + "'");
  }
  // What a coordinator says of the key: "STATE_FINALIZED", "RECORD_NOT_FOUND".
  static std::string State(const std::string& key) {
    return Decided(Send(stub(), LookupOf(ClaimOf(key))));
  }
  static v1::Record RecordOf(const std::string& key) {
    return Require(Send(stub(), LookupOf(ClaimOf(key)))).record();
  }

  // Places an order in `work` and answers with it.
  static OnceInTransaction::Function Order(pqxx::dbtransaction& work,
                                           const std::string& key) {
    return [&work, key](const v1::Claimed&) {
      const pqxx::result rows = work.exec("INSERT INTO orders (key) VALUES ('" +
                                          key + "') RETURNING id");
      return MakeResponse(201, "order " + rows[0][0].as<std::string>());
    };
  }

  OnceInTransaction once_;
  pqxx::connection connection_{database()};

 private:
  static inline std::string* database_ = nullptr;
  static inline Replica* replica_ = nullptr;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_TRANSACTION_FIXTURE_H_
