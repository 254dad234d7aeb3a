#include "tests/unit/history_checker.h"

#include <algorithm>
#include <optional>

#include "tests/unit/history_rules.h"

namespace idempotency {
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

}  // namespace idempotency
