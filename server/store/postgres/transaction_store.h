// The store within a transaction that somebody else began and will end, with
// the statements and decisions of every other store.
//
// Statements go without settings of their own, so that nothing of the caller's
// session is changed and has to be put back. Planned for the one item that each
// has, they use the indexes under the usual settings. To prepare them takes
// nearly half off the database's time for a claim and a Finalize; to set what a
// connection of the store's own has set (conninfo.h), and put it back, would
// take off more and add two round trips to each statement.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_TRANSACTION_STORE_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_TRANSACTION_STORE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/clock.h"
#include "server/core/metrics.h"
#include "server/core/policies.h"
#include "server/core/store.h"
#include "server/store/postgres/prepared_statements.h"

namespace idempotency {

// A store for as long as the transaction lasts; all that it is given must
// outlive it. `prepared` may be null: then no statement is prepared. Any answer
// that is neither an outcome nor an error of errors.h leaves the transaction of
// no use: it is to be aborted, which undoes all of it, whatever the code says
// about effects. FAILED_PRECONDITION where the session's encoding is none that
// keys can be sent in; UNAVAILABLE where the session is gone.
absl::StatusOr<std::unique_ptr<Store>> MakeTransactionStore(
    pqxx::dbtransaction& transaction, PreparedStatements* prepared,
    const Clock& clock, Metrics& metrics);

struct RulesWithin {
  FleetRules rules{};
  // How old the rules may be: as old as the transaction, where that has one
  // snapshot for all of it.
  absl::Duration age_max{};
  // "database.schema" that they are of.
  std::string schema;
};

// The rules as the transaction sees them, in six statements.
// FAILED_PRECONDITION where the session is none that these statements can run
// in, or the schema none that this program knows.
absl::StatusOr<RulesWithin> ReadRulesWithin(pqxx::dbtransaction& transaction);

// Rolls back, so that the transaction can't be committed any more. Does not
// throw: where the connection is lost there is nothing to roll back.
void Abort(pqxx::dbtransaction& transaction);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_TRANSACTION_STORE_H_
