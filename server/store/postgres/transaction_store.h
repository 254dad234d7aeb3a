// The store within a transaction that somebody else began and will end, with
// the statements and decisions of every other store.
//
// Statements go unprepared and without settings of their own, so that nothing
// of the caller's session is changed: no names that a pooler or a DISCARD ALL
// takes away, and nothing to put back. Planned for the one item that each has,
// they use the indexes whatever the session's settings are. That costs the
// database more time for a statement than a kept plan does, but no round trip.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_TRANSACTION_STORE_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_TRANSACTION_STORE_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/clock.h"
#include "server/core/metrics.h"
#include "server/core/policies.h"
#include "server/core/store.h"

namespace pqxx {
class dbtransaction;
}

namespace idempotency {

// A store for as long as the transaction lasts; `transaction`, `clock` and
// `metrics` must outlive it. Any answer that is neither an outcome nor an error
// of errors.h leaves the transaction of no use: it is to be aborted, which
// undoes all of it, whatever the code says about effects. FAILED_PRECONDITION
// where the session's encoding is none that keys can be sent in.
absl::StatusOr<std::unique_ptr<Store>> MakeTransactionStore(
    pqxx::dbtransaction& transaction, const Clock& clock, Metrics& metrics);

struct RulesWithin {
  FleetRules rules{};
  // The transaction's age: with a snapshot for all of it, the rules may be as
  // old.
  absl::Duration age_max{};
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
