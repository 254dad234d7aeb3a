#include "server/core/optimistic_store.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <variant>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "server/core/errors.h"
#include "server/core/limits.h"
#include "server/core/outcome_counts.h"
#include "server/core/transitions.h"

namespace idempotency {
namespace {

// The positions, within a batch, of the items that have no answer yet.
using Open = std::vector<std::size_t>;

Open All(std::size_t size) {
  Open all(size);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

absl::Status WrongCount() {
  return absl::UnknownError("a statement answered for another number of items");
}

absl::Status Contended() {
  return absl::AbortedError("the record kept changing");
}

// The statement's answer, checked to be about every item asked for.
template <typename Answer>
absl::StatusOr<std::vector<Answer>> Counted(
    absl::StatusOr<std::vector<Answer>> answers, std::size_t expected) {
  if (answers.ok() && answers->size() != expected) return WrongCount();
  return answers;
}

template <typename Command>
std::vector<const Command*> Pick(Batch<Command> batch, const Open& open) {
  std::vector<const Command*> picked;
  picked.reserve(open.size());
  for (const std::size_t i : open) picked.push_back(batch[i]);
  return picked;
}

template <typename Item>
std::vector<const Item*> PointersTo(const std::vector<Item>& items) {
  std::vector<const Item*> pointers;
  pointers.reserve(items.size());
  for (const Item& item : items) pointers.push_back(&item);
  return pointers;
}

template <typename Command>
absl::StatusOr<Snapshot> ReadOpen(RecordTable& table, Batch<Command> batch,
                                  const Open& open, ReadBodies bodies) {
  std::vector<const RecordId*> ids;
  ids.reserve(open.size());
  for (const std::size_t i : open) ids.push_back(&batch[i]->id);
  absl::StatusOr<Snapshot> snapshot = table.Read(ids, bodies);
  if (snapshot.ok() && snapshot->rows.size() != open.size()) {
    return WrongCount();
  }
  return snapshot;
}

// A decision that waits for its write.
template <typename Outcome>
struct Pending {
  std::size_t item = 0;
  Record before;
  Decision<Outcome> decision;
};

// Writes what `pending` decided. Gives each one that was written to `settle`
// and returns the items whose record had changed in the meantime; a failed
// statement is given to `fail`, item by item.
template <typename Command, typename Outcome, typename Settle, typename Fail>
Open WriteDecisions(RecordTable& table, Batch<Command> batch,
                    std::vector<Pending<Outcome>>& pending, Settle settle,
                    Fail fail) {
  Open changed;
  if (pending.empty()) return changed;
  std::vector<Replacement> replacements;
  replacements.reserve(pending.size());
  for (const Pending<Outcome>& one : pending) {
    replacements.push_back({.id = &batch[one.item]->id,
                            .before = &one.before,
                            .after = &*one.decision.write});
  }
  const absl::StatusOr<std::vector<bool>> replaced =
      Counted(table.Replace(PointersTo(replacements)), replacements.size());
  for (std::size_t i = 0; i < pending.size(); ++i) {
    if (!replaced.ok()) {
      fail(pending[i].item, replaced.status());
    } else if ((*replaced)[i]) {
      settle(pending[i]);
    } else {
      changed.push_back(pending[i].item);
    }
  }
  return changed;
}

bool IsReplay(const absl::StatusOr<ClaimOutcome>& outcome) {
  return outcome.ok() && std::holds_alternative<Replay>(*outcome);
}

// One batch of claims on its way through the rounds.
class ClaimRun {
 public:
  ClaimRun(RecordTable& table, const Clock& clock, Metrics& metrics,
           Batch<ClaimCommand> claims)
      : table_(table),
        clock_(clock),
        metrics_(metrics),
        claims_(claims),
        answers_(claims.size()),
        to_be_renewed_(claims.size()),
        open_(All(claims.size())) {}

  // Inserts new records: as RecordTable::InsertNew().
  using InsertNew =
      absl::FunctionRef<absl::StatusOr<Times>(Batch<ClaimCommand> creating)>;

  std::vector<ClaimAnswer> Run(InsertNew insert_new) {
    for (int round = 0; round < limits::kStoreRoundsMax && !open_.empty();
         ++round) {
      first_round_ = round == 0;
      last_round_ = round + 1 == limits::kStoreRoundsMax;
      Insert(insert_new);
      ReadAndDecide();
    }
    for (const std::size_t i : open_) answers_[i].outcome = Contended();
    AdmitGrants();
    return std::move(answers_);
  }

 private:
  // A claim that was granted and then could not be renewed failed, but not
  // without effect.
  void AdmitGrants() {
    for (std::size_t i = 0; i < answers_.size(); ++i) {
      absl::StatusOr<ClaimOutcome>& outcome = answers_[i].outcome;
      if (to_be_renewed_[i] && !outcome.ok() && !HasReason(outcome.status())) {
        outcome = absl::UnknownError("granted, and not renewed in time");
      }
    }
  }

  void Fail(const Open& items, const absl::Status& status) {
    for (const std::size_t i : items) answers_[i].outcome = status;
  }

  // A grant that waited so long for a lock that less than half of its lease is
  // left stays open: the next round renews it before it is answered.
  bool TooLittleIsLeft(const Record& granted, const Claimed& claimed) const {
    return claimed.lease * 2 < granted.lease && !last_round_;
  }

  // Answers with the lease that is left after the time the statement took.
  // Returns false when the claim is to stay open.
  bool SettleGrant(std::size_t item, Grant grant, Claimed claimed,
                   Record record, absl::Time granted_at, SteadyTime asked_at) {
    claimed.lease -= absl::FromChrono(clock_.Now() - asked_at);
    // Renewed only because it was granted a round ago: still a new grant.
    if (to_be_renewed_[item]) grant = Grant::kNew;
    to_be_renewed_[item] = TooLittleIsLeft(record, claimed);
    if (to_be_renewed_[item]) return false;
    if (claimed.lease <= absl::ZeroDuration()) {
      answers_[item].outcome =
          absl::UnknownError("the lease was over before it could be told");
      return true;
    }
    CountGrant(grant, record, metrics_);
    answers_[item].outcome = std::move(claimed);
    if (claims_[item]->wants_record) {
      answers_[item].observed =
          Observed{.record = std::move(record), .now = granted_at};
    }
    return true;
  }

  void Insert(InsertNew insert_new) {
    Open creating;
    Open rest;
    for (const std::size_t i : open_) {
      const ClaimCommand& claim = *claims_[i];
      const bool read_first = claim.seen_present && first_round_;
      (MayCreate(claim) && !read_first ? creating : rest).push_back(i);
    }
    if (creating.empty()) return;
    const SteadyTime asked_at = clock_.Now();
    const absl::StatusOr<Times> granted =
        Counted(insert_new(Pick(claims_, creating)), creating.size());
    if (!granted.ok()) {
      Fail(creating, granted.status());
      open_ = std::move(rest);
      return;
    }
    for (std::size_t k = 0; k < creating.size(); ++k) {
      const std::size_t i = creating[k];
      const std::optional<absl::Time>& at = (*granted)[k];
      if (at.has_value()) {
        Record record = NewRecord(*claims_[i], *at);
        const Claimed claimed = GrantOf(record, *at);
        if (SettleGrant(i, Grant::kNew, claimed, std::move(record), *at,
                        asked_at)) {
          continue;
        }
      }
      rest.push_back(i);
    }
    std::sort(rest.begin(), rest.end());
    open_ = std::move(rest);
  }

  void ReadAndDecide() {
    if (open_.empty()) return;
    const SteadyTime asked_at = clock_.Now();
    absl::StatusOr<Snapshot> snapshot =
        ReadOpen(table_, claims_, open_, ReadBodies::kYes);
    if (!snapshot.ok()) {
      Fail(open_, snapshot.status());
      open_.clear();
      return;
    }
    Open still_open;
    std::vector<Pending<ClaimOutcome>> pending;
    for (std::size_t k = 0; k < open_.size(); ++k) {
      Decide(open_[k], snapshot->rows[k], snapshot->now, pending, still_open);
    }
    const Open changed = WriteDecisions(
        table_, claims_, pending,
        [&](Pending<ClaimOutcome>& written) {
          if (!SettleWritten(written, snapshot->now, asked_at)) {
            still_open.push_back(written.item);
          }
        },
        [&](std::size_t item, const absl::Status& status) {
          answers_[item].outcome = status;
        });
    still_open.insert(still_open.end(), changed.begin(), changed.end());
    std::sort(still_open.begin(), still_open.end());
    open_ = std::move(still_open);
  }

  void Decide(std::size_t item, ReadRow& row, absl::Time now,
              std::vector<Pending<ClaimOutcome>>& pending, Open& still_open) {
    if (!row.status.ok()) {
      answers_[item].outcome = std::move(row.status);
      return;
    }
    if (!row.read) {
      still_open.push_back(item);
      return;
    }
    const Record* record = row.record.has_value() ? &*row.record : nullptr;
    Decision<ClaimOutcome> decision = DecideClaim(record, *claims_[item], now);
    if (!decision.write.has_value()) {
      if (decision.answer.ok() &&
          !(claims_[item]->waits &&
            std::holds_alternative<InProgress>(*decision.answer))) {
        CountUnwritten(*decision.answer, *record, metrics_);
      }
      answers_[item].outcome = std::move(decision.answer);
      if (claims_[item]->wants_record || IsReplay(answers_[item].outcome)) {
        answers_[item].observed =
            Observed{.record = std::move(row.record), .now = now};
      }
    } else if (record == nullptr) {
      // The row that refused the INSERT has gone since.
      still_open.push_back(item);
    } else {
      pending.push_back({.item = item,
                         .before = *std::move(row.record),
                         .decision = std::move(decision)});
    }
  }

  bool SettleWritten(Pending<ClaimOutcome>& written, absl::Time now,
                     SteadyTime asked_at) {
    // Every claim that writes is a grant; each new one has its own number.
    Claimed claimed = std::get<Claimed>(*std::move(written.decision.answer));
    Record& record = *written.decision.write;
    const Grant grant = record.fencing_token == written.before.fencing_token
                            ? Grant::kAgain
                            : Grant::kNew;
    return SettleGrant(written.item, grant, std::move(claimed),
                       std::move(record), now, asked_at);
  }

  RecordTable& table_;
  const Clock& clock_;
  Metrics& metrics_;
  const Batch<ClaimCommand> claims_;
  std::vector<ClaimAnswer> answers_;
  // By item: granted, with too little left of the lease to answer.
  std::vector<bool> to_be_renewed_;
  Open open_;
  bool first_round_ = false;
  bool last_round_ = false;
};

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
  return ClaimRun(*table_, clock_, metrics_, claims)
      .Run([this](Batch<ClaimCommand> creating) {
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
  ClaimAndFinalizeAnswers answers;
  answers.claims = ClaimRun(*table_, clock_, metrics_, claims).Run(insert_new);
  // Claims that create nothing insert nothing.
  answers.finalizes = recorded.has_value()
                          ? SettleFinalizes(finalizes, *std::move(recorded))
                          : FinalizeBatch(finalizes);
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
