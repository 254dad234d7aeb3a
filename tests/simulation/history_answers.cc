// What callers are told, compared with what the table went through.

#include <algorithm>

#include "server/core/errors.h"
#include "server/core/limits.h"
#include "tests/simulation/history_checker.h"
#include "tests/simulation/history_text.h"
#include "tests/support/record_rules.h"

namespace idempotency {
namespace {

// An error after which nothing can have happened.
bool IsCertain(const absl::Status& status) {
  if (!HasReason(status)) return false;
  switch (ReasonOf(status)) {
    case Reason::kStoreUnavailable:
    case Reason::kOverloaded:
    case Reason::kDraining:
    case Reason::kDeadlineExceeded:
      return true;
    default:
      return false;
  }
}

// Ended for a reason that says nothing of the record.
bool IsTrouble(const absl::Status& status) {
  return IsCertain(status) || !HasReason(status) ||
         ReasonOf(status) == Reason::kOutcomeUnknown ||
         ReasonOf(status) == Reason::kInternal;
}

// Is the record in the state that the Release says it brought about?
bool IsReleasedAs(const Record& row, const ReleaseOutcome& outcome) {
  if (row.state == RecordState::kReleased) {
    return outcome.state == VisibleState::kReleased;
  }
  return outcome.state == VisibleState::kInDoubt && IsUnfinished(row) &&
         IsGivenUp(row);
}

}  // namespace

void HistoryChecker::CheckOwn(const Key& key, const std::string& text) {
  if (!text.empty() && !text.starts_with(TextOf(key.id, ""))) {
    Violate("S13", "told what another record holds");
  }
}

void HistoryChecker::CheckOwn(const Key& key,
                              const std::optional<Abandoned>& abandoned) {
  if (abandoned.has_value()) CheckOwn(key, abandoned->checkpoint.value_or(""));
}

void HistoryChecker::Answer(const Sent& sent, const ClaimCommand& claim,
                            const absl::StatusOr<ClaimOutcome>& answer) {
  Key& key = KeyOf(claim.id);
  const std::string name =
      answer.ok() ? NameOfAnswer(*answer) : NameOfAnswer(answer.status());
  if (keeps_history_) Note(key, "> " + TextOfCall(claim) + ": " + name);
  ++answers_["Claim: " + name];
  if (!answer.ok()) {
    CheckRefusedClaim(sent, key, claim, answer.status());
    return;
  }
  if (const auto* claimed = std::get_if<Claimed>(&*answer)) {
    CheckClaimed(sent, key, claim, *claimed);
  } else if (const auto* replay = std::get_if<Replay>(&*answer)) {
    return CheckReplay(sent, key, claim, *replay);
  } else if (std::holds_alternative<InProgress>(*answer)) {
    Explain(sent, key, "S5", name, [&](const Record* row, absl::Time now) {
      return MayTellInProgress(row, claim, now);
    });
  } else if (std::holds_alternative<Mismatch>(*answer)) {
    const auto fits = [&](const Record* row, absl::Time now) {
      return MayTellMismatch(row, claim, now);
    };
    if (FindFitting(sent, key, fits) == nullptr &&
        IsRemembered(sent, key, fits)) {
      return;
    }
    Explain(sent, key, "S11", name, fits);
  } else {
    CheckOwn(key, std::get<InDoubt>(*answer).abandoned);
    Explain(sent, key, "S16", name, [&](const Record* row, absl::Time now) {
      return MayTellInDoubt(row, claim, now);
    });
  }
  CheckKept(sent, key, *answer);
}

// S4: the same claim token has the same grant for as long as nobody else had
// one and the record lived.
void HistoryChecker::CheckSameClaim(const Key& key, const ClaimCommand& claim,
                                    const Told& told, const Claimed& claimed) {
  if (told.fencing_token >= claimed.fencing_token) return;
  const Record* first = nullptr;
  for (const Moment& moment : key.moments) {
    const Record* const row = moment.row.get();
    if (row == nullptr || row->fencing_token < told.fencing_token) continue;
    if (row->claim_token != claim.claim_token) return;
    if (first == nullptr) first = row;
    if (row->created_at != first->created_at) return;
  }
  Violate("S4", "a claim that was sent again has another grant");
}

void HistoryChecker::CheckClaimed(const Sent& sent, Key& key,
                                  const ClaimCommand& claim,
                                  const Claimed& claimed) {
  CheckOwn(key, claimed.abandoned);
  const Moment* const moment = ExplainWritten(
      sent, key, "S1", "S2", "grant", [&](const Record* row, absl::Time now) {
        return !CountsAsNone(row, now) && IsUnfinished(*row) &&
               row->claim_token == claim.claim_token &&
               row->fencing_token == claimed.fencing_token &&
               row->attempt == claimed.attempt &&
               row->freed_count == claimed.freed_count &&
               row->lease_expires_at == claimed.lease_expires_at &&
               row->abandoned == claimed.abandoned &&
               row->request_hash == claim.request_hash;
      });
  // Counted from when he asked, it must be over no later than the lease.
  if (claimed.lease <= absl::ZeroDuration() ||
      database_.clock().Earliest(sent.at) + claimed.lease >
          claimed.lease_expires_at) {
    Violate("S3", "more of the lease was promised than there is");
  }
  if (moment == nullptr) return;
  key.granted_lives.emplace(claimed.fencing_token, moment->row->created_at);
  if (moment->sequence < key.began_anew) return;
  if (sent.sequence > key.began_anew &&
      (claimed.fencing_token < sent.fencing_token ||
       (claimed.fencing_token == sent.fencing_token &&
        claim.claim_token != sent.owner))) {
    Violate("S2", "a later grant has no higher fencing token");
  }
  Told& mine = key.told[claim.claim_token];
  if (mine.fencing_token != 0) CheckSameClaim(key, claim, mine, claimed);
  if (mine.fencing_token < claimed.fencing_token) {
    mine = {.fencing_token = claimed.fencing_token,
            .asked_at = sent.at,
            .lease_end = claimed.lease_expires_at};
  }
  if (mine.fencing_token == claimed.fencing_token) {
    mine.lease_end = std::max(mine.lease_end, claimed.lease_expires_at);
  }
  CheckOneOwner(key, claim.claim_token);
  if (claimed.fencing_token > key.told_fencing_token) {
    key.told_fencing_token = claimed.fencing_token;
    key.told_owner = claim.claim_token;
  }
}

// S3: nobody is told that the key is his before the clock has been at the end
// of the lease that an earlier owner was told of, or that one has ended.
void HistoryChecker::CheckOneOwner(const Key& key, const Uuid& claim_token) {
  const Told& mine = key.told.at(claim_token);
  for (const auto& [token, other] : key.told) {
    const bool mine_is_first = mine.fencing_token < other.fencing_token;
    const Told& first = mine_is_first ? mine : other;
    const Uuid& owner = mine_is_first ? claim_token : token;
    if (token == claim_token ||
        database_.clock().Latest(first.asked_at) >= first.lease_end ||
        key.may_give_up.contains(owner)) {
      continue;
    }
    const bool recorded = std::any_of(
        key.moments.begin(), key.moments.end(), [&](const Moment& moment) {
          return moment.row != nullptr && moment.row->claim_token == owner &&
                 moment.row->state == RecordState::kFinal;
        });
    if (!recorded) {
      Violate("S3", "two callers were told that the key is theirs");
    }
  }
}

void HistoryChecker::CheckReplay(const Sent& sent, Key& key,
                                 const ClaimCommand& claim,
                                 const Replay& replay) {
  CheckOwn(key, replay.response.body);
  const auto fits = [&](const Record* row, absl::Time now) {
    if (!MayReplay(row, claim, now) || row->response != replay.response) {
      return false;
    }
    const auto finalizes = key.finalizes.find(row->response_digest);
    return finalizes != key.finalizes.end() &&
           finalizes->second.contains(row->claim_token);
  };
  if (FindFitting(sent, key, fits) == nullptr &&
      IsRemembered(sent, key, fits)) {
    ++answers_["Claim: Replay from memory only"];
    return;
  }
  Explain(sent, key, "S10", "Replay", fits);
  CheckKept(sent, key, replay);
}

void HistoryChecker::CheckRefusedClaim(const Sent& sent, Key& key,
                                       const ClaimCommand& claim,
                                       const absl::Status& status) {
  if (IsCertain(status) && key.claims[claim.claim_token] == 1) {
    const bool granted = std::any_of(
        key.owners.begin(), key.owners.end(),
        [&](const auto& owner) { return owner.second == claim.claim_token; });
    if (granted) Violate("S15", "granted, and told " + NameOfAnswer(status));
    key.never_granted.insert(claim.claim_token);
  }
  if (IsTrouble(status)) return;
  const Reason reason = ReasonOf(status);
  Explain(sent, key, "S12", NameOfAnswer(status),
          [&](const Record* row, absl::Time now) {
            if (reason == Reason::kUnknownPolicy) {
              return CountsAsNone(row, now) ||
                     row->state == RecordState::kReleased;
            }
            if (CountsAsNone(row, now)) {
              return reason == Reason::kRecordNotFound &&
                     claim.renew_fencing_token != 0;
            }
            const bool mine = row->claim_token == claim.claim_token;
            if (reason == Reason::kClaimReleased) {
              return mine &&
                     (row->state == RecordState::kReleased || IsGivenUp(*row));
            }
            return reason == Reason::kClaimSuperseded &&
                   claim.renew_fencing_token != 0 &&
                   (!mine || row->fencing_token != claim.renew_fencing_token);
          });
}

// S8, as callers see it: what was acknowledged before they asked.
void HistoryChecker::CheckKept(const Sent& sent, const Key& key,
                               const ClaimOutcome& outcome) {
  for (const Acknowledged& one : key.acknowledged) {
    if (sent.sequence < one.sequence || !IsKept(one)) continue;
    if (std::holds_alternative<Mismatch>(outcome)) continue;
    const auto* const replay = std::get_if<Replay>(&outcome);
    if (replay == nullptr || replay->response != one.response) {
      Violate("S8", std::string(NameOfAnswer(outcome)) +
                        " instead of the recorded response");
    }
  }
}

void HistoryChecker::Answer(const Sent& sent, const FinalizeCommand& finalize,
                            const absl::StatusOr<FinalizeOutcome>& answer) {
  constexpr const char* kNames[] = {"recorded", "recorded without body",
                                    "released", "in doubt"};
  Key& key = KeyOf(finalize.id);
  const std::string name = answer.ok()
                               ? kNames[static_cast<int>(answer->result)]
                               : NameOfAnswer(answer.status());
  if (keeps_history_) Note(key, "> " + TextOfCall(finalize) + ": " + name);
  ++answers_["Finalize: " + name];
  if (!answer.ok()) {
    CheckRefusedFinalize(sent, key, finalize, answer.status());
    return;
  }
  if (answer->result == FinalizeResult::kRecorded) {
    CheckRecorded(sent, key, finalize);
    return;
  }
  const bool held = answer->result == FinalizeResult::kInDoubt;
  ExplainWritten(sent, key, "S7", "S7", "server error",
                 [&](const Record* row, absl::Time) {
                   // Even if the record has expired since it was read.
                   return row != nullptr && IsUnfinished(*row) &&
                          row->claim_token == finalize.claim_token &&
                          row->gave_up == GaveUp::kServerError &&
                          row->held == held;
                 });
}

void HistoryChecker::CheckRecorded(const Sent& sent, Key& key,
                                   const FinalizeCommand& finalize) {
  const Moment* const moment = ExplainWritten(
      sent, key, "S7", "S8", "recorded response",
      [&](const Record* row, absl::Time) {
        // Even if the record has expired since it was read.
        return row != nullptr && row->state == RecordState::kFinal &&
               row->claim_token == finalize.claim_token &&
               row->response_digest == finalize.response_digest;
      });
  if (moment == nullptr) return;
  const Policy& policy = moment->row->policy;
  const absl::Time until =
      moment->row->finalized_at +
      policy.retention.value_or(
          policy.retention_after_finalize.value_or(absl::InfiniteDuration()));
  const Acknowledged told{.digest = finalize.response_digest,
                          .response = finalize.response,
                          .sequence = ++sequence_,
                          .asked_at = sent.at,
                          .until = until};
  // An answer may come when the record has expired, and another life of the key
  // has its own response.
  for (const Acknowledged& one : key.acknowledged) {
    const bool late = !IsKept(told) && sent.sequence <= one.sequence;
    if (!late && IsKept(one) && one.digest != told.digest) {
      Violate("S6", "two responses of one key were acknowledged");
    }
  }
  key.acknowledged.push_back(told);
}

void HistoryChecker::CheckRefusedFinalize(const Sent& sent, Key& key,
                                          const FinalizeCommand& finalize,
                                          const absl::Status& status) {
  if (IsCertain(status) && key.sendings[finalize.response_digest] == 1) {
    const bool recorded = std::any_of(
        key.moments.begin(), key.moments.end(), [&](const Moment& moment) {
          return moment.row != nullptr &&
                 moment.row->response_digest == finalize.response_digest;
        });
    if (recorded) Violate("S15", "recorded, and told " + NameOfAnswer(status));
    key.never_recorded.insert(finalize.response_digest);
  }
  if (IsTrouble(status)) return;
  if (HasEvidence(key, finalize.claim_token, finalize.response_digest)) {
    key.evidence.insert({finalize.claim_token, finalize.response_digest});
  } else if (ConflictsAbout(database_.conflicts(), key.id).size() <
             std::size_t{limits::kConflictsPerRecordMax}) {
    Violate("S7", "a refused response left no evidence");
  }
  const Reason reason = ReasonOf(status);
  Explain(sent, key, "S7", NameOfAnswer(status),
          [&](const Record* row, absl::Time now) {
            if (CountsAsNone(row, now)) {
              return reason == Reason::kRecordNotFound;
            }
            if (row->claim_token != finalize.claim_token) {
              return reason == Reason::kClaimSuperseded;
            }
            if (row->state == RecordState::kReleased) {
              return reason == Reason::kClaimReleased;
            }
            return reason == Reason::kAlreadyFinalized &&
                   row->state == RecordState::kFinal &&
                   row->response_digest != finalize.response_digest;
          });
}

void HistoryChecker::Answer(const Sent& sent, const LookupCommand& lookup,
                            const absl::StatusOr<LookupOutcome>& answer) {
  Key& key = KeyOf(lookup.id);
  const std::string name =
      answer.ok() ? "found" : NameOfAnswer(answer.status());
  if (keeps_history_) Note(key, "> Lookup: " + name);
  ++answers_["Lookup: " + name];
  if (answer.ok()) {
    CheckFound(sent, key, *answer);
  } else if (!IsTrouble(answer.status())) {
    Explain(sent, key, "S8", name, CountsAsNone);
  }
}

void HistoryChecker::CheckFound(const Sent& sent, Key& key,
                                const LookupOutcome& found) {
  CheckOwn(key, found.record.response.body);
  CheckOwn(key, found.record.checkpoint.value_or(""));
  CheckOwn(key, found.record.abandoned);
  Explain(sent, key, "S8", "of a Lookup",
          [&](const Record* row, absl::Time now) {
            return !CountsAsNone(row, now) && *row == found.record;
          });
  if (sent.sequence > std::max(key.fell_back, key.began_anew) &&
      ProgressOf(found.record).Tied() < sent.progress.Tied()) {
    Violate("S17", "told of an earlier state than somebody before");
  }
  for (const Acknowledged& one : key.acknowledged) {
    if (sent.sequence < one.sequence || !IsKept(one)) continue;
    if (found.record.response_digest != one.digest) {
      Violate("S8", "a Lookup without the recorded response");
    }
  }
}

void HistoryChecker::Answer(const Sent& sent, const ReleaseCommand& release,
                            const absl::StatusOr<ReleaseOutcome>& answer) {
  Key& key = KeyOf(release.id);
  const std::string name =
      answer.ok() ? (answer->released ? "released" : "not released")
                  : NameOfAnswer(answer.status());
  if (keeps_history_) Note(key, "> " + TextOfCall(release) + ": " + name);
  ++answers_["Release: " + name];
  if (!answer.ok() && IsTrouble(answer.status())) return;
  const bool released = answer.ok() && answer->released;
  const auto fits = [&](const Record* row, absl::Time now) {
    const bool mine = row != nullptr && row->claim_token == release.claim_token;
    // Even if the record has expired since it was read.
    if (released) return mine && IsReleasedAs(*row, *answer);
    if (CountsAsNone(row, now)) return answer.ok();
    if (answer.ok()) {
      return row->state == RecordState::kReleased && !mine;
    }
    return ReasonOf(answer.status()) == Reason::kAlreadyFinalized
               ? row->state == RecordState::kFinal
               : IsUnfinished(*row) && !mine;
  };
  if (released) {
    ExplainWritten(sent, key, "S12", "S12", "release", fits);
  } else {
    Explain(sent, key, "S12", "of a Release", fits);
  }
}

}  // namespace idempotency
