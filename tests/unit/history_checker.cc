#include "tests/unit/history_checker.h"

#include <algorithm>
#include <optional>

#include "server/core/errors.h"

namespace idempotency {
namespace {

constexpr int kServerErrorMin = 500;

bool IsUnfinished(const Record& record) {
  return record.state == RecordState::kUnfinished;
}

bool CountsAsNone(const Record* row, absl::Time now) {
  return row == nullptr ||
         (row->expires_at <= now && !(row->held && IsUnfinished(*row)));
}

bool IsGivenUp(const Record& record) { return record.gave_up != GaveUp::kNo; }

bool IsOver(const Record& record, absl::Time now) {
  return IsGivenUp(record) || record.lease_expires_at <= now;
}

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

}  // namespace

HistoryChecker::HistoryChecker(const MemoryDatabase& database,
                               std::vector<RecordId> ids)
    : database_(database), ids_(std::move(ids)) {
  Moment& first = moments_.emplace_back();
  first.now = database_.Now();
  for (const RecordId& id : ids_) first.rows[id] = nullptr;
}

void HistoryChecker::Violate(const std::string& promise,
                             const std::string& what) {
  violations_.push_back(promise + ": " + what);
}

void HistoryChecker::Observe() {
  Moment next{.now = database_.Now(), .rows = {}};
  bool changed = next.now != now();
  for (const RecordId& id : ids_) {
    const Row before = moments_.back().rows[id];
    std::optional<Record> found = database_.Find(id);
    if (found.has_value() ? before != nullptr && *found == *before
                          : before == nullptr) {
      next.rows[id] = before;
      continue;
    }
    changed = true;
    const Row after = found.has_value()
                          ? std::make_shared<const Record>(*std::move(found))
                          : nullptr;
    next.rows[id] = after;
    CheckChange(id, before.get(), after.get());
  }
  if (changed) moments_.push_back(std::move(next));
}

// ---- What the table goes through.

void HistoryChecker::CheckChange(const RecordId& id, const Record* before,
                                 const Record* after) {
  Key& key = keys_[id];
  const absl::Time time = database_.Now();
  if (after == nullptr) {
    if (!CountsAsNone(before, time)) Violate("S18", "deleted before its time");
    return;
  }
  const bool new_life =
      before == nullptr || after->created_at != before->created_at;
  if (new_life) {
    if (!CountsAsNone(before, time)) {
      Violate("S18", "made anew before its time");
    }
    if (after->attempt != 1 || !IsUnfinished(*after)) {
      Violate("S2", "a new record does not begin with attempt 1");
    }
  } else if (after->version <= before->version) {
    Violate("S2", "a write did not raise the version");
  }
  if (after->fencing_token != key.fencing_token) NoteOwner(key, *after);
  if (new_life) return;

  if (before->state == RecordState::kFinal &&
      (after->state != RecordState::kFinal ||
       after->response != before->response ||
       after->response_digest != before->response_digest ||
       after->claim_token != before->claim_token)) {
    Violate("S6", "a recorded response changed");
    return;
  }
  if (after->fencing_token == before->fencing_token) {
    CheckSameGrant(*before, *after);
  } else {
    CheckNewGrant(key, *before, *after);
  }
}

void HistoryChecker::NoteOwner(Key& key, const Record& after) {
  if (after.fencing_token < key.fencing_token) {
    Violate("S2", "a fencing token went back");
  }
  key.fencing_token = std::max(key.fencing_token, after.fencing_token);
  const auto owner =
      key.owners.emplace(after.fencing_token, after.claim_token).first;
  if (owner->second != after.claim_token) {
    Violate("S1", "one fencing token for two claim tokens");
  }
  if (key.never_granted.contains(after.claim_token)) {
    Violate("S15", "granted after an error that was certain");
  }
}

void HistoryChecker::CheckSameGrant(const Record& before, const Record& after) {
  if (after.claim_token != before.claim_token ||
      after.attempt != before.attempt) {
    Violate("S1", "another owner without a grant");
  }
  if (after.request_hash != before.request_hash) {
    Violate("S11", "another request hash without a grant");
  }
  if (before.state == RecordState::kReleased &&
      after.state != RecordState::kReleased) {
    Violate("S12", "a released claim came back");
  }
  if (!IsUnfinished(before) || !IsUnfinished(after)) return;
  if (IsGivenUp(before) && !IsGivenUp(after)) {
    Violate("S12", "a claim that was given up came back");
  }
  if (after.lease_expires_at < before.lease_expires_at) {
    Violate("S3", "a lease was shortened");
  }
  if (before.held && !after.held) Violate("S16", "a doubt was dropped");
  if (after.abandoned != before.abandoned) {
    Violate("S16", "what was abandoned changed");
  }
}

void HistoryChecker::CheckNewGrant(Key& key, const Record& before,
                                   const Record& after) {
  if (after.fencing_token < before.fencing_token ||
      after.attempt != before.attempt + 1) {
    Violate("S2", "a grant does not count on");
  }
  if (!IsUnfinished(after)) Violate("S7", "a grant that is already over");
  if (after.freed_count != before.freed_count) {
    Violate("S12", "a grant changed the downstream key");
  }
  if (before.state == RecordState::kReleased) return;
  if (!IsOver(before, database_.Now())) {
    Violate("S3", "granted while another's lease ran");
  }
  if (before.held && !key.resolving.contains(after.claim_token)) {
    Violate("S16", "a held record was granted to one who can't resolve it");
  }
  if (after.request_hash != before.request_hash) {
    Violate("S11", "taken over by another request");
  }
  CheckTold(before, after);
}

void HistoryChecker::CheckTold(const Record& before, const Record& after) {
  if (!after.abandoned.has_value()) {
    Violate("S16", "a takeover was not told");
    return;
  }
  const Abandoned& told = *after.abandoned;
  if (before.gave_up == GaveUp::kDidNothing) {
    if (before.abandoned != told) {
      Violate("S16", "an attempt that did nothing hid an earlier one");
    }
    return;
  }
  const std::optional<std::string>& checkpoint =
      before.checkpoint.has_value() || !before.abandoned.has_value()
          ? before.checkpoint
          : before.abandoned->checkpoint;
  if (told.attempt != before.attempt ||
      told.fencing_token != before.fencing_token ||
      told.checkpoint != checkpoint) {
    Violate("S16", "a takeover was told of something else");
  }
}

// ---- What callers are told.

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
  if (claimed.lease > claimed.lease_expires_at - now()) {
    Violate("S3", "more of the lease was promised than is left");
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
          [&](const Record* row, absl::Time now) {
            return !CountsAsNone(row, now) && IsUnfinished(*row) &&
                   row->claim_token == finalize.claim_token &&
                   row->gave_up == GaveUp::kServerError && row->held == held;
          });
}

void HistoryChecker::CheckRecorded(const Sent& sent,
                                   const FinalizeCommand& finalize) {
  absl::Time until = absl::InfinitePast();
  Explain(sent, finalize.id, "S7", "recorded",
          [&](const Record* row, absl::Time now) {
            if (CountsAsNone(row, now) || row->state != RecordState::kFinal ||
                row->claim_token != finalize.claim_token ||
                row->response_digest != finalize.response_digest) {
              return false;
            }
            const Policy& policy = row->policy;
            until = row->finalized_at +
                    policy.retention.value_or(
                        policy.retention_after_finalize.value_or(
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
            if (CountsAsNone(row, now)) return answer.ok() && !answer->released;
            const bool mine = row->claim_token == release.claim_token;
            if (!answer.ok()) {
              return ReasonOf(answer.status()) == Reason::kAlreadyFinalized
                         ? row->state == RecordState::kFinal
                         : IsUnfinished(*row) && !mine;
            }
            if (!answer->released) {
              return row->state == RecordState::kReleased && !mine;
            }
            return mine &&
                   answer->state == (row->state == RecordState::kReleased
                                         ? VisibleState::kReleased
                                         : VisibleState::kInDoubt) &&
                   (row->state == RecordState::kReleased ||
                    (IsUnfinished(*row) && IsGivenUp(*row)));
          });
}

}  // namespace idempotency
