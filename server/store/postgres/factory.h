// Puts the store together.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_FACTORY_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_FACTORY_H_

#include <memory>

#include "server/core/clock.h"
#include "server/core/metrics.h"
#include "server/core/reaper.h"
#include "server/core/store.h"
#include "server/store/postgres/connection_options.h"

namespace idempotency {

// A store with a connection of its own, made when it is first needed.
// `metrics` counts its statements and answers. `clock` and `metrics` must
// outlive it.
std::unique_ptr<Store> MakePostgresStore(const ConnectionOptions& options,
                                         const Clock& clock, Metrics& metrics);

// Likewise for the reaper.
std::unique_ptr<Sweeper> MakePostgresSweeper(const ConnectionOptions& options,
                                             const Clock& clock,
                                             Metrics& metrics);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_FACTORY_H_
