// A transaction of somebody else's, to hold locks with.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_OPEN_TRANSACTION_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_OPEN_TRANSACTION_H_

#include <gtest/gtest.h>
#include <libpq-fe.h>

#include <memory>
#include <string>

namespace idempotency {

// Runs `sql` in a transaction that stays open until this object is destroyed,
// and is then rolled back. Fails the test if the statement does. Not
// thread-safe.
class OpenTransaction {
 public:
  OpenTransaction(const std::string& uri, const std::string& sql)
      : connection_(PQconnectdb(uri.c_str()), &PQfinish) {
    Run("BEGIN");
    Run(sql);
  }

 private:
  void Run(const std::string& sql) {
    const std::unique_ptr<PGresult, decltype(&PQclear)> result(
        PQexec(connection_.get(), sql.c_str()), &PQclear);
    const ExecStatusType status = PQresultStatus(result.get());
    EXPECT_TRUE(status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK)
        << PQerrorMessage(connection_.get());
  }

  const std::unique_ptr<PGconn, decltype(&PQfinish)> connection_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_OPEN_TRANSACTION_H_
