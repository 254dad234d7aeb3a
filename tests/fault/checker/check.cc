#include "tests/fault/checker/check.h"

#include <algorithm>
#include <optional>

#include "absl/time/clock.h"
#include "tests/fault/checker/answer_rules.h"
#include "tests/fault/checker/database_clock.h"
#include "tests/fault/checker/key_check.h"

namespace idempotency::fault {
namespace {

// From when on faults have ended and been got over; nullopt: none was noted.
std::optional<std::int64_t> SettledAt(const Run& run, const Limits& limits) {
  std::optional<std::int64_t> last;
  for (const NoteEvent& note : run.notes) {
    if (note.phase == Phase::kEnd) last = std::max(last.value_or(0), note.t);
  }
  if (last.has_value()) *last += absl::ToInt64Nanoseconds(limits.settle);
  return last;
}

void Count(const KeyHistory& key, Counts& counts) {
  ++counts.keys;
  counts.operations += static_cast<std::int64_t>(key.operations.size());
  counts.changes += static_cast<std::int64_t>(key.changes.size());
  for (const Operation& operation : key.operations) {
    if (operation.certainty == Certainty::kUnknown) ++counts.unknown;
    if (operation.answer.has_value() &&
        (operation.answer->reason == "INTERNAL" ||
         operation.answer->reason == "RECORD_CORRUPT")) {
      ++counts.defects;
    }
  }
}

}  // namespace

absl::Status Check(const Run& run, const Limits& limits, Findings& findings) {
  const absl::StatusOr<DatabaseClock> clock = DatabaseClock::Make(run.clocks);
  if (!clock.ok()) return clock.status();
  const absl::Time end = absl::Now() + limits.budget;
  const std::optional<std::int64_t> settled = SettledAt(run, limits);
  for (const auto& [id, key] : run.keys) {
    if (absl::Now() > end) {
      return absl::DeadlineExceededError(
          "out of time after " + std::to_string(findings.counts.keys) + " of " +
          std::to_string(run.keys.size()) + " keys");
    }
    Count(key, findings.counts);
    KeyCheck states(id, key, run, *clock, findings);
    states.Run();
    CheckAnswers(id, key, *clock, findings);
    CheckEffects(id, key, states, *clock, findings);
    CheckFinalTable(id, key, findings);
    if (run.has_conflicts) CheckEvidence(id, key, findings);
    if (settled.has_value()) {
      CheckProgress(id, key, states, limits, *settled, findings);
    }
  }
  CheckIsolation(run, findings);
  CheckReturns(run, limits, findings);
  if (settled.has_value()) CheckGoodput(run, limits, *settled, findings);
  return absl::OkStatus();
}

}  // namespace idempotency::fault
