// How much trouble there is, and how slow everything is. A seed draws it, so
// that some worlds see much of one kind and none of another.
#ifndef IDEMPOTENCY_TESTS_SIMULATION_WEATHER_H_
#define IDEMPOTENCY_TESTS_SIMULATION_WEATHER_H_

#include <cstdint>
#include <map>
#include <string>

#include "tests/simulation/scheduler.h"

namespace idempotency {

struct Weather {
  // No trouble any more, for good.
  bool calm = false;

  // Between replicas and the database, by statement.
  unsigned cuts_per_mille = 0;
  unsigned held_up_per_mille = 0;  // arrives long after it was sent
  unsigned slow_commit_per_mille = 0;
  // Between callers and replicas, by call.
  unsigned lost_requests_per_mille = 0;
  unsigned lost_answers_per_mille = 0;
  unsigned duplicates_per_mille = 0;
  unsigned late_per_mille = 0;

  // How often what happened, by kind.
  std::map<std::string, std::uint64_t> faults;

  void Count(const char* fault) { ++faults[fault]; }
  // Does it happen this time?
  bool Strikes(Random& random, unsigned per_mille, const char* fault) {
    if (calm || per_mille == 0 || !random.PerMille(per_mille)) return false;
    Count(fault);
    return true;
  }

  // What a message or a short step takes.
  Microseconds Short(Random& random) const {
    if (calm || !random.Chance(10)) {
      return random.Between(Microseconds(20), Microseconds(400));
    }
    return random.Between(Microseconds(400), Microseconds(30'000));
  }
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_WEATHER_H_
