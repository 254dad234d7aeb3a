// Clean-up of the tables, on a connection of its own.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_SWEEPER_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_SWEEPER_H_

#include "server/core/clock.h"
#include "server/core/reaper.h"
#include "server/store/postgres/connection.h"

namespace idempotency {

// Each call is one statement, two with Citus. Errors are those of store.h; a
// statement that failed, or whose outcome is unknown, leaves nothing to repair.
class PgSweeper final : public Sweeper {
 public:
  // `clock` must outlive the sweeper. Connects at the first call.
  PgSweeper(ConnectionOptions options, const Clock& clock);

  absl::StatusOr<SweepReport> SweepRecords(int limit) override;
  absl::StatusOr<std::int64_t> SweepConflicts(int limit,
                                              absl::Duration kept_for) override;

 private:
  Connection connection_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_SWEEPER_H_
