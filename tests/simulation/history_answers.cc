// What callers are told, compared with what the table went through.

#include <algorithm>

#include "server/core/errors.h"
#include "tests/simulation/history_checker.h"
#include "tests/simulation/history_rules.h"
#include "tests/simulation/history_text.h"

namespace idempotency {
namespace {

constexpr int kServerErrorMin = 500;

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

// How long a replica may go on with what it read of a record that a fall-back
// has lost: what the cache of replays keeps, and some seconds.
constexpr absl::Duration kToldAfterLoss = absl::Seconds(70);

// Is the record in the state that the Release says it brought about?
bool IsReleasedAs(const Record& row, const ReleaseOutcome& outcome) {
  if (row.state == RecordState::kReleased) {
    return outcome.state == VisibleState::kReleased;
  }
  return outcome.state == VisibleState::kInDoubt && IsUnfinished(row) &&
         IsGivenUp(row);
}

}  // namespace

HistoryChecker::Sent HistoryChecker::Begin(Key& key) {
  return {.sequence = ++sequence_,
          .time = now(),
          .fencing_token = key.told_fencing_token,
          .owner = key.told_owner,
          .progress = key.told_progress};
}

HistoryChecker::Sent HistoryChecker::Send(const ClaimCommand& claim) {
  Key& key = KeyOf(claim.id);
  if (keeps_history_) Note(key, "< " + TextOfCall(claim));
  if (claim.resolve_in_doubt) key.resolving.insert(claim.claim_token);
  ++key.claims[claim.claim_token];
  key.never_granted.erase(claim.claim_token);
  return Begin(key);
}

HistoryChecker::Sent HistoryChecker::Send(const FinalizeCommand& finalize) {
  Key& key = KeyOf(finalize.id);
  if (keeps_history_) Note(key, "< " + TextOfCall(finalize));
  key.finalizes[finalize.response_digest].insert(finalize.claim_token);
  key.responses.emplace(finalize.response_digest, finalize.response);
  ++key.sendings[finalize.response_digest];
  key.never_recorded.erase(finalize.response_digest);
  if (finalize.response.status_code >= kServerErrorMin) {
    key.may_give_up.insert(finalize.claim_token);
  }
  return Begin(key);
}

HistoryChecker::Sent HistoryChecker::Send(const LookupCommand& lookup) {
  Key& key = KeyOf(lookup.id);
  if (keeps_history_) Note(key, "< " + TextOfCall(lookup));
  return Begin(key);
}

HistoryChecker::Sent HistoryChecker::Send(const ReleaseCommand& release) {
  Key& key = KeyOf(release.id);
  if (keeps_history_) Note(key, "< " + TextOfCall(release));
  key.may_give_up.insert(release.claim_token);
  return Begin(key);
}

HistoryChecker::Sent HistoryChecker::NotBefore(const RecordId& id, Sent sent,
                                               absl::Time time) {
  sent.time = std::max(sent.time, time);
  for (const Moment& moment : KeyOf(id).moments) {
    if (moment.time < time) {
      sent.sequence = std::max(sent.sequence, moment.sequence);
    }
  }
  return sent;
}

// Between two changes of the record only its lease and its retention end: the
// times before and after are all that there are to try.
const HistoryChecker::Moment* HistoryChecker::FindFitting(const Sent& sent,
                                                          const Key& key,
                                                          absl::Time now,
                                                          Fits fits) {
  std::size_t first = key.moments.size() - 1;
  while (first > 0 && key.moments[first].sequence > sent.sequence) --first;
  for (std::size_t i = first; i < key.moments.size(); ++i) {
    const Moment& moment = key.moments[i];
    const absl::Time until =
        i + 1 < key.moments.size() ? key.moments[i + 1].time : now;
    const Record* const row = moment.row.get();
    const auto fits_at = [&](absl::Time time) {
      return time >= sent.time && time <= until && fits(row, time);
    };
    if (fits_at(sent.time) || fits_at(until)) return &moment;
    if (row == nullptr) continue;
    constexpr absl::Duration kTick = absl::Microseconds(1);
    for (const absl::Time end : {row->lease_expires_at, row->expires_at}) {
      if (fits_at(end) || fits_at(end - kTick)) return &moment;
    }
  }
  return nullptr;
}

const HistoryChecker::Moment* HistoryChecker::Explain(
    const Sent& sent, Key& key, const std::string& promise,
    const std::string& answer, Fits fits) {
  const Moment* const moment = FindFitting(sent, key, now(), fits);
  if (moment == nullptr) {
    Violate(promise, "nothing explains the answer " + answer);
  } else {
    NoteProgress(key, moment);
  }
  return moment;
}

const HistoryChecker::Moment* HistoryChecker::ExplainEvenIfLost(
    const Sent& sent, Key& key, const std::string& promise,
    const std::string& answer, Fits fits) {
  if (now() - key.fell_back_at < kToldAfterLoss &&
      FindFitting(sent, key, now(), fits) == nullptr) {
    for (const Moment& moment : key.moments) {
      if (moment.lost && moment.row != nullptr &&
          moment.row->state == RecordState::kFinal &&
          fits(moment.row.get(), moment.time)) {
        return &moment;
      }
    }
  }
  return Explain(sent, key, promise, answer, fits);
}

void HistoryChecker::NoteProgress(Key& key, const Moment* moment) {
  if (moment->row == nullptr || moment->lost) return;
  constexpr int kRanks[] = {0, 2, 1};  // by RecordState
  const Progress progress = {
      .created_at = moment->row->created_at,
      .fencing_token = moment->row->fencing_token,
      .rank = kRanks[static_cast<int>(moment->row->state)]};
  if (key.told_progress.Tied() < progress.Tied()) key.told_progress = progress;
}

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
  CheckKept(sent, key, *answer);
  if (const auto* claimed = std::get_if<Claimed>(&*answer)) {
    CheckClaimed(sent, key, claim, *claimed);
  } else if (const auto* replay = std::get_if<Replay>(&*answer)) {
    CheckReplay(sent, key, claim, *replay);
  } else if (std::holds_alternative<InProgress>(*answer)) {
    Explain(sent, key, "S5", name, [&](const Record* row, absl::Time now) {
      return !CountsAsNone(row, now) && IsUnfinished(*row) &&
             !IsOver(*row, now) && row->claim_token != claim.claim_token &&
             row->request_hash == claim.request_hash;
    });
  } else if (std::holds_alternative<Mismatch>(*answer)) {
    ExplainEvenIfLost(sent, key, "S11", name,
                      [&](const Record* row, absl::Time now) {
                        return !CountsAsNone(row, now) &&
                               row->state != RecordState::kReleased &&
                               row->request_hash != claim.request_hash;
                      });
  } else {
    CheckOwn(key, std::get<InDoubt>(*answer).abandoned);
    Explain(sent, key, "S16", name, [&](const Record* row, absl::Time now) {
      return !CountsAsNone(row, now) && IsUnfinished(*row) &&
             IsOver(*row, now) && row->held &&
             row->claim_token != claim.claim_token && !claim.resolve_in_doubt;
    });
  }
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
  const Moment* const moment = Explain(
      sent, key, "S1", "Claimed", [&](const Record* row, absl::Time now) {
        return !CountsAsNone(row, now) && IsUnfinished(*row) &&
               row->claim_token == claim.claim_token &&
               row->fencing_token == claimed.fencing_token &&
               row->attempt == claimed.attempt &&
               row->freed_count == claimed.freed_count &&
               row->lease_expires_at == claimed.lease_expires_at &&
               row->abandoned == claimed.abandoned &&
               row->request_hash == claim.request_hash;
      });
  if (moment != nullptr) {
    key.granted_lives.emplace(claimed.fencing_token, moment->row->created_at);
  }
  // Counted from when he asked, it must be over no later than the lease.
  if (claimed.lease <= absl::ZeroDuration() ||
      sent.time + claimed.lease > claimed.lease_expires_at) {
    Violate("S3", "more of the lease was promised than there is");
  }
  if (claimed.fencing_token < sent.fencing_token ||
      (claimed.fencing_token == sent.fencing_token &&
       claim.claim_token != sent.owner)) {
    Violate("S2", "a later grant has no higher fencing token");
  }
  Told& mine = key.told[claim.claim_token];
  if (mine.fencing_token != 0) CheckSameClaim(key, claim, mine, claimed);
  if (mine.fencing_token < claimed.fencing_token) {
    mine = {.fencing_token = claimed.fencing_token,
            .lease_end = claimed.lease_expires_at,
            .first_told = now()};
  }
  if (mine.fencing_token == claimed.fencing_token) {
    mine.lease_end = std::max(mine.lease_end, claimed.lease_expires_at);
  }
  for (const auto& [token, other] : key.told) {
    const bool mine_is_first = mine.fencing_token < other.fencing_token;
    const Told& first = mine_is_first ? mine : other;
    const Told& second = mine_is_first ? other : mine;
    const Uuid& owner = mine_is_first ? claim.claim_token : token;
    if (token != claim.claim_token && second.first_told < first.lease_end &&
        !key.may_give_up.contains(owner)) {
      Violate("S3", "two callers were told that the key is theirs");
    }
  }
  if (claimed.fencing_token > key.told_fencing_token) {
    key.told_fencing_token = claimed.fencing_token;
    key.told_owner = claim.claim_token;
  }
}

void HistoryChecker::CheckReplay(const Sent& sent, Key& key,
                                 const ClaimCommand& claim,
                                 const Replay& replay) {
  CheckOwn(key, replay.response.body);
  ExplainEvenIfLost(
      sent, key, "S10", "Replay", [&](const Record* row, absl::Time now) {
        if (CountsAsNone(row, now) || row->state != RecordState::kFinal ||
            row->response != replay.response ||
            row->request_hash != claim.request_hash) {
          return false;
        }
        const auto finalizes = key.finalizes.find(row->response_digest);
        return finalizes != key.finalizes.end() &&
               finalizes->second.contains(row->claim_token);
      });
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
    if (sent.sequence < one.sequence || now() >= one.until) continue;
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
  Explain(sent, key, "S7", "given up", [&](const Record* row, absl::Time) {
    // Even if the record has expired since it was read.
    return row != nullptr && IsUnfinished(*row) &&
           row->claim_token == finalize.claim_token &&
           row->gave_up == GaveUp::kServerError && row->held == held;
  });
}

void HistoryChecker::CheckRecorded(const Sent& sent, Key& key,
                                   const FinalizeCommand& finalize) {
  absl::Time until = absl::InfinitePast();
  Explain(sent, key, "S7", "recorded", [&](const Record* row, absl::Time) {
    // Even if the record has expired since it was read.
    if (row == nullptr || row->state != RecordState::kFinal ||
        row->claim_token != finalize.claim_token ||
        row->response_digest != finalize.response_digest) {
      return false;
    }
    const Policy& policy = row->policy;
    until = row->finalized_at +
            policy.retention.value_or(policy.retention_after_finalize.value_or(
                absl::InfiniteDuration()));
    return true;
  });
  for (const Acknowledged& one : key.acknowledged) {
    if (now() < one.until && one.digest != finalize.response_digest) {
      Violate("S6", "two responses of one key were acknowledged");
    }
  }
  key.acknowledged.push_back({.digest = finalize.response_digest,
                              .response = finalize.response,
                              .sequence = ++sequence_,
                              .until = until});
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
  if (database_.ConflictsOf(finalize.id).empty()) {
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
  constexpr int kRanks[] = {0, 2, 1};  // by RecordState
  const Progress progress = {
      .created_at = found.record.created_at,
      .fencing_token = found.record.fencing_token,
      .rank = kRanks[static_cast<int>(found.record.state)]};
  if (sent.sequence > key.fell_back && progress.Tied() < sent.progress.Tied()) {
    Violate("S17", "told of an earlier state than somebody before");
  }
  for (const Acknowledged& one : key.acknowledged) {
    if (sent.sequence < one.sequence || now() >= one.until) continue;
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
  Explain(sent, key, "S12", "of a Release",
          [&](const Record* row, absl::Time now) {
            const bool mine =
                row != nullptr && row->claim_token == release.claim_token;
            if (answer.ok() && answer->released) {
              // Even if the record has expired since it was read.
              return mine && IsReleasedAs(*row, *answer);
            }
            if (CountsAsNone(row, now)) return answer.ok();
            if (answer.ok()) {
              return row->state == RecordState::kReleased && !mine;
            }
            return ReasonOf(answer.status()) == Reason::kAlreadyFinalized
                       ? row->state == RecordState::kFinal
                       : IsUnfinished(*row) && !mine;
          });
}

}  // namespace idempotency
