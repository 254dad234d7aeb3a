// What a database has to promise about writes that it acknowledged.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_DURABILITY_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_DURABILITY_H_

#include "absl/status/status.h"
#include "server/store/postgres/statement_runner.h"

namespace idempotency {

enum class Durability {
  kAny,    // whatever it is set to
  kCrash,  // they outlive a crash of the database's machine
  // They outlive the loss of the primary too: each waited until a synchronous
  // standby had it.
  kFailover,
};

// Whether the session that `runner` runs its statements in has the settings
// for it. FAILED_PRECONDITION names the setting that is in the way and what
// to set.
absl::Status CheckDurability(StatementRunner& runner, Durability required);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_DURABILITY_H_
