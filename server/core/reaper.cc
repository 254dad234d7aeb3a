#include "server/core/reaper.h"

#include <chrono>
#include <utility>

namespace idempotency {
namespace {

// For operators only: nothing is decided by it.
std::int64_t UnixMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

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
    Count(metrics_.sweeps_failed);
    log_(report);
    return options_.pause;
  }
  for (const auto& [policy, count] : report->unfinished) {
    Count(metrics_.policies.At(policy).unfinished_reaped, count);
  }
  Count(metrics_.reaped, report->deleted);
  Count(metrics_.parked, report->parked);
  if (report->deleted + report->parked > 0) log_(report);

  const absl::StatusOr<std::int64_t> conflicts =
      sweeper_->SweepConflicts(options_.batch, options_.conflict_retention);
  if (!conflicts.ok()) {
    Count(metrics_.sweeps_failed);
    log_(conflicts.status());
    return options_.pause;
  }
  Count(metrics_.conflicts_reaped, *conflicts);
  Count(metrics_.sweeps);
  metrics_.last_sweep_unix_ms = UnixMs();
  const bool backlog = report->deleted + report->parked >= options_.batch ||
                       *conflicts >= options_.batch;
  return backlog ? options_.pause_in_backlog : options_.pause;
}

}  // namespace idempotency
