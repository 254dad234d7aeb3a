#include "tests/simulation/database.h"

#include <algorithm>
#include <utility>

#include "tests/simulation/backend.h"

namespace idempotency {

Database::Database(Scheduler& scheduler, Weather& weather, PlantedBug bug,
                   bool has_standby)
    : scheduler_(scheduler),
      weather_(weather),
      bug_(bug),
      has_standby_(has_standby),
      clock_(scheduler) {}

Row& Database::RowOf(const RecordId& id) {
  std::unique_ptr<Row>& row = rows_[id];
  if (row == nullptr) {
    row = std::make_unique<Row>();
    row->id = id;
  }
  return *row;
}

RecordPtr Database::Find(const RecordId& id) const {
  const auto found = rows_.find(id);
  return found == rows_.end() ? nullptr : found->second->committed.record;
}

void Database::Start(Microseconds delay, std::uint64_t epoch, bool writes,
                     StatementWork work, std::shared_ptr<Reply> reply) {
  scheduler_.Spawn(delay, [this, epoch, writes, work = std::move(work),
                           reply = std::move(reply)]() mutable {
    if (epoch != epoch_) return reply->Give(Ending::kCut);
    Backend backend(*this, writes, reply);
    backend.Run(work);
  });
}

void Database::Put(const RecordId& id, Record record) {
  Row& row = RowOf(id);
  row.committed.record = std::make_shared<const Record>(std::move(record));
  row.committed.number = ++versions_;
  row.on_standby = row.committed;
}

void Database::AgeConflicts(absl::Duration by) {
  for (auto& [id, row] : conflicts_) {
    row.first_seen_at -= by;
    row.last_seen_at -= by;
  }
}

// ---- Commits.

std::uint64_t Database::Flush(const std::vector<RowChange>& rows,
                              const std::vector<Conflict>& conflicts,
                              absl::Time at) {
  ++flushed_;
  if (has_standby_) {
    log_.push_back(
        {.position = flushed_, .rows = rows, .conflicts = conflicts, .at = at});
    Ship();
  }
  return flushed_;
}

void Database::MakeVisible(const std::vector<RowChange>& rows,
                           const std::vector<Conflict>& conflicts,
                           absl::Time at) {
  for (const Conflict& conflict : conflicts) {
    KeepConflict(conflicts_, Find(conflict.id).get(), conflict, at);
  }
  for (const RowChange& change : rows) {
    change.row->committed = change.after;
    observer_->RowChanged(change.row->id, change.after);
  }
}

// Everything that has been flushed by the time it goes.
void Database::Ship() {
  if (std::exchange(shipping_, true)) return;
  Microseconds delay =
      scheduler_.random().Between(Microseconds(50), Microseconds(1500));
  if (standby_back_ > scheduler_.Now()) {
    delay += std::chrono::duration_cast<Microseconds>(standby_back_ -
                                                      scheduler_.Now());
  }
  scheduler_.After(delay, [this, epoch = epoch_] {
    shipping_ = false;
    if (log_.empty()) return;
    if (standby_back_ > scheduler_.Now()) return Ship();
    Replicate();
  });
}

void Database::Replicate() {
  for (const LogEntry& entry : std::exchange(log_, {})) {
    for (const Conflict& conflict : entry.conflicts) {
      KeepConflict(conflicts_on_standby_,
                   RowOf(conflict.id).on_standby.record.get(), conflict,
                   entry.at);
    }
    for (const RowChange& change : entry.rows) {
      change.row->on_standby = change.after;
    }
    replicated_ = entry.position;
  }
  for (Backend* const backend : active_) {
    if (backend->awaits_standby_) backend->gate_.Open();
  }
}

// ---- Trouble.

void Database::EndAllBackends() {
  ++epoch_;
  for (Backend* const backend : std::exchange(active_, {})) {
    backend->ended_ = true;
    backend->reply_->Give(Ending::kCut);
    backend->gate_.Open();
  }
  for (const auto& [id, row] : rows_) {
    row->writer = nullptr;
    row->writer_changes_it = false;
    row->waiting.clear();
  }
}

bool Database::Restart(Microseconds down_for) {
  if (!accepts()) return false;
  // What was flushed is found again.
  const std::vector<Backend*> active = active_;
  EndAllBackends();
  for (Backend* const backend : active) {
    if (backend->flushed_ && !backend->locked_.empty()) {
      MakeVisible(backend->changes_, backend->conflicts_, backend->now_);
    }
  }
  up_again_ = scheduler_.Now() + down_for;
  return true;
}

bool Database::FailOver(Microseconds down_for) {
  if (!has_standby_ || !accepts()) return false;
  EndAllBackends();
  log_.clear();
  replicated_ = flushed_;
  standby_back_ = {};
  conflicts_ = conflicts_on_standby_;
  // The former primary, with its clock, is the standby from now on.
  const Microseconds ahead = clock_.ahead();
  if (standby_ahead_ != ahead) {
    weather_.Count("failovers to another clock");
    clock_.SetAhead(std::exchange(standby_ahead_, ahead));
  }
  for (const auto& [id, row] : rows_) {
    const std::uint64_t shown =
        std::exchange(row->committed, row->on_standby).number;
    // The standby may be ahead of what the primary had shown.
    if (shown < row->on_standby.number) {
      observer_->RowChanged(id, row->committed);
    } else if (shown > row->on_standby.number) {
      weather_.Count("rows lost in a failover");
      observer_->RowFellBack(id, row->committed);
    }
  }
  observer_->FailedOver();
  up_again_ = scheduler_.Now() + down_for;
  return true;
}

bool Database::StallStandby(Microseconds duration) {
  if (!has_standby_) return false;
  standby_back_ = std::max(standby_back_, scheduler_.Now() + duration);
  return true;
}

bool Database::CancelWaits() {
  bool any = false;
  for (Backend* const backend : active_) {
    if (!backend->awaits_standby_ || scheduler_.random().Chance(30)) continue;
    any = true;
    (scheduler_.random().Chance(70) ? backend->cancelled_ : backend->killed_) =
        true;
    backend->gate_.Open();
  }
  return any;
}

bool Database::KillBackends() {
  bool any = false;
  for (Backend* const backend : active_) {
    if (scheduler_.random().Chance(50)) continue;
    any = true;
    backend->killed_ = true;
    backend->gate_.Open();
  }
  return any;
}

bool Database::SetClock(Microseconds ahead) {
  clock_.SetAhead(ahead);
  return true;
}

bool Database::SetStandbyClock(Microseconds ahead) {
  standby_ahead_ = ahead;
  return has_standby_;
}

bool Database::TurnReadOnly(Microseconds duration) {
  read_only_until_ = std::max(read_only_until_, scheduler_.Now() + duration);
  return true;
}

}  // namespace idempotency
