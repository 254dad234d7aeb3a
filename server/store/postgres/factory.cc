#include "server/store/postgres/factory.h"

#include "server/core/optimistic_store.h"
#include "server/store/postgres/record_table.h"
#include "server/store/postgres/sweeper.h"

namespace idempotency {

std::unique_ptr<Store> MakePostgresStore(const ConnectionOptions& options,
                                         const Clock& clock, Metrics& metrics) {
  return std::make_unique<OptimisticStore>(
      std::make_unique<PgRecordTable>(options, clock), clock, metrics);
}

std::unique_ptr<Sweeper> MakePostgresSweeper(const ConnectionOptions& options,
                                             const Clock& clock) {
  return std::make_unique<PgSweeper>(options, clock);
}

}  // namespace idempotency
