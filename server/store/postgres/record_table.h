// The table of records in PostgreSQL.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_RECORD_TABLE_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_RECORD_TABLE_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/clock.h"
#include "server/core/record_table.h"
#include "server/store/postgres/connection_options.h"
#include "server/store/postgres/statement_runner.h"

namespace idempotency {

// Every function but three is one statement: Read asks again for what the first
// statement could not tell (long bodies, or the time where no row exists),
// InsertAndFinalize is two on Citus, and ReadRules reads three tables. A row
// that no transition makes is answered with RECORD_CORRUPT in its ReadRow.
//
// Durations and times are kept in whole microseconds, rounded down.
class PgRecordTable final : public RecordTable {
 public:
  // Over a connection of its own, made at the first call. `clock` must outlive
  // the table.
  PgRecordTable(ConnectionOptions options, const Clock& clock);
  // Over whatever runs the statements, by themselves or within a transaction
  // that has its own idea of what a failure leaves behind.
  explicit PgRecordTable(std::unique_ptr<StatementRunner> runner);

  absl::StatusOr<Times> InsertNew(Batch<ClaimCommand> claims) override;
  absl::StatusOr<Times> FinalizeOwned(
      Batch<FinalizeCommand> finalizes) override;
  InsertedAndFinalized InsertAndFinalize(
      Batch<ClaimCommand> claims, Batch<FinalizeCommand> finalizes) override;
  absl::StatusOr<Snapshot> Read(Batch<RecordId> ids,
                                ReadBodies bodies) override;
  absl::StatusOr<std::vector<bool>> Replace(
      Batch<Replacement> replacements) override;
  absl::StatusOr<std::vector<bool>> KeepConflicts(
      Batch<Conflict> conflicts) override;
  absl::StatusOr<std::vector<bool>> FindChanged(
      Batch<Watched> watched) override;
  absl::StatusOr<std::vector<int>> CountConflicts(Batch<RecordId> ids) override;
  absl::StatusOr<FleetRules> ReadRules() override;

 private:
  // A record whose body is still to be read.
  struct LongBody {
    std::size_t item = 0;
    std::size_t bytes = 0;
  };

  absl::Status ReadLongBodies(Batch<RecordId> ids,
                              const std::vector<LongBody>& long_bodies,
                              Snapshot& snapshot);

  const std::unique_ptr<StatementRunner> runner_;
  const bool citus_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_RECORD_TABLE_H_
