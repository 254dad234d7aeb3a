// Puts the store together.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_FACTORY_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_FACTORY_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "server/core/clock.h"
#include "server/core/metrics.h"
#include "server/core/reaper.h"
#include "server/core/store.h"
#include "server/store/postgres/connection_options.h"
#include "server/store/postgres/durability.h"

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

// CheckDurability() over a connection of its own, made when it is first needed
// and kept. To be called by one thread at a time. Null where nothing is
// required.
std::function<absl::Status()> MakeDurabilityCheck(
    const ConnectionOptions& options, const Clock& clock, Durability required);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_FACTORY_H_
