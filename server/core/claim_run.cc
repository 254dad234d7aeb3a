#include "server/core/claim_run.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <variant>

#include "server/core/decision_rounds.h"
#include "server/core/errors.h"
#include "server/core/limits.h"
#include "server/core/outcome_counts.h"
#include "server/core/transitions.h"

namespace idempotency {
namespace {

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

  std::vector<ClaimAnswer> Run(InsertNewRecords insert_new) {
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

  void Insert(InsertNewRecords insert_new) {
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
      if (IsStoreAway(granted.status()) &&
          clock_.Now() - asked_at >= limits::kWaitInVain) {
        Fail(open_, NotAsked());
        open_.clear();
      }
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

}  // namespace

std::vector<ClaimAnswer> RunClaims(RecordTable& table, const Clock& clock,
                                   Metrics& metrics, Batch<ClaimCommand> claims,
                                   InsertNewRecords insert_new) {
  return ClaimRun(table, clock, metrics, claims).Run(insert_new);
}

}  // namespace idempotency
