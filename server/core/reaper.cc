#include "server/core/reaper.h"

#include <utility>

namespace idempotency {

Reaper::Reaper(const ReaperOptions& options, std::unique_ptr<Sweeper> sweeper,
               Metrics& metrics,
               std::function<void(const absl::StatusOr<SweepReport>&)> log)
    : options_(options),
      sweeper_(std::move(sweeper)),
      metrics_(metrics),
      log_(std::move(log)) {}

absl::Duration Reaper::SweepOnce() {
  const absl::StatusOr<SweepReport> report =
      sweeper_->SweepRecords(options_.batch);
  if (!report.ok()) {
    log_(report);
    return options_.pause;
  }
  std::uint64_t unfinished = 0;
  for (const auto& [policy, count] : report->unfinished) unfinished += count;
  metrics_.reaped += report->deleted;
  metrics_.reaped_unfinished += unfinished;
  metrics_.parked += report->parked;
  if (report->deleted + report->parked > 0) log_(report);

  const absl::StatusOr<std::int64_t> conflicts =
      sweeper_->SweepConflicts(options_.batch, options_.conflict_retention);
  if (!conflicts.ok()) {
    log_(conflicts.status());
    return options_.pause;
  }
  const bool backlog = report->deleted + report->parked >= options_.batch ||
                       *conflicts >= options_.batch;
  return backlog ? options_.pause_in_backlog : options_.pause;
}

}  // namespace idempotency
