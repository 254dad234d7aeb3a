// A store with a planted bug in what it answers.
#ifndef IDEMPOTENCY_TESTS_SIMULATION_PLANTED_STORE_H_
#define IDEMPOTENCY_TESTS_SIMULATION_PLANTED_STORE_H_

#include <memory>

#include "server/core/clock.h"
#include "server/core/store.h"
#include "tests/simulation/planted_bug.h"

namespace idempotency {

// `store` itself, unless the bug is one of a store's.
// `clock` must outlive it.
std::unique_ptr<Store> WithPlantedBug(std::unique_ptr<Store> store,
                                      const Clock& clock, PlantedBug bug);

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_PLANTED_STORE_H_
