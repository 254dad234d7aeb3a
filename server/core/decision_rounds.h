// What the rounds of optimistic statement, read, decision and guarded write
// share. For optimistic_store.cc and claim_run.cc only.
#ifndef IDEMPOTENCY_SERVER_CORE_DECISION_ROUNDS_H_
#define IDEMPOTENCY_SERVER_CORE_DECISION_ROUNDS_H_

#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/record_table.h"
#include "server/core/transitions.h"

namespace idempotency {

// The positions, within a batch, of the items that have no answer yet.
using Open = std::vector<std::size_t>;

inline Open All(std::size_t size) {
  Open all(size);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

inline absl::Status WrongCount() {
  return absl::UnknownError("a statement answered for another number of items");
}

inline absl::Status Contended() {
  return absl::AbortedError("the record kept changing");
}

// What comes after a statement that the store was away for.
inline absl::Status NotAsked() {
  return absl::UnavailableError("not asked: the store has just failed");
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

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_DECISION_ROUNDS_H_
