#include "server/store/postgres/factory.h"

#include "server/core/optimistic_store.h"
#include "server/store/postgres/connection.h"
#include "server/store/postgres/record_table.h"
#include "server/store/postgres/sweeper.h"

namespace idempotency {
namespace {

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
    const ConnectionOptions& options, const Clock& clock, Durability required) {
  if (required == Durability::kAny) return nullptr;
  return [connection = std::make_shared<Connection>(options, clock), required] {
    return CheckDurability(*connection, required);
  };
}

}  // namespace idempotency
