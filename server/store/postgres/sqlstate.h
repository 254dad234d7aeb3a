// What an exception of libpqxx means: the one place that decides whether a
// statement was certainly without effect.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_SQLSTATE_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_SQLSTATE_H_

#include <string_view>

#include "absl/status/status.h"

namespace idempotency {

// What was under way.
enum class Phase {
  kConnect,  // nothing had been sent
  kRead,     // nothing could have been changed
  kWrite,
};

struct Failure {
  // A code of store.h. The message has the operation and the SQLSTATE, never
  // SQL, parameters or a connection string.
  absl::Status status{};
  // The connection can't be relied on any more.
  bool discard = true;
  // The database forgot the prepared statement or can't run its plan: it may
  // work on a fresh connection.
  bool stale_statement = false;
};

// The failure that PostgreSQL reported with `sqlstate`.
Failure FailureOfSqlState(std::string_view operation, std::string_view sqlstate,
                          Phase phase);

// The connection ended without an error from PostgreSQL.
Failure FailureOfLostConnection(std::string_view operation, Phase phase);

// PostgreSQL warned that a write that succeeded may not be on the standby.
Failure FailureOfUnconfirmedWrite(std::string_view operation);

// The exception that is being handled. REQUIRES: called in a catch block.
Failure FailureOfCurrentException(std::string_view operation, Phase phase);

// Does this notice, in the verbose form, say that the statement's commit was
// not waited for? Its text can be in any language, its SQLSTATE cannot; every
// warning of that SQLSTATE counts, as none is expected from our statements.
bool IsUnconfirmedWriteNotice(std::string_view notice);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_SQLSTATE_H_
