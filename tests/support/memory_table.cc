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

}  // namespace

std::optional<Record> FinalizedRow(const Record& stored,
                                   const FinalizeCommand& finalize,
                                   absl::Time now) {
  if (stored.state != RecordState::kUnfinished) return std::nullopt;
  Decision<FinalizeOutcome> decision = DecideFinalize(&stored, finalize, now);
  if (!decision.write.has_value() ||
      decision.write->state != RecordState::kFinal) {
    return std::nullopt;
  }
  return std::move(decision.write);
}

std::optional<Record> ReplacedRow(const Record& stored,
                                  const Replacement& replacement) {
  if (!IsWhatWasRead(stored, *replacement.before)) return std::nullopt;
  Record next = *replacement.after;
  if (replacement.before->state == RecordState::kFinal &&
      next.state == RecordState::kFinal) {
    next.response = stored.response;
    next.response_digest = stored.response_digest;
  }
  return next;
}

Swept SweepOf(const Record& stored, absl::Time now) {
  if (stored.expires_at > now) return Swept::kStays;
  return IsHeldUnfinished(stored) ? Swept::kParked : Swept::kDeleted;
}

Record ParkedRow(const Record& stored) {
  Record parked = stored;
  parked.expires_at = absl::InfiniteFuture();
  parked.version += 1;
  return parked;
}

Record AgedRow(Record stored, absl::Duration by) {
  stored.created_at -= by;
  stored.claimed_at -= by;
  stored.lease_expires_at -= by;
  stored.expires_at -= by;
  if (stored.gave_up != GaveUp::kNo) stored.gave_up_at -= by;
  if (stored.state == RecordState::kFinal) stored.finalized_at -= by;
  return stored;
}

bool IsChanged(const Record* stored, const Watched& watched, absl::Time now) {
  return stored == nullptr || stored->version != watched.version ||
         stored->lease_expires_at <= now;
}

bool KeepConflict(KeptConflicts& kept, const Record* record,
                  const Conflict& conflict, absl::Time now) {
  const ConflictId id = {conflict.id.scope, conflict.id.key,
                         conflict.claim_token, conflict.response_digest};
  const absl::Time life_began =
      record == nullptr ? absl::InfinitePast() : record->created_at;
  const auto of_record =
      std::count_if(kept.begin(), kept.end(), [&](const auto& row) {
        return std::get<0>(row.first) == conflict.id.scope &&
               std::get<1>(row.first) == conflict.id.key &&
               row.second.last_seen_at >= life_began;
      });
  if (!kept.contains(id) && of_record >= limits::kConflictsPerRecordMax) {
    return false;
  }
  KeptConflict& row =
      kept.try_emplace(id, KeptConflict{.status_code = conflict.status_code,
                                        .first_seen_at = now})
          .first->second;
  row.last_seen_at = now;
  row.count += 1;
  return true;
}

int CountConflictsOf(const KeptConflicts& kept, const RecordId& id,
                     const Record& record) {
  std::set<std::string> digests;
  for (const auto& [name, row] : kept) {
    if (std::get<0>(name) == id.scope && std::get<1>(name) == id.key &&
        row.last_seen_at >= record.created_at) {
      digests.insert(std::get<3>(name));
    }
  }
  return static_cast<int>(digests.size());
}

std::int64_t SweepConflictRows(KeptConflicts& kept, int limit,
                               absl::Time before) {
  std::int64_t deleted = 0;
  for (auto row = kept.begin(); row != kept.end() && deleted < limit;) {
    if (row->second.last_seen_at < before) {
      row = kept.erase(row);
      ++deleted;
    } else {
      ++row;
    }
  }
  return deleted;
}

std::vector<KeptConflict> ConflictsAbout(const KeptConflicts& kept,
                                         const RecordId& id) {
  std::vector<KeptConflict> about;
  for (const auto& [name, conflict] : kept) {
    if (std::get<0>(name) == id.scope && std::get<1>(name) == id.key) {
      about.push_back(conflict);
    }
  }
  return about;
}

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
  found->second = AgedRow(std::move(found->second), by);
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
  return ConflictsAbout(conflicts_, id);
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
          if (found == database_.records_.end()) continue;
          std::optional<Record> next =
              FinalizedRow(found->second, *finalizes[i], database_.now_);
          if (!next.has_value()) continue;
          found->second = *std::move(next);
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
          if (found == database_.records_.end()) continue;
          std::optional<Record> next = ReplacedRow(found->second, one);
          if (!next.has_value()) continue;
          found->second = *std::move(next);
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
          const auto found = database_.records_.find(conflict->id);
          kept.push_back(KeepConflict(
              database_.conflicts_,
              found == database_.records_.end() ? nullptr : &found->second,
              *conflict, database_.now_));
        }
        return kept;
      });
}

absl::StatusOr<std::vector<int>> MemoryTable::CountConflicts(
    Batch<RecordId> ids) {
  using Answers = std::vector<int>;
  return Hooked(
      hook_, MemoryStatement::kCountConflicts,
      [&]() -> absl::StatusOr<Answers> {
        MutexLock lock(database_.mutex_);
        Answers counts;
        for (const RecordId* id : ids) {
          const auto found = database_.records_.find(*id);
          counts.push_back(
              found == database_.records_.end()
                  ? 0
                  : CountConflictsOf(database_.conflicts_, *id, found->second));
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
          changed.push_back(IsChanged(
              found == database_.records_.end() ? nullptr : &found->second,
              *one, database_.now_));
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
                    if (found == database_.records_.end()) continue;
                    const Swept swept = SweepOf(found->second, database_.now_);
                    if (swept == Swept::kStays) continue;
                    if (swept == Swept::kParked) {
                      found->second = ParkedRow(found->second);
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
                  return SweepConflictRows(database_.conflicts_, limit,
                                           database_.now_ - kept_for);
                });
}

}  // namespace idempotency
