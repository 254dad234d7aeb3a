#include "tests/unit/history_checker.h"

#include <algorithm>
#include <optional>

#include "tests/support/record_rules.h"

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
  const bool resolves =
      after != nullptr && key.resolving.contains(after->claim_token);
  idempotency::CheckChange(
      before, after, database_.Now(), resolves,
      [this](const std::string& promise, const std::string& what) {
        Violate(promise, what);
      });
  if (after != nullptr && after->fencing_token != key.fencing_token) {
    NoteOwner(key, *after);
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

}  // namespace idempotency
