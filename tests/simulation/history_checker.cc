#include "tests/simulation/history_checker.h"

#include <algorithm>
#include <optional>

#include "tests/simulation/history_text.h"
#include "tests/support/record_rules.h"

namespace idempotency {
namespace {

// Where the clock was set back a fencing token is one more than the last. No
// world has so many grants.
constexpr absl::Duration kCountedOn = absl::Milliseconds(1);
// From when a decision looks at the clock until the statement that writes it
// begins, at most: a slow answer, a pause, a statement that is held up.
constexpr std::chrono::seconds kDecisionMax{10};

}  // namespace

HistoryChecker::HistoryChecker(Database& database) : database_(database) {
  database_.Observe(this);
}

HistoryChecker::Key& HistoryChecker::KeyOf(const RecordId& id) {
  Key& key = keys_[id];
  if (key.moments.empty()) {
    key.id = id;
    key.moments.push_back({.sequence = 0, .at = steady_now()});
  }
  current_ = &key;
  return key;
}

void HistoryChecker::Violate(const std::string& promise,
                             const std::string& what) {
  std::string violation = promise + ": " + what;
  if (current_ != nullptr) {
    violation += " (" + current_->id.scope + "/" + current_->id.key + ")";
    violated_.insert(current_->id);
    Note(*current_, violation);
  }
  violations_.push_back(std::move(violation));
}

void HistoryChecker::ViolateAbout(const RecordId& id,
                                  const std::string& promise,
                                  const std::string& what) {
  KeyOf(id);
  Violate(promise, what);
}

void HistoryChecker::Note(const Key& key, const std::string& line) {
  if (!keeps_history_) return;
  history_.emplace_back(key.id, TimeText(now()) + " " + key.id.scope + "/" +
                                    key.id.key + " " + line);
}

std::vector<std::string> HistoryChecker::History() const {
  std::vector<std::string> lines;
  for (const auto& [id, line] : history_) {
    if (violated_.empty() || violated_.contains(id)) lines.push_back(line);
  }
  return lines;
}

std::vector<std::string> HistoryChecker::AllHistory() const {
  std::vector<std::string> lines;
  for (const auto& [id, line] : history_) lines.push_back(line);
  return lines;
}

// ---- What the table goes through.

void HistoryChecker::RowChanged(const RecordId& id, const Version& after) {
  Key& key = KeyOf(id);
  const RecordPtr before = key.moments.back().row;
  key.moments.push_back({.sequence = ++sequence_,
                         .at = steady_now(),
                         .row = after.record,
                         .number = after.number});
  if (keeps_history_) Note(key, "row " + TextOfRow(after.record.get()));
  CheckChange(key, before.get(), after);
}

void HistoryChecker::RowFellBack(const RecordId& id, const Version& after) {
  Key& key = KeyOf(id);
  std::uint64_t first_lost = ++sequence_;
  for (auto moment = key.moments.rbegin();
       moment != key.moments.rend() && moment->number > after.number;
       ++moment) {
    moment->lost = true;
    first_lost = moment->sequence;
  }
  key.moments.push_back({.sequence = sequence_,
                         .at = steady_now(),
                         .row = after.record,
                         .number = after.number});
  if (keeps_history_)
    Note(key, "fell back to " + TextOfRow(after.record.get()));
  key.fell_back = sequence_;
  key.told_progress = {};
  for (const auto& [what, moment] : key.written) {
    if (moment >= first_lost) {
      Violate(what.first, "an acknowledged " + what.second + " was lost");
    }
  }
  const std::int64_t left =
      after.record == nullptr ? 0 : after.record->fencing_token;
  key.fencing_token = std::max(left, key.told_fencing_token);
  key.owners.erase(key.owners.upper_bound(key.fencing_token), key.owners.end());
}

void HistoryChecker::FailedOver() {
  for (auto& [id, key] : keys_) CheckEvidence(key);
}

bool HistoryChecker::HasEvidence(const Key& key, const Uuid& claim_token,
                                 const std::string& digest) const {
  return database_.conflicts().contains(
      {key.id.scope, key.id.key, claim_token, digest});
}

void HistoryChecker::CheckEvidence(Key& key) {
  current_ = &key;
  for (const auto& [claim_token, digest] : key.evidence) {
    if (!HasEvidence(key, claim_token, digest)) {
      Violate("S7", "the evidence of a refused response was lost");
    }
  }
}

void HistoryChecker::CheckChange(Key& key, const Record* before,
                                 const Version& changed) {
  const Record* const after = changed.record.get();
  // By the clock as the statement read it; a grant is judged by the time that
  // it was made at.
  absl::Time time = changed.at;
  Asked asked;
  if (after != nullptr) {
    if (before == nullptr || after->created_at != before->created_at) {
      time = after->created_at;
    } else if (after->fencing_token != before->fencing_token) {
      time = after->claimed_at;
    }
    asked = {.resolves = key.resolving.contains(after->claim_token),
             .never_executed = key.never_executed.contains(after->claim_token)};
  }
  const auto broken = [this](const std::string& promise,
                             const std::string& what) {
    Violate(promise, what);
  };
  idempotency::CheckChange(before, after, time, asked, broken);
  if (!database_.clock().SteppedBack(changed.began - kDecisionMax)) {
    CheckTimes(before, after, time, broken);
  }
  if (after == nullptr) return;
  if (before == nullptr) BeginAnew(key, *after);
  if (after->fencing_token != key.fencing_token) NoteOwner(key, *after);
  const bool was_final =
      before != nullptr && before->state == RecordState::kFinal;
  if (!was_final && after->state == RecordState::kFinal) {
    CheckResponse(key, *after);
  }
}

// Nothing is left of an earlier record: where the clock is not yet where it was
// when that was claimed, this one cannot count on from it.
void HistoryChecker::BeginAnew(Key& key, const Record& first) {
  if (first.fencing_token > key.fencing_token ||
      first.created_at > key.claimed_at + kCountedOn) {
    return;
  }
  key.began_anew = sequence_;
  key.fencing_token = 0;
  key.claimed_at = absl::InfinitePast();
  key.owners.erase(key.owners.lower_bound(first.fencing_token),
                   key.owners.end());
  key.told.clear();
  key.told_fencing_token = 0;
  key.told_owner = {};
  key.told_progress = {};
}

void HistoryChecker::CheckResponse(Key& key, const Record& after) {
  const auto sent = key.responses.find(after.response_digest);
  if (sent == key.responses.end()) {
    Violate("S10", "a response that nobody sent was recorded");
  } else if (sent->second != after.response) {
    Violate("S9", "the response is not the one that was sent");
  }
  if (key.never_recorded.contains(after.response_digest)) {
    Violate("S15", "recorded after an error that was certain");
  }
}

void HistoryChecker::NoteOwner(Key& key, const Record& after) {
  if (after.fencing_token < key.fencing_token) {
    Violate("S2", "a fencing token went back");
  }
  key.fencing_token = std::max(key.fencing_token, after.fencing_token);
  key.claimed_at = std::max(key.claimed_at, after.claimed_at);
  const auto owner =
      key.owners.emplace(after.fencing_token, after.claim_token).first;
  if (owner->second != after.claim_token) {
    Violate("S1", "one fencing token for two claim tokens");
  }
  if (key.never_granted.contains(after.claim_token)) {
    Violate("S15", "granted after an error that was certain");
  }
}

// ---- What the channel did, and the end.

void HistoryChecker::Effect(const RecordId& id, std::int64_t fencing_token,
                            const std::string& downstream_key) {
  Key& key = KeyOf(id);
  if (keeps_history_) Note(key, "effect " + downstream_key);
  const auto life = key.granted_lives.find(fencing_token);
  if (life == key.granted_lives.end()) {
    Violate("S14", "an effect of an attempt that was not granted");
    return;
  }
  const std::string& first =
      key.effects.emplace(life->second, downstream_key).first->second;
  if (first != downstream_key) Violate("S14", "two effects in one life");
}

bool HistoryChecker::WasRecorded(const RecordId& id, std::int32_t status_code,
                                 const std::string& body,
                                 bool even_if_lost) const {
  const auto found = keys_.find(id);
  if (found == keys_.end()) return false;
  return std::any_of(found->second.moments.begin(), found->second.moments.end(),
                     [&](const Moment& moment) {
                       return moment.row != nullptr &&
                              (even_if_lost || !moment.lost) &&
                              moment.row->state == RecordState::kFinal &&
                              moment.row->response.status_code == status_code &&
                              moment.row->response.body == body;
                     });
}

void HistoryChecker::CheckEnd() {
  for (auto& [id, key] : keys_) {
    current_ = &key;
    const RecordPtr row = database_.Find(id);
    if (row != key.moments.back().row) {
      Violate("S19", "a change that nobody saw");
    }
    for (const Acknowledged& one : key.acknowledged) {
      if (IsKept(one) && (row == nullptr || row->state != RecordState::kFinal ||
                          row->response_digest != one.digest)) {
        Violate("S19", "an acknowledged response is not there");
      }
    }
    CheckEvidence(key);
  }
  current_ = nullptr;
}

}  // namespace idempotency
