#include "server/store/postgres/factory.h"

#include "server/core/optimistic_store.h"
#include "server/store/postgres/connection.h"
#include "server/store/postgres/record_table.h"
#include "server/store/postgres/sweeper.h"

namespace idempotency {
namespace {

constexpr Statement kOpenSession = {"open_session", "SELECT 1", Effect::kRead,
                                    Plan::kFresh};

ConnectionOptions Counted(ConnectionOptions options, Metrics& metrics) {
  options.metrics = &metrics;
  return options;
}

}  // namespace

std::unique_ptr<Store> MakePostgresStore(const ConnectionOptions& options,
                                         const Clock& clock, Metrics& metrics) {
  return std::make_unique<OptimisticStore>(
      std::make_unique<PgRecordTable>(Counted(options, metrics), clock), clock,
      metrics);
}

std::unique_ptr<Sweeper> MakePostgresSweeper(const ConnectionOptions& options,
                                             const Clock& clock,
                                             Metrics& metrics) {
  return std::make_unique<PgSweeper>(Counted(options, metrics), clock);
}

std::function<absl::Status()> MakeDurabilityCheck(
    const ConnectionOptions& options, const Clock& clock,
    std::atomic<bool>& not_durable) {
  if (options.durability == Durability::kAny) return nullptr;
  return [options, &clock, &not_durable] {
    absl::Status status =
        Connection(options, clock).Run(kOpenSession, {}).status();
    if (status.ok()) not_durable = false;
    if (absl::IsFailedPrecondition(status)) not_durable = true;
    return status;
  };
}

}  // namespace idempotency
