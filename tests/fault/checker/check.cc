#include "tests/fault/checker/check.h"

#include <algorithm>
#include <optional>

#include "tests/fault/checker/answer_rules.h"
#include "tests/fault/checker/database_clock.h"
#include "tests/fault/checker/effect_rules.h"
#include "tests/fault/checker/order_rules.h"
#include "tests/fault/checker/progress_rules.h"
#include "tests/fault/checker/run_rules.h"
#include "tests/fault/checker/states.h"

namespace idempotency::fault {
namespace {

bool HasEndlessFault(const Run& run) {
  int open = 0;
  for (const NoteEvent& note : run.notes) {
    // A caller that was killed stays so.
    const int one = note.caller.empty() ? 1 : 0;
    if (note.phase == Phase::kBegin) open += one;
    if (note.phase != Phase::kEnd) continue;
    open = std::max(open - one, 0);
  }
  return open > 0;
}

// From when on only keys that were left unfinished are asked for.
std::optional<std::int64_t> ClosingAt(const Run& run) {
  for (const NoteEvent& note : run.notes) {
    if (note.phase == Phase::kClosing) return note.t;
  }
  return std::nullopt;
}

// nullopt: no end of a fault was noted, or one never ended.
std::optional<Settled> SettledIn(const Run& run, const Limits& limits) {
  if (HasEndlessFault(run)) return std::nullopt;
  std::optional<std::int64_t> last;
  for (const NoteEvent& note : run.notes) {
    if (note.phase == Phase::kEnd) last = std::max(last.value_or(0), note.t);
  }
  if (!last.has_value()) return std::nullopt;
  Settled settled{.from = *last + absl::ToInt64Nanoseconds(limits.settle)};
  if (const auto closing = ClosingAt(run)) settled.until = *closing;
  return settled;
}

void Count(const RecordId& id, const KeyHistory& key, Findings& findings) {
  Counts& counts = findings.counts;
  ++counts.keys;
  counts.operations += static_cast<std::int64_t>(key.operations.size());
  counts.changes += static_cast<std::int64_t>(key.changes.size());
  for (const Change& change : key.changes) {
    const Record& record = change.row.record;
    counts.finals += change.kind != ChangeKind::kDelete &&
                     record.state == RecordState::kFinal &&
                     record.finalized_at <= change.row.at;
  }
  for (const Operation& operation : key.operations) {
    if (operation.certainty == Certainty::kUnknown) ++counts.unknown;
    if (operation.certainty == Certainty::kFact) {
      ++counts.decided;
      counts.grants += operation.answer->outcome == Outcome::kClaimed;
    }
    if (operation.answer.has_value() &&
        (operation.answer->reason == "INTERNAL" ||
         operation.answer->reason == "RECORD_CORRUPT")) {
      ++counts.defects;
      findings.Violate(
          "DEFECT", id,
          operation.name() + " was told " + operation.answer->reason);
    }
  }
}

void CheckKey(const RecordId& id, const KeyHistory& key, const Run& run,
              const DatabaseClock& clock, const Limits& limits,
              Findings& findings) {
  CheckAnswers(id, key, clock, findings);
  CheckTold(id, key, clock, findings);
  if (limits.success_needs_effect) {
    CheckRecordedEffects(id, key, clock, findings);
  }
  CheckOmissions(id, key, limits, findings);
  CheckFinalTable(id, key, findings);
  if (run.has_conflicts) CheckEvidence(id, key, findings);
}

void CheckOrder(const States& states, const Run& run, Findings& findings) {
  CheckLog(states, findings);
  const Told told = PlaceAnswers(states, findings);
  AttributeChanges(states, told, run, findings);
  CheckEffects(states, findings);
}

}  // namespace

absl::Status Check(const Run& run, const Limits& limits, Findings& findings) {
  const absl::StatusOr<DatabaseClock> clock = DatabaseClock::Make(run.clocks);
  if (!clock.ok()) return clock.status();
  Counts& counts = findings.counts;
  counts.clock_error_ms = absl::ToInt64Milliseconds(clock->error());
  counts.clock_error_max_ms =
      absl::ToInt64Milliseconds(clock->greatest_error());
  const std::int64_t end =
      MonotonicNow() + absl::ToInt64Nanoseconds(limits.budget);
  const std::optional<Settled> settled = SettledIn(run, limits);
  const std::optional<std::int64_t> closing = ClosingAt(run);
  ReturnCheck returns(settled.value_or(Settled{}), findings);
  for (const auto& [id, key] : run.keys) {
    if (MonotonicNow() > end) {
      return absl::DeadlineExceededError(
          "out of time after " + std::to_string(counts.keys) + " of " +
          std::to_string(run.keys.size()) + " keys");
    }
    Count(id, key, findings);
    const States states(id, key, *clock);
    CheckOrder(states, run, findings);
    CheckKey(id, key, run, *clock, limits, findings);
    if (closing.has_value()) {
      CheckLeftKey(states, limits, *closing, findings);
    }
    if (!settled.has_value()) continue;
    CheckProgress(states, limits, *settled, findings);
    returns.Add(states);
  }
  CheckIsolation(run, findings);
  CheckReturns(run, limits, findings);
  if (settled.has_value()) {
    CheckGoodput(run, limits, *settled, findings);
    returns.Finish();
  }
  if (HasEndlessFault(run)) {
    return absl::FailedPreconditionError("a fault was begun and never ended");
  }
  return absl::OkStatus();
}

}  // namespace idempotency::fault
