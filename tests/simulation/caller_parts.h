#ifndef IDEMPOTENCY_TESTS_SIMULATION_CALLER_PARTS_H_
#define IDEMPOTENCY_TESTS_SIMULATION_CALLER_PARTS_H_

#include "tests/simulation/database.h"
#include "tests/simulation/history_checker.h"
#include "tests/simulation/network.h"
#include "tests/simulation/random.h"
#include "tests/simulation/scheduler.h"
#include "tests/simulation/weather.h"

namespace idempotency {

// What all callers of a world share; it must outlive them.
struct CallerParts {
  Scheduler& scheduler;
  Random& random;  // the scheduler's
  Weather& weather;
  Database& database;
  Network& network;
  HistoryChecker& checker;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_CALLER_PARTS_H_
