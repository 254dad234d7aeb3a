#include "server/core/optimistic_store.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "server/core/claim_run.h"
#include "server/core/decision_rounds.h"
#include "server/core/errors.h"
#include "server/core/limits.h"
#include "server/core/outcome_counts.h"
#include "server/core/transitions.h"

namespace idempotency {
namespace {

// The rounds of read, decision and guarded write that Finalize and Release
// share. `answers` holds what `open` does not name. Items whose refusal is to
// be kept as evidence are added to `evidence`.
template <typename Command, typename Outcome, typename Decide>
void DecideRounds(RecordTable& table, Batch<Command> batch, Open open,
                  Decide decide, std::vector<absl::StatusOr<Outcome>>& answers,
                  Open* evidence) {
  for (int round = 0; round < limits::kStoreRoundsMax && !open.empty();
       ++round) {
    absl::StatusOr<Snapshot> snapshot =
        ReadOpen(table, batch, open, ReadBodies::kNo);
    if (!snapshot.ok()) {
      for (const std::size_t i : open) answers[i] = snapshot.status();
      return;
    }
    Open still_open;
    std::vector<Pending<Outcome>> pending;
    for (std::size_t k = 0; k < open.size(); ++k) {
      const std::size_t i = open[k];
      ReadRow& row = snapshot->rows[k];
      if (!row.status.ok()) {
        answers[i] = std::move(row.status);
        continue;
      }
      if (!row.read) {
        still_open.push_back(i);
        continue;
      }
      Decision<Outcome> decision =
          decide(row.record.has_value() ? &*row.record : nullptr, *batch[i],
                 snapshot->now);
      if (decision.write.has_value()) {
        pending.push_back({.item = i,
                           .before = *std::move(row.record),
                           .decision = std::move(decision)});
        continue;
      }
      if (decision.evidence && evidence != nullptr) evidence->push_back(i);
      answers[i] = std::move(decision.answer);
    }
    const Open changed = WriteDecisions(
        table, batch, pending,
        [&](Pending<Outcome>& written) {
          answers[written.item] = std::move(written.decision.answer);
        },
        [&](std::size_t item, const absl::Status& status) {
          answers[item] = status;
        });
    still_open.insert(still_open.end(), changed.begin(), changed.end());
    std::sort(still_open.begin(), still_open.end());
    open = std::move(still_open);
  }
  for (const std::size_t i : open) answers[i] = Contended();
}

// What is told of evidence that could not be written: whatever the reason, it
// may be possible later.
absl::Status NotKept(const absl::Status& status) {
  const bool transient = status.code() == absl::StatusCode::kUnavailable ||
                         status.code() == absl::StatusCode::kUnknown ||
                         status.code() == absl::StatusCode::kAborted;
  return transient ? status
                   : absl::UnavailableError("the evidence can't be written");
}

// A refusal without its evidence must not reach the caller: the evidence is
// the only proof that work was done twice.
void KeepEvidence(RecordTable& table, Batch<FinalizeCommand> finalizes,
                  const Open& refused, Metrics& metrics,
                  std::vector<absl::StatusOr<FinalizeOutcome>>& answers) {
  if (refused.empty()) return;
  std::vector<Conflict> conflicts;
  conflicts.reserve(refused.size());
  for (const std::size_t i : refused) {
    conflicts.push_back({.id = finalizes[i]->id,
                         .claim_token = finalizes[i]->claim_token,
                         .response_digest = finalizes[i]->response_digest,
                         .status_code = finalizes[i]->response.status_code});
  }
  const absl::StatusOr<std::vector<bool>> kept =
      Counted(table.KeepConflicts(PointersTo(conflicts)), conflicts.size());
  for (std::size_t k = 0; k < refused.size(); ++k) {
    if (!kept.ok()) {
      answers[refused[k]] = NotKept(kept.status());
      continue;
    }
    Count(conflicts[k].status_code < limits::kServerErrorMin
              ? metrics.conflicts
              : metrics.conflicts_server_error);
    if (!(*kept)[k]) Count(metrics.conflicts_not_kept);
  }
}

}  // namespace

OptimisticStore::OptimisticStore(std::unique_ptr<RecordTable> table,
                                 const Clock& clock, Metrics& metrics)
    : table_(std::move(table)), clock_(clock), metrics_(metrics) {}

std::vector<ClaimAnswer> OptimisticStore::ClaimBatch(
    Batch<ClaimCommand> claims) {
  return RunClaims(*table_, clock_, metrics_, claims,
                   [this](Batch<ClaimCommand> creating) {
                     return table_->InsertNew(creating);
                   });
}

ClaimAndFinalizeAnswers OptimisticStore::ClaimAndFinalize(
    Batch<ClaimCommand> claims, Batch<FinalizeCommand> finalizes) {
  std::optional<absl::StatusOr<Times>> recorded;
  const auto insert_new = [&](Batch<ClaimCommand> creating) {
    if (recorded.has_value()) return table_->InsertNew(creating);
    InsertedAndFinalized both = table_->InsertAndFinalize(creating, finalizes);
    recorded = std::move(both.expiries);
    return std::move(both.granted);
  };
  const SteadyTime began = clock_.Now();
  ClaimAndFinalizeAnswers answers;
  answers.claims = RunClaims(*table_, clock_, metrics_, claims, insert_new);
  if (recorded.has_value()) {
    answers.finalizes = SettleFinalizes(finalizes, *std::move(recorded));
    return answers;
  }
  // Claims that create nothing insert nothing.
  const bool away = std::any_of(
      answers.claims.begin(), answers.claims.end(),
      [](const ClaimAnswer& one) { return IsStoreAway(one.outcome.status()); });
  if (away && clock_.Now() - began >= limits::kWaitInVain) {
    answers.finalizes.assign(finalizes.size(), NotAsked());
  } else {
    answers.finalizes = FinalizeBatch(finalizes);
  }
  return answers;
}

std::vector<absl::StatusOr<FinalizeOutcome>> OptimisticStore::FinalizeBatch(
    Batch<FinalizeCommand> finalizes) {
  if (finalizes.empty()) return {};
  return SettleFinalizes(finalizes, table_->FinalizeOwned(finalizes));
}

std::vector<absl::StatusOr<FinalizeOutcome>> OptimisticStore::SettleFinalizes(
    Batch<FinalizeCommand> finalizes, absl::StatusOr<Times> recorded) {
  std::vector<absl::StatusOr<FinalizeOutcome>> answers(finalizes.size());
  recorded = Counted(std::move(recorded), finalizes.size());
  if (!recorded.ok()) {
    std::fill(answers.begin(), answers.end(), recorded.status());
    return answers;
  }
  Open open;
  for (std::size_t i = 0; i < finalizes.size(); ++i) {
    const std::optional<absl::Time>& expires_at = (*recorded)[i];
    if (!expires_at.has_value()) {
      open.push_back(i);
      continue;
    }
    answers[i] = FinalizeOutcome{.result = ResultOf(finalizes[i]->response),
                                 .expires_at = *expires_at};
  }
  Open refused;
  DecideRounds(*table_, finalizes, std::move(open), DecideFinalize, answers,
               &refused);
  // Those of a later round come last.
  std::sort(refused.begin(), refused.end());
  KeepEvidence(*table_, finalizes, refused, metrics_, answers);
  for (const auto& answer : answers) CountFinalize(answer, metrics_);
  return answers;
}

std::vector<absl::StatusOr<LookupOutcome>> OptimisticStore::LookupBatch(
    Batch<LookupCommand> lookups) {
  std::vector<absl::StatusOr<LookupOutcome>> answers(lookups.size());
  if (lookups.empty()) return answers;
  const Open all = All(lookups.size());
  absl::StatusOr<Snapshot> snapshot =
      ReadOpen(*table_, lookups, all, ReadBodies::kYes);
  absl::StatusOr<std::vector<int>> conflicts = std::vector<int>();
  if (snapshot.ok()) {
    std::vector<const RecordId*> ids;
    for (const LookupCommand* lookup : lookups) ids.push_back(&lookup->id);
    conflicts = Counted(table_->CountConflicts(ids), ids.size());
  }
  for (const std::size_t i : all) {
    if (!snapshot.ok() || !conflicts.ok()) {
      answers[i] = snapshot.ok() ? conflicts.status() : snapshot.status();
      continue;
    }
    ReadRow& row = snapshot->rows[i];
    if (!row.status.ok()) {
      answers[i] = std::move(row.status);
      continue;
    }
    if (!row.read) {
      answers[i] = absl::AbortedError("too much to read at a time");
      continue;
    }
    answers[i] = DecideLookup(row.record.has_value() ? &*row.record : nullptr,
                              snapshot->now);
    if (answers[i].ok()) answers[i]->conflict_count = (*conflicts)[i];
  }
  return answers;
}

std::vector<absl::StatusOr<ReleaseOutcome>> OptimisticStore::ReleaseBatch(
    Batch<ReleaseCommand> releases) {
  std::vector<absl::StatusOr<ReleaseOutcome>> answers(releases.size());
  if (releases.empty()) return answers;
  DecideRounds(*table_, releases, All(releases.size()), DecideRelease, answers,
               nullptr);
  for (const auto& answer : answers) CountRelease(answer, metrics_);
  return answers;
}

absl::StatusOr<std::vector<bool>> OptimisticStore::FindChanged(
    Batch<Watched> watched) {
  return Counted(table_->FindChanged(watched), watched.size());
}

absl::StatusOr<FleetRules> OptimisticStore::ReadRules() {
  return table_->ReadRules();
}

}  // namespace idempotency
