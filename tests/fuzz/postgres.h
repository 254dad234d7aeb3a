// The private PostgreSQL of a fuzz target: made at the first use, one a
// process, gone with it.
#ifndef IDEMPOTENCY_TESTS_FUZZ_POSTGRES_H_
#define IDEMPOTENCY_TESTS_FUZZ_POSTGRES_H_

#include <cstdio>

#include "server/core/clock.h"
#include "server/store/postgres/connection.h"
#include "server/store/postgres/migrator.h"
#include "tests/fuzz/check.h"
#include "tests/support/temp_postgres.h"

namespace idempotency::fuzz {

inline const SystemClock& RealClock() {
  static const SystemClock clock;
  return clock;
}

// A database with the coordinator's tables.
inline const ConnectionOptions& MigratedDatabase() {
  static const ConnectionOptions made = [] {
    ConnectionOptions options;
    const absl::StatusOr<TempPostgres*> postgres = TempPostgres::Shared();
    if (!postgres.ok()) {
      std::fprintf(stderr, "%s\n", postgres.status().ToString().c_str());
    }
    Require(postgres.ok(), "PostgreSQL starts");
    options.uri = (*postgres)->SocketUri("postgres");
    Require(Migrate(options, RealClock()).ok(), "the migrations apply");
    return options;
  }();
  return made;
}

// A connection to it.
inline Connection& TheConnection() {
  static Connection connection(MigratedDatabase(), RealClock());
  return connection;
}

}  // namespace idempotency::fuzz

#endif  // IDEMPOTENCY_TESTS_FUZZ_POSTGRES_H_
