// How the store reaches its database.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_CONNECTION_OPTIONS_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_CONNECTION_OPTIONS_H_

#include <atomic>
#include <chrono>
#include <string>

#include "server/core/limits.h"
#include "server/core/metrics.h"
#include "server/store/postgres/durability.h"
#include "server/store/postgres/statement_watch.h"

namespace idempotency {

// A plain value.
struct ConnectionOptions {
  // A libpq URI or connection string. It may hold a password: it appears in no
  // error and no log.
  std::string uri{};
  // The address is a PgBouncer in transaction mode: no start-up options and no
  // named statements are used, and the settings must come from ALTER ROLE.
  bool pooled = false;
  // The records are distributed by Citus: the sweeper uses statements that
  // Citus runs, which are slower, and new claims and Finalizes of a round go in
  // two statements instead of one.
  bool citus = false;
  std::string application_name = "idempotency-server";
  // What each session is asked for when it is opened.
  Durability durability = Durability::kAny;
  // While it is true, sessions that are open are not used but opened anew.
  // Must outlive every connection. Null: they are always used.
  const std::atomic<bool>* not_durable = nullptr;
  std::chrono::seconds connect_timeout{3};
  // A lock that is not had by then gives the statement up without effect.
  std::chrono::milliseconds lock_timeout = limits::kLockWaitMax;
  std::chrono::milliseconds statement_timeout{5000};
  // PostgreSQL keeps to the timeout above but for some waits; a statement whose
  // answer does not come for so much longer is cut off, if there is a watch.
  std::chrono::milliseconds answer_margin{2000};
  // Must outlive every connection. Null: none.
  StatementWatch* watch = nullptr;
  // Where statements are counted by name. Likewise.
  Metrics* metrics = nullptr;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_CONNECTION_OPTIONS_H_
