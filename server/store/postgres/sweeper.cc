#include "server/store/postgres/sweeper.h"

#include <string>
#include <string_view>
#include <utility>

#include "server/store/postgres/pg_arrays.h"
#include "server/store/postgres/pg_row.h"
#include "server/store/postgres/sweep_statements.h"

namespace idempotency {
namespace {

// Adds the rows (what became of them, policy, unfinished, how many).
absl::Status AddTo(SweepReport& report,
                   const absl::StatusOr<pqxx::result>& result) {
  if (!result.ok()) return result.status();
  for (const pqxx::row& fields : *result) {
    PgRow row(fields);
    const std::string_view what = row.Text(0);
    const std::string policy(row.Text(1));
    const bool unfinished = row.Bool(2);
    const std::int64_t count = row.Int8(3);
    if (!row.ok()) return absl::InternalError("sweep: an unexpected answer");
    if (what == "parked") {
      report.parked += count;
      continue;
    }
    report.deleted += count;
    if (unfinished) report.unfinished[policy] += count;
  }
  return absl::OkStatus();
}

}  // namespace

PgSweeper::PgSweeper(ConnectionOptions options, const Clock& clock)
    : connection_(std::move(options), clock) {}

absl::StatusOr<SweepReport> PgSweeper::SweepRecords(int limit) {
  SweepReport report;
  const Parameters parameters = {BinaryInt8(limit)};
  absl::Status status;
  if (connection_.options().citus) {
    status = AddTo(report, connection_.Run(statements::kParkByKey, parameters));
    if (!status.ok()) return status;
    status =
        AddTo(report, connection_.Run(statements::kDeleteByKey, parameters));
  } else {
    absl::StatusOr<pqxx::result> swept =
        connection_.Run(statements::kSweep, parameters);
    // Somebody's transaction may hold one of the rows for long.
    if (absl::IsAborted(swept.status())) {
      swept = connection_.Run(statements::SweepUnlocked(), parameters);
    }
    status = AddTo(report, swept);
  }
  if (!status.ok()) return status;
  return report;
}

absl::StatusOr<std::int64_t> PgSweeper::SweepConflicts(
    int limit, absl::Duration kept_for) {
  const absl::StatusOr<pqxx::result> result = connection_.Run(
      statements::kSweepConflicts,
      {BinaryInt8(limit), BinaryInt8(absl::ToInt64Microseconds(kept_for))});
  if (!result.ok()) return result.status();
  PgRow row((*result)[0]);
  const std::int64_t deleted = row.Int8(0);
  if (!row.ok()) return absl::InternalError("sweep: an unexpected answer");
  return deleted;
}

}  // namespace idempotency
