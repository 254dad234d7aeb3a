// The store's statements, prepared on connections that belong to somebody else.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_PREPARED_STATEMENTS_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_PREPARED_STATEMENTS_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/core/mutex.h"
#include "server/store/postgres/statement_runner.h"

namespace idempotency {

// What preparing spares is the parsing. Plans are made anew, for the one item
// and the table as it is: PostgreSQL does so for the first executions of a
// prepared statement, then it may keep one plan for good, and where the table
// was empty that is one which reads all of it. So a statement that could have
// such a plan is prepared again before it comes to that.
//
// Knows a connection by its address and its backend, and remembers the latest
// kConnectionsMax of them. No two preparations in a process have one name, so
// that one which was forgotten, or that somebody discarded, is no obstacle: the
// names are "idempotency_N_...".
//
// Thread-safe, each transaction in one thread at a time.
class PreparedStatements {
 public:
  static constexpr std::size_t kConnectionsMax = 1024;

  // Prepares the statement if need be and runs it. Throws what libpqxx throws.
  pqxx::result Run(pqxx::dbtransaction& transaction, const Statement& statement,
                   const Parameters& parameters);

  // What was prepared on the transaction's connection may be there no more.
  void Forget(const pqxx::dbtransaction& transaction);

 private:
  using Id = std::pair<const void*, int>;
  struct Known {
    std::uint64_t number = 0;
    // How often each was executed since it was prepared.
    std::map<std::string_view, int> executions;
  };
  using KnownConnection = std::pair<Id, std::shared_ptr<Known>>;

  static Id IdOf(const pqxx::dbtransaction& transaction);
  std::shared_ptr<Known> Find(const Id& id);

  Mutex mutex_;
  // The one used last comes first.
  std::list<KnownConnection> connections_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_PREPARED_STATEMENTS_H_
