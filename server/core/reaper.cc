#include "server/core/reaper.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace idempotency {
namespace {

// The reaper works a third of the time at most, unless its steps take longer
// than half a pause.
constexpr int kRestFactor = 2;
// So that statements which take no time do not follow each other at once.
constexpr absl::Duration kRestMin = absl::Milliseconds(5);
constexpr std::chrono::seconds kTellInterval{5};

// For operators only: nothing is decided by it.
std::int64_t UnixMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Of the rows that were chosen, callers may have claimed a few again before
// they were deleted.
bool IsBacklog(std::int64_t found, const SweepStep& step) {
  return found * 2 > step.rows();
}

}  // namespace

Reaper::Reaper(const ReaperOptions& options, std::unique_ptr<Sweeper> sweeper,
               const Clock& clock, Metrics& metrics,
               std::function<void(const absl::StatusOr<SweepReport>&)> log)
    : options_(options),
      sweeper_(std::move(sweeper)),
      clock_(clock),
      metrics_(metrics),
      log_(std::move(log)),
      records_(options.batch),
      conflicts_(options.batch),
      told_(clock.Now()) {}

absl::Duration Reaper::SweepOnce() {
  const SteadyTime began = clock_.Now();
  const absl::StatusOr<SweepReport> report =
      sweeper_->SweepRecords(records_.rows());
  const SteadyTime swept = clock_.Now();
  if (!report.ok()) {
    records_.NoteFailure();
    return RestAfter(report.status());
  }
  const std::int64_t found = report->deleted + report->parked;
  bool backlog = IsBacklog(found, records_);
  records_.Note(found, swept - began);
  Note(*report);

  const absl::StatusOr<std::int64_t> conflicts =
      sweeper_->SweepConflicts(conflicts_.rows(), options_.conflict_retention);
  const SteadyTime ended = clock_.Now();
  if (!conflicts.ok()) {
    conflicts_.NoteFailure();
    return RestAfter(conflicts.status());
  }
  backlog |= IsBacklog(*conflicts, conflicts_);
  conflicts_.Note(*conflicts, ended - swept);
  Count(metrics_.conflicts_reaped, *conflicts);
  Count(metrics_.sweeps);
  metrics_.last_sweep_unix_ms = UnixMs();

  if (!backlog || ended - told_ >= kTellInterval) Tell();
  if (!backlog) return options_.pause;
  return std::clamp(absl::FromChrono(ended - began) * kRestFactor,
                    std::min(kRestMin, options_.pause), options_.pause);
}

absl::Duration Reaper::RestAfter(const absl::Status& failure) {
  Tell();
  Count(metrics_.sweeps_failed);
  log_(failure);
  return options_.pause;
}

void Reaper::Note(const SweepReport& report) {
  Count(metrics_.reaped, report.deleted);
  Count(metrics_.parked, report.parked);
  untold_.deleted += report.deleted;
  untold_.parked += report.parked;
  for (const auto& [policy, count] : report.unfinished) {
    Count(metrics_.policies.At(policy).unfinished_reaped, count);
    untold_.unfinished[policy] += count;
  }
}

void Reaper::Tell() {
  told_ = clock_.Now();
  if (untold_.deleted + untold_.parked > 0) log_(untold_);
  untold_ = SweepReport();
}

}  // namespace idempotency
