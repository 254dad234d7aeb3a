// What callers are told, compared with what the table went through.

#include <algorithm>

#include "server/core/errors.h"
#include "tests/support/record_rules.h"
#include "tests/unit/history_checker.h"

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

std::string NameOf(const absl::Status& status) {
  return HasReason(status) ? std::string(ReasonName(ReasonOf(status)))
                           : absl::StatusCodeToString(status.code());
}

const char* NameOf(const ClaimOutcome& outcome) {
  constexpr const char* kNames[] = {"Claimed", "Replay", "InProgress",
                                    "Mismatch", "InDoubt"};
  return kNames[outcome.index()];
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

HistoryChecker::Sent HistoryChecker::Begin(const RecordId& id) {
  const Key& key = keys_[id];
  return {.moment = moments_.size() - 1,
          .time = now(),
          .fencing_token = key.told_fencing_token,
          .owner = key.told_owner};
}

HistoryChecker::Sent HistoryChecker::Send(const ClaimCommand& claim) {
  Key& key = keys_[claim.id];
  if (claim.resolve_in_doubt) key.resolving.insert(claim.claim_token);
  ++key.claims[claim.claim_token];
  key.never_granted.erase(claim.claim_token);
  return Begin(claim.id);
}

HistoryChecker::Sent HistoryChecker::Send(const FinalizeCommand& finalize) {
  Key& key = keys_[finalize.id];
  key.finalizes[finalize.response_digest].insert(finalize.claim_token);
  if (finalize.response.status_code >= kServerErrorMin) {
    key.may_give_up.insert(finalize.claim_token);
  }
  return Begin(finalize.id);
}

HistoryChecker::Sent HistoryChecker::Send(const LookupCommand& lookup) {
  return Begin(lookup.id);
}

HistoryChecker::Sent HistoryChecker::Send(const ReleaseCommand& release) {
  keys_[release.id].may_give_up.insert(release.claim_token);
  return Begin(release.id);
}

HistoryChecker::Sent HistoryChecker::NotBefore(Sent sent,
                                               absl::Time time) const {
  while (sent.moment + 1 < moments_.size() &&
         moments_[sent.moment].now < time) {
    ++sent.moment;
  }
  return sent;
}

void HistoryChecker::Explain(const Sent& sent, const RecordId& id,
                             const std::string& promise,
                             const std::string& answer, const Fits& fits) {
  for (std::size_t i = sent.moment; i < moments_.size(); ++i) {
    if (fits(moments_[i].rows[id].get(), moments_[i].now)) return;
  }
  Violate(promise, "nothing explains the answer " + answer);
}

void HistoryChecker::Answer(const Sent& sent, const ClaimCommand& claim,
                            const absl::StatusOr<ClaimOutcome>& answer) {
  ++answers_["Claim: " +
             (answer.ok() ? NameOf(*answer) : NameOf(answer.status()))];
  if (!answer.ok()) {
    CheckRefusedClaim(sent, claim, answer.status());
    return;
  }
  CheckKept(sent, claim.id, claim.request_hash, *answer);
  if (const auto* claimed = std::get_if<Claimed>(&*answer)) {
    CheckClaimed(sent, claim, *claimed);
  } else if (const auto* replay = std::get_if<Replay>(&*answer)) {
    CheckReplay(sent, claim, *replay);
  } else if (std::holds_alternative<InProgress>(*answer)) {
    Explain(sent, claim.id, "S5", "InProgress",
            [&](const Record* row, absl::Time now) {
              return !CountsAsNone(row, now) && IsUnfinished(*row) &&
                     !IsOver(*row, now) &&
                     row->claim_token != claim.claim_token &&
                     row->request_hash == claim.request_hash;
            });
  } else if (std::holds_alternative<Mismatch>(*answer)) {
    Explain(sent, claim.id, "S11", "Mismatch",
            [&](const Record* row, absl::Time now) {
              return !CountsAsNone(row, now) &&
                     row->state != RecordState::kReleased &&
                     row->request_hash != claim.request_hash;
            });
  } else {
    Explain(sent, claim.id, "S16", "InDoubt",
            [&](const Record* row, absl::Time now) {
              return !CountsAsNone(row, now) && IsUnfinished(*row) &&
                     IsOver(*row, now) && row->held &&
                     row->claim_token != claim.claim_token &&
                     !claim.resolve_in_doubt;
            });
  }
}

void HistoryChecker::CheckClaimed(const Sent& sent, const ClaimCommand& claim,
                                  const Claimed& claimed) {
  Explain(sent, claim.id, "S1", "Claimed",
          [&](const Record* row, absl::Time now) {
            return !CountsAsNone(row, now) && IsUnfinished(*row) &&
                   row->claim_token == claim.claim_token &&
                   row->fencing_token == claimed.fencing_token &&
                   row->attempt == claimed.attempt &&
                   row->lease_expires_at == claimed.lease_expires_at &&
                   row->abandoned == claimed.abandoned &&
                   row->request_hash == claim.request_hash;
          });
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
  Key& key = keys_[claim.id];
  Told& mine = key.told[claim.claim_token];
  if (mine.fencing_token != claimed.fencing_token) {
    mine = {.fencing_token = claimed.fencing_token,
            .lease_end = claimed.lease_expires_at,
            .first_told = now()};
  }
  mine.lease_end = std::max(mine.lease_end, claimed.lease_expires_at);
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

void HistoryChecker::CheckReplay(const Sent& sent, const ClaimCommand& claim,
                                 const Replay& replay) {
  Key& key = keys_[claim.id];
  Explain(sent, claim.id, "S10", "Replay",
          [&](const Record* row, absl::Time now) {
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

void HistoryChecker::CheckRefusedClaim(const Sent& sent,
                                       const ClaimCommand& claim,
                                       const absl::Status& status) {
  Key& key = keys_[claim.id];
  if (IsCertain(status) && key.claims[claim.claim_token] == 1) {
    const bool granted = std::any_of(
        key.owners.begin(), key.owners.end(),
        [&](const auto& owner) { return owner.second == claim.claim_token; });
    if (granted) Violate("S15", "granted, and told " + NameOf(status));
    key.never_granted.insert(claim.claim_token);
  }
  if (IsTrouble(status)) return;
  const Reason reason = ReasonOf(status);
  Explain(sent, claim.id, "S12", NameOf(status),
          [&](const Record* row, absl::Time now) {
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
void HistoryChecker::CheckKept(const Sent& sent, const RecordId& id,
                               const std::string& request_hash,
                               const ClaimOutcome& outcome) {
  for (const Acknowledged& one : keys_[id].acknowledged) {
    if (sent.moment < one.moment || now() >= one.until) continue;
    if (std::holds_alternative<Mismatch>(outcome)) continue;
    const auto* const replay = std::get_if<Replay>(&outcome);
    if (replay == nullptr || replay->response != one.response) {
      Violate("S8", std::string(NameOf(outcome)) +
                        " instead of the recorded response to " +
                        (request_hash.empty() ? "?" : request_hash));
    }
  }
}

void HistoryChecker::Answer(const Sent& sent, const FinalizeCommand& finalize,
                            const absl::StatusOr<FinalizeOutcome>& answer) {
  constexpr const char* kNames[] = {"recorded", "recorded without body",
                                    "released", "in doubt"};
  ++answers_["Finalize: " + (answer.ok()
                                 ? kNames[static_cast<int>(answer->result)]
                                 : NameOf(answer.status()))];
  if (!answer.ok()) {
    CheckRefusedFinalize(sent, finalize, answer.status());
    return;
  }
  if (answer->result == FinalizeResult::kRecorded) {
    CheckRecorded(sent, finalize);
    return;
  }
  const bool held = answer->result == FinalizeResult::kInDoubt;
  Explain(sent, finalize.id, "S7", "given up",
          [&](const Record* row, absl::Time) {
            // Even if the record has expired since it was read.
            return row != nullptr && IsUnfinished(*row) &&
                   row->claim_token == finalize.claim_token &&
                   row->gave_up == GaveUp::kServerError && row->held == held;
          });
}

void HistoryChecker::CheckRecorded(const Sent& sent,
                                   const FinalizeCommand& finalize) {
  absl::Time until = absl::InfinitePast();
  Explain(
      sent, finalize.id, "S7", "recorded", [&](const Record* row, absl::Time) {
        // Even if the record has expired since it was read.
        if (row == nullptr || row->state != RecordState::kFinal ||
            row->claim_token != finalize.claim_token ||
            row->response_digest != finalize.response_digest) {
          return false;
        }
        const Policy& policy = row->policy;
        until =
            row->finalized_at +
            policy.retention.value_or(policy.retention_after_finalize.value_or(
                absl::InfiniteDuration()));
        return true;
      });
  Key& key = keys_[finalize.id];
  for (const Acknowledged& one : key.acknowledged) {
    if (now() < one.until && one.digest != finalize.response_digest) {
      Violate("S6", "two responses of one key were acknowledged");
    }
  }
  key.acknowledged.push_back({.digest = finalize.response_digest,
                              .response = finalize.response,
                              .moment = moments_.size() - 1,
                              .until = until});
}

void HistoryChecker::CheckRefusedFinalize(const Sent& sent,
                                          const FinalizeCommand& finalize,
                                          const absl::Status& status) {
  if (IsTrouble(status)) return;
  if (database_.ConflictsOf(finalize.id).empty()) {
    Violate("S7", "a refused response left no evidence");
  }
  const Reason reason = ReasonOf(status);
  Explain(sent, finalize.id, "S7", NameOf(status),
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
  ++answers_["Lookup: " + (answer.ok() ? "found" : NameOf(answer.status()))];
  if (!answer.ok()) {
    if (IsTrouble(answer.status())) return;
    Explain(sent, lookup.id, "S8", NameOf(answer.status()), CountsAsNone);
    return;
  }
  Explain(sent, lookup.id, "S8", "of a Lookup",
          [&](const Record* row, absl::Time now) {
            return !CountsAsNone(row, now) && *row == answer->record;
          });
  for (const Acknowledged& one : keys_[lookup.id].acknowledged) {
    if (sent.moment < one.moment || now() >= one.until) continue;
    if (answer->record.response_digest != one.digest) {
      Violate("S8", "a Lookup without the recorded response");
    }
  }
}

void HistoryChecker::Answer(const Sent& sent, const ReleaseCommand& release,
                            const absl::StatusOr<ReleaseOutcome>& answer) {
  ++answers_["Release: " +
             (answer.ok() ? (answer->released ? "released" : "not released")
                          : NameOf(answer.status()))];
  if (!answer.ok() && IsTrouble(answer.status())) return;
  Explain(sent, release.id, "S12", "of a Release",
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
