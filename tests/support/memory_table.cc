#include "tests/support/memory_table.h"

#include <algorithm>
#include <set>
#include <utility>

#include "server/core/transitions.h"

namespace idempotency {
namespace {

FleetRules DefaultRules() {
  FleetRules rules;
  rules.policies["default"] = {.name = "default",
                               .lease = absl::Seconds(30),
                               .max_lease = absl::Hours(1),
                               .retention = absl::Hours(24)};
  rules.downstream_namespace.bytes.fill(0x5a);
  return rules;
}

// Runs `statement` between the two calls of the hook.
template <typename Run>
auto Hooked(const StatementHook& hook, MemoryStatement statement, Run run)
    -> decltype(run()) {
  if (hook) {
    const absl::Status before = hook(statement, StatementPhase::kBefore);
    if (!before.ok()) return before;
  }
  auto answer = run();
  if (hook) {
    const absl::Status after = hook(statement, StatementPhase::kAfterCommit);
    if (!after.ok()) return after;
  }
  return answer;
}

bool IsWhatWasRead(const Record& stored, const Record& before) {
  return std::tie(stored.claim_token, stored.fencing_token, stored.version) ==
         std::tie(before.claim_token, before.fencing_token, before.version);
}

bool IsHeldUnfinished(const Record& record) {
  return record.held && record.state == RecordState::kUnfinished;
}

void MoveBack(Record& record, absl::Duration by) {
  record.created_at -= by;
  record.claimed_at -= by;
  record.lease_expires_at -= by;
  record.expires_at -= by;
  if (record.gave_up != GaveUp::kNo) record.gave_up_at -= by;
  if (record.state == RecordState::kFinal) record.finalized_at -= by;
}

}  // namespace

MemoryDatabase::MemoryDatabase(absl::Time start)
    : now_(start), rules_(DefaultRules()) {}

absl::Time MemoryDatabase::Now() const {
  MutexLock lock(mutex_);
  return now_;
}

void MemoryDatabase::Advance(absl::Duration by) {
  MutexLock lock(mutex_);
  now_ += absl::Trunc(by, absl::Microseconds(1));
}

FleetRules MemoryDatabase::rules() const {
  MutexLock lock(mutex_);
  return rules_;
}

void MemoryDatabase::SetRules(FleetRules rules) {
  MutexLock lock(mutex_);
  rules_ = std::move(rules);
}

void MemoryDatabase::SetBodyBytesMax(std::size_t bytes) {
  MutexLock lock(mutex_);
  body_bytes_max_ = bytes;
}

std::optional<Record> MemoryDatabase::Find(const RecordId& id) const {
  MutexLock lock(mutex_);
  const auto found = records_.find(id);
  if (found == records_.end()) return std::nullopt;
  return found->second;
}

std::size_t MemoryDatabase::size() const {
  MutexLock lock(mutex_);
  return records_.size();
}

void MemoryDatabase::Put(const RecordId& id, Record record) {
  MutexLock lock(mutex_);
  records_.insert_or_assign(id, std::move(record));
}

bool MemoryDatabase::Age(const RecordId& id, absl::Duration by) {
  MutexLock lock(mutex_);
  const auto found = records_.find(id);
  if (found == records_.end()) return false;
  MoveBack(found->second, by);
  return true;
}

void MemoryDatabase::AgeConflicts(absl::Duration by) {
  MutexLock lock(mutex_);
  for (auto& [id, row] : conflicts_) {
    row.first_seen_at -= by;
    row.last_seen_at -= by;
  }
}

std::vector<KeptConflict> MemoryDatabase::ConflictsOf(
    const RecordId& id) const {
  MutexLock lock(mutex_);
  std::vector<KeptConflict> kept;
  for (const auto& [name, conflict] : conflicts_) {
    if (std::get<0>(name) == id.scope && std::get<1>(name) == id.key) {
      kept.push_back(conflict);
    }
  }
  return kept;
}

MemoryTable::MemoryTable(MemoryDatabase& database, StatementHook hook)
    : database_(database), hook_(std::move(hook)) {}

absl::StatusOr<std::vector<std::optional<absl::Time>>> MemoryTable::InsertNew(
    Batch<ClaimCommand> claims) {
  using Answers = std::vector<std::optional<absl::Time>>;
  return Hooked(
      hook_, MemoryStatement::kInsertNew, [&]() -> absl::StatusOr<Answers> {
        MutexLock lock(database_.mutex_);
        Answers granted;
        for (const ClaimCommand* claim : claims) {
          const bool inserted =
              database_.records_
                  .try_emplace(claim->id, NewRecord(*claim, database_.now_))
                  .second;
          granted.push_back(inserted ? std::optional(database_.now_)
                                     : std::nullopt);
        }
        return granted;
      });
}

absl::StatusOr<std::vector<std::optional<absl::Time>>>
MemoryTable::FinalizeOwned(Batch<FinalizeCommand> finalizes) {
  using Answers = std::vector<std::optional<absl::Time>>;
  return Hooked(
      hook_, MemoryStatement::kFinalizeOwned, [&]() -> absl::StatusOr<Answers> {
        MutexLock lock(database_.mutex_);
        Answers recorded(finalizes.size());
        for (std::size_t i = 0; i < finalizes.size(); ++i) {
          const auto found = database_.records_.find(finalizes[i]->id);
          if (found == database_.records_.end() ||
              found->second.state != RecordState::kUnfinished) {
            continue;
          }
          Decision<FinalizeOutcome> decision =
              DecideFinalize(&found->second, *finalizes[i], database_.now_);
          if (!decision.write.has_value() ||
              decision.write->state != RecordState::kFinal) {
            continue;
          }
          found->second = *std::move(decision.write);
          recorded[i] = found->second.expires_at;
        }
        return recorded;
      });
}

absl::StatusOr<Snapshot> MemoryTable::Read(Batch<RecordId> ids,
                                           ReadBodies bodies) {
  return Hooked(
      hook_, MemoryStatement::kRead, [&]() -> absl::StatusOr<Snapshot> {
        MutexLock lock(database_.mutex_);
        Snapshot snapshot{.now = database_.now_};
        std::size_t bytes = 0;
        for (const RecordId* id : ids) {
          ReadRow& row = snapshot.rows.emplace_back();
          const auto found = database_.records_.find(*id);
          if (found != database_.records_.end() && bodies == ReadBodies::kYes) {
            const std::size_t more = found->second.response.body.size();
            if (bytes > 0 && bytes + more > database_.body_bytes_max_) continue;
            bytes += more;
          }
          row.read = true;
          if (found == database_.records_.end()) continue;
          row.record = found->second;
          if (bodies == ReadBodies::kNo) {
            row.record->response.headers.clear();
            row.record->response.body.clear();
          }
        }
        return snapshot;
      });
}

absl::StatusOr<std::vector<bool>> MemoryTable::Replace(
    Batch<Replacement> replacements) {
  using Answers = std::vector<bool>;
  return Hooked(
      hook_, MemoryStatement::kReplace, [&]() -> absl::StatusOr<Answers> {
        MutexLock lock(database_.mutex_);
        Answers replaced(replacements.size(), false);
        for (std::size_t i = 0; i < replacements.size(); ++i) {
          const Replacement& one = *replacements[i];
          const auto found = database_.records_.find(*one.id);
          if (found == database_.records_.end() ||
              !IsWhatWasRead(found->second, *one.before)) {
            continue;
          }
          Record next = *one.after;
          if (one.before->state == RecordState::kFinal &&
              next.state == RecordState::kFinal) {
            next.response = std::move(found->second.response);
            next.response_digest = std::move(found->second.response_digest);
          }
          found->second = std::move(next);
          replaced[i] = true;
        }
        return replaced;
      });
}

absl::StatusOr<std::vector<bool>> MemoryTable::KeepConflicts(
    Batch<Conflict> conflicts) {
  using Answers = std::vector<bool>;
  return Hooked(
      hook_, MemoryStatement::kKeepConflicts, [&]() -> absl::StatusOr<Answers> {
        MutexLock lock(database_.mutex_);
        Answers kept;
        for (const Conflict* conflict : conflicts) {
          auto& rows = database_.conflicts_;
          const MemoryDatabase::ConflictId id = {
              conflict->id.scope, conflict->id.key, conflict->claim_token,
              conflict->response_digest};
          const auto record = database_.records_.find(conflict->id);
          const absl::Time life_began = record == database_.records_.end()
                                            ? absl::InfinitePast()
                                            : record->second.created_at;
          const auto of_record =
              std::count_if(rows.begin(), rows.end(), [&](const auto& row) {
                return std::get<0>(row.first) == conflict->id.scope &&
                       std::get<1>(row.first) == conflict->id.key &&
                       row.second.last_seen_at >= life_began;
              });
          if (!rows.contains(id) &&
              of_record >= limits::kConflictsPerRecordMax) {
            kept.push_back(false);
            continue;
          }
          KeptConflict& row =
              rows.try_emplace(
                      id, KeptConflict{.status_code = conflict->status_code,
                                       .first_seen_at = database_.now_})
                  .first->second;
          row.last_seen_at = database_.now_;
          row.count += 1;
          kept.push_back(true);
        }
        return kept;
      });
}

absl::StatusOr<std::vector<int>> MemoryTable::CountConflicts(
    Batch<RecordId> ids) {
  using Answers = std::vector<int>;
  return Hooked(hook_, MemoryStatement::kCountConflicts,
                [&]() -> absl::StatusOr<Answers> {
                  MutexLock lock(database_.mutex_);
                  Answers counts;
                  for (const RecordId* id : ids) {
                    std::set<std::string> digests;
                    const auto record = database_.records_.find(*id);
                    for (const auto& [name, row] : database_.conflicts_) {
                      if (record != database_.records_.end() &&
                          std::get<0>(name) == id->scope &&
                          std::get<1>(name) == id->key &&
                          row.last_seen_at >= record->second.created_at) {
                        digests.insert(std::get<3>(name));
                      }
                    }
                    counts.push_back(static_cast<int>(digests.size()));
                  }
                  return counts;
                });
}

absl::StatusOr<std::vector<bool>> MemoryTable::FindChanged(
    Batch<Watched> watched) {
  using Answers = std::vector<bool>;
  return Hooked(
      hook_, MemoryStatement::kFindChanged, [&]() -> absl::StatusOr<Answers> {
        MutexLock lock(database_.mutex_);
        Answers changed;
        for (const Watched* one : watched) {
          const auto found = database_.records_.find(one->id);
          changed.push_back(found == database_.records_.end() ||
                            found->second.version != one->version ||
                            found->second.lease_expires_at <= database_.now_);
        }
        return changed;
      });
}

absl::StatusOr<FleetRules> MemoryTable::ReadRules() {
  return Hooked(
      hook_, MemoryStatement::kReadRules,
      [&]() -> absl::StatusOr<FleetRules> { return database_.rules(); });
}

MemorySweeper::MemorySweeper(MemoryDatabase& database, StatementHook hook)
    : database_(database), hook_(std::move(hook)) {}

absl::StatusOr<SweepReport> MemorySweeper::SweepRecords(int limit) {
  std::vector<std::pair<absl::Time, RecordId>> due;
  {
    MutexLock lock(database_.mutex_);
    for (const auto& [id, record] : database_.records_) {
      if (record.expires_at <= database_.now_) {
        due.emplace_back(record.expires_at, id);
      }
    }
  }
  std::sort(due.begin(), due.end());
  if (due.size() > static_cast<std::size_t>(limit)) {
    due.resize(static_cast<std::size_t>(limit));
  }
  return Hooked(hook_, MemoryStatement::kSweepRecords,
                [&]() -> absl::StatusOr<SweepReport> {
                  MutexLock lock(database_.mutex_);
                  SweepReport report;
                  for (const auto& [expired_at, id] : due) {
                    const auto found = database_.records_.find(id);
                    // Somebody may have claimed it since it was chosen.
                    if (found == database_.records_.end() ||
                        found->second.expires_at > database_.now_) {
                      continue;
                    }
                    if (IsHeldUnfinished(found->second)) {
                      found->second.expires_at = absl::InfiniteFuture();
                      found->second.version += 1;
                      ++report.parked;
                      continue;
                    }
                    if (found->second.state == RecordState::kUnfinished) {
                      ++report.unfinished[found->second.policy.name];
                    }
                    database_.records_.erase(found);
                    ++report.deleted;
                  }
                  return report;
                });
}

absl::StatusOr<std::int64_t> MemorySweeper::SweepConflicts(
    int limit, absl::Duration kept_for) {
  return Hooked(hook_, MemoryStatement::kSweepConflicts,
                [&]() -> absl::StatusOr<std::int64_t> {
                  MutexLock lock(database_.mutex_);
                  std::int64_t deleted = 0;
                  auto& rows = database_.conflicts_;
                  for (auto row = rows.begin();
                       row != rows.end() && deleted < limit;) {
                    if (row->second.last_seen_at < database_.now_ - kept_for) {
                      row = rows.erase(row);
                      ++deleted;
                    } else {
                      ++row;
                    }
                  }
                  return deleted;
                });
}

}  // namespace idempotency
