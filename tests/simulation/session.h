// A replica's connection to the database, as Connection is one in the server.
#ifndef IDEMPOTENCY_TESTS_SIMULATION_SESSION_H_
#define IDEMPOTENCY_TESTS_SIMULATION_SESSION_H_

#include <cstdint>

#include "tests/simulation/database.h"
#include "tests/simulation/process.h"

namespace idempotency {

// Opened when it is needed, and again after it was cut. Not thread-safe.
class Session {
 public:
  Session(Database& database, Process& process, Weather& weather)
      : database_(database), process_(process), weather_(weather) {}

  Database& database() const { return database_; }

  // Sends a statement and waits for its answer, in a fiber of the process.
  // Whatever this returns but kAnswered and the certain failures, `work` may be
  // carried out later: it must own what it uses.
  Ending Run(bool writes, StatementWork work);

 private:
  bool Connect();

  Database& database_;
  Process& process_;
  Weather& weather_;
  bool open_ = false;
  std::uint64_t epoch_ = 0;  // of the open connection
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_SESSION_H_
