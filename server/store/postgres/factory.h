// Puts the store together.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_FACTORY_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_FACTORY_H_

#include <atomic>
#include <functional>
#include <memory>

#include "absl/status/status.h"
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

// Opens a session, which has the settings of now, and says whether it keeps
// what `options` require; sets `not_durable` if it does not, and clears it if
// it does. To be called by one thread at a time. Null where nothing is
// required.
std::function<absl::Status()> MakeDurabilityCheck(
    const ConnectionOptions& options, const Clock& clock,
    std::atomic<bool>& not_durable);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_FACTORY_H_
