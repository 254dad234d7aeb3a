// Brings a database to the schema that this program knows, and refuses one
// that it can't work with.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_MIGRATOR_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_MIGRATOR_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/clock.h"
#include "server/store/postgres/connection_options.h"
#include "server/store/postgres/statement_runner.h"

namespace idempotency {

// Applies what is missing, each migration in a transaction of its own, and
// answers how many that were. Any number of processes may do so at once: they
// wait for each other. What psql or golang-migrate applied is recognised by
// the rows that every migration writes into idempotency_schema. Blocks; also
// sent again by itself, a few times, where the outcome was lost.
absl::StatusOr<int> Migrate(const ConnectionOptions& options,
                            const Clock& clock);

// OK when this program can work with the database. FAILED_PRECONDITION names
// the remedy: a schema that is missing or too old, or a major step of a newer
// program. Also finds out whether the session has the required settings.
absl::Status CheckSchema(const ConnectionOptions& options, const Clock& clock);
// The same where `runner` runs its statements, whatever settings it has.
absl::Status CheckSchema(StatementRunner& runner);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_MIGRATOR_H_
