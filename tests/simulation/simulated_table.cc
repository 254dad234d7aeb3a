#include "tests/simulation/simulated_table.h"

#include <algorithm>
#include <utility>

#include "server/core/transitions.h"
#include "server/store/postgres/sqlstate.h"
#include "tests/simulation/backend.h"

namespace idempotency {
namespace {

using Touch = Backend::Touch;

// What a backend carries out may outlast the call that asked for it.
template <typename Item>
std::vector<Item> CopiesOf(Batch<Item> items) {
  std::vector<Item> copies;
  copies.reserve(items.size());
  for (const Item* item : items) copies.push_back(*item);
  return copies;
}

absl::Status StatusOf(Ending ending, std::string_view operation, bool writes) {
  const Phase phase = writes ? Phase::kWrite : Phase::kRead;
  switch (ending) {
    case Ending::kAnswered:
      break;
    case Ending::kUnconfirmed:
      if (writes) return FailureOfUnconfirmedWrite(operation).status;
      break;
    case Ending::kLockTimeout:
      return FailureOfSqlState(operation, "55P03", phase).status;
    case Ending::kReadOnly:
      return FailureOfSqlState(operation, "25006", phase).status;
    case Ending::kCut:
      return FailureOfLostConnection(operation, phase).status;
    case Ending::kNoConnection:
      return FailureOfSqlState(operation, "57P03", Phase::kConnect).status;
  }
  return absl::OkStatus();
}

RecordPtr Shared(Record record) {
  return std::make_shared<const Record>(std::move(record));
}

// ---- The statements' work. Each owns what it is given.

struct InsertWork {
  std::vector<ClaimCommand> claims;
  PlantedBug bug = PlantedBug::kNone;
  std::shared_ptr<Times> granted = std::make_shared<Times>();

  Ending operator()(Backend& backend) const {
    granted->assign(claims.size(), std::nullopt);
    for (std::size_t i = 0; i < claims.size(); ++i) {
      Record record = NewRecord(claims[i], backend.now());
      if (bug == PlantedBug::kFencingTokenPerRow) record.fencing_token = 1;
      switch (backend.Insert(claims[i].id, std::move(record))) {
        case Touch::kGivenUp:
          return backend.failure();
        case Touch::kDone:
          (*granted)[i] = backend.now();
          break;
        case Touch::kSkipped:
          break;
      }
    }
    return Ending::kAnswered;
  }
};

template <typename Item>
std::vector<Version> SeeEach(Backend& backend, const std::vector<Item>& items) {
  std::vector<Version> seen;
  seen.reserve(items.size());
  for (const Item& item : items) seen.push_back(backend.See(item.id));
  return seen;
}

struct FinalizeWork {
  std::vector<FinalizeCommand> finalizes;
  PlantedBug bug = PlantedBug::kNone;
  std::shared_ptr<Times> expiries = std::make_shared<Times>();

  // `seen`: by the snapshot that the whole statement has.
  Ending Run(Backend& backend, const std::vector<Version>& seen) const {
    expiries->assign(finalizes.size(), std::nullopt);
    for (std::size_t i = 0; i < finalizes.size(); ++i) {
      absl::Time expires_at;
      const auto change =
          [&](const Record& stored) -> std::optional<RecordPtr> {
        FinalizeCommand finalize = finalizes[i];
        if (bug == PlantedBug::kFinalizeIgnoresTheOwner) {
          finalize.claim_token = stored.claim_token;
        }
        std::optional<Record> next =
            FinalizedRow(stored, finalize, backend.now());
        if (!next.has_value()) return std::nullopt;
        if (bug == PlantedBug::kBodyIsNormalised) next->response.body += ' ';
        expires_at = next->expires_at;
        return Shared(*std::move(next));
      };
      const Touch touch = backend.Update(finalizes[i].id, seen[i], change);
      if (touch == Touch::kGivenUp) return backend.failure();
      if (touch == Touch::kDone) (*expiries)[i] = expires_at;
    }
    return Ending::kAnswered;
  }

  Ending operator()(Backend& backend) const {
    return Run(backend, SeeEach(backend, finalizes));
  }
};

struct ReplaceWork {
  struct Item {
    RecordId id;
    Record before;
    Record after;
  };
  std::vector<Item> items;
  PlantedBug bug = PlantedBug::kNone;
  std::shared_ptr<std::vector<bool>> replaced =
      std::make_shared<std::vector<bool>>();

  Ending operator()(Backend& backend) const {
    replaced->assign(items.size(), false);
    const std::vector<Version> seen = SeeEach(backend, items);
    for (std::size_t i = 0; i < items.size(); ++i) {
      const Item& item = items[i];
      // So that every new record is in a new row.
      const bool cleans_up = bug == PlantedBug::kFencingTokenPerRow &&
                             item.after.created_at != item.before.created_at;
      const auto change =
          [&](const Record& stored) -> std::optional<RecordPtr> {
        Record before =
            bug == PlantedBug::kReplaceIgnoresTheGuard ? stored : item.before;
        if (bug == PlantedBug::kReleasedClaimComesBack) {
          before.claim_token = stored.claim_token;
        }
        std::optional<Record> next = ReplacedRow(
            stored, {.id = &item.id, .before = &before, .after = &item.after});
        if (!next.has_value()) return std::nullopt;
        if (cleans_up) return nullptr;
        return Shared(*std::move(next));
      };
      const Touch touch = backend.Update(item.id, seen[i], change);
      if (touch == Touch::kGivenUp) return backend.failure();
      (*replaced)[i] = touch == Touch::kDone && !cleans_up;
    }
    return Ending::kAnswered;
  }
};

// The bug by which all that is written counts as durable.
PlantedBug TrustingBugOf(const ReplaceWork& work) {
  const auto all = [&](auto is) {
    return std::all_of(work.items.begin(), work.items.end(), is);
  };
  if (all([](const ReplaceWork::Item& item) {
        return item.after.gave_up == GaveUp::kServerError;
      })) {
    return PlantedBug::kGiveUpIsNotDurable;
  }
  if (all([](const ReplaceWork::Item& item) {
        return item.after.state == RecordState::kReleased ||
               item.after.gave_up != GaveUp::kNo;
      })) {
    return PlantedBug::kReleaseIsNotDurable;
  }
  return PlantedBug::kCancelledWaitIsSuccess;
}

struct ReadWork {
  std::vector<RecordId> ids;
  ReadBodies bodies;
  PlantedBug bug;
  std::shared_ptr<Snapshot> snapshot = std::make_shared<Snapshot>();

  Ending operator()(Backend& backend) const {
    snapshot->now = backend.now();
    snapshot->rows.clear();
    for (const RecordId& id : ids) {
      const Version seen = bug == PlantedBug::kReadsFromTheStandby
                               ? backend.SeeOnStandby(id)
                               : backend.See(id);
      ReadRow& row = snapshot->rows.emplace_back();
      row.read = true;
      if (seen.record == nullptr) continue;
      row.record = *seen.record;
      if (bug == PlantedBug::kReleasedClaimComesBack &&
          row.record->state == RecordState::kReleased) {
        row.record->claim_token = Uuid{};
      }
      if (bodies == ReadBodies::kNo) {
        row.record->response.headers.clear();
        row.record->response.body.clear();
      }
    }
    return Ending::kAnswered;
  }
};

using SeenRow = std::pair<RecordId, Version>;

// The rows that a sweep writes to, of those that it chooses: the oldest that
// are due, and `past_locked` those which nobody else has locked. nullopt: the
// statement is over.
std::optional<std::vector<SeenRow>> DueRows(Backend& backend, std::size_t limit,
                                            bool past_locked) {
  const auto is_due = [&](const Record& record) {
    return SweepOf(record, backend.now()) != Swept::kStays;
  };
  std::vector<SeenRow> due = backend.SeeAll();
  std::erase_if(
      due, [&](const SeenRow& row) { return !is_due(*row.second.record); });
  std::stable_sort(
      due.begin(), due.end(), [](const SeenRow& a, const SeenRow& b) {
        return a.second.record->expires_at < b.second.record->expires_at;
      });
  if (!past_locked) {
    due.resize(std::min(due.size(), limit));
    return due;
  }
  std::vector<SeenRow> places;
  std::size_t locked = 0;
  for (const SeenRow& row : due) {
    if (locked == limit) break;
    const Touch touch = backend.LockIfFree(row.first, row.second, is_due);
    if (touch == Touch::kGivenUp) return std::nullopt;
    if (touch != Touch::kDone) continue;
    ++locked;
    // Where the row is now, the statement's snapshot has nothing.
    if (backend.See(row.first).number == row.second.number) {
      places.push_back(row);
    }
  }
  return places;
}

bool HasRows(const Snapshot& snapshot) {
  for (const ReadRow& row : snapshot.rows) {
    if (row.record.has_value()) return true;
  }
  return false;
}

}  // namespace

absl::Status SimulatedTable::Run(std::string_view operation, bool writes,
                                 StatementWork work, PlantedBug trusting) {
  const Ending ending = session_.Run(writes, std::move(work));
  if (ending == Ending::kUnconfirmed &&
      (bug_ == trusting || bug_ == PlantedBug::kCancelledWaitIsSuccess)) {
    return absl::OkStatus();
  }
  if (ending == Ending::kCut && bug_ == PlantedBug::kLostAnswerCountsAsUndone) {
    return StatusOf(ending, operation, false);
  }
  return StatusOf(ending, operation, writes);
}

absl::StatusOr<Times> SimulatedTable::InsertNew(Batch<ClaimCommand> claims) {
  if (claims.empty()) return Times();
  const InsertWork work{.claims = CopiesOf(claims), .bug = bug_};
  const absl::Status status = Run("insert_new", true, work);
  if (!status.ok()) return status;
  return *work.granted;
}

absl::StatusOr<Times> SimulatedTable::FinalizeOwned(
    Batch<FinalizeCommand> finalizes) {
  if (finalizes.empty()) return Times();
  const FinalizeWork work{.finalizes = CopiesOf(finalizes), .bug = bug_};
  const absl::Status status = Run("finalize_owned", true, work);
  if (!status.ok()) return status;
  return *work.expiries;
}

InsertedAndFinalized SimulatedTable::InsertAndFinalize(
    Batch<ClaimCommand> claims, Batch<FinalizeCommand> finalizes) {
  if (claims.empty() || finalizes.empty()) {
    return RecordTable::InsertAndFinalize(claims, finalizes);
  }
  const InsertWork inserts{.claims = CopiesOf(claims), .bug = bug_};
  const FinalizeWork updates{.finalizes = CopiesOf(finalizes), .bug = bug_};
  const absl::Status status =
      Run("insert_and_finalize", true, [inserts, updates](Backend& backend) {
        const std::vector<Version> seen = SeeEach(backend, updates.finalizes);
        const Ending inserted = inserts(backend);
        return inserted == Ending::kAnswered ? updates.Run(backend, seen)
                                             : inserted;
      });
  if (!status.ok()) return {status, status};
  return {*inserts.granted, *updates.expiries};
}

absl::StatusOr<Snapshot> SimulatedTable::Read(Batch<RecordId> ids,
                                              ReadBodies bodies) {
  const ReadWork work{.ids = CopiesOf(ids), .bodies = bodies, .bug = bug_};
  absl::Status status = Run("read_records", false, work);
  if (!status.ok()) return status;
  Snapshot snapshot = *work.snapshot;
  if (HasRows(snapshot) && bug_ != PlantedBug::kClockIsReadAfterwards) {
    return snapshot;
  }
  // There is no row to tell the time with.
  const auto now = std::make_shared<absl::Time>();
  status = Run("read_clock", false, [now](Backend& backend) {
    *now = backend.now();
    return Ending::kAnswered;
  });
  if (!status.ok()) return status;
  snapshot.now = *now;
  return snapshot;
}

absl::StatusOr<std::vector<bool>> SimulatedTable::Replace(
    Batch<Replacement> replacements) {
  if (replacements.empty()) return std::vector<bool>();
  ReplaceWork work{.items = {}, .bug = bug_};
  std::vector<std::size_t> places;
  std::vector<bool> replaced(replacements.size(), true);
  for (std::size_t i = 0; i < replacements.size(); ++i) {
    const Replacement& one = *replacements[i];
    Record after = *one.after;
    if (bug_ == PlantedBug::kTakeoverIsNotTold &&
        after.attempt > one.before->attempt) {
      after.abandoned.reset();
    }
    if (bug_ == PlantedBug::kConfirmedWithoutAWrite) {
      Record confirmed = *one.before;
      confirmed.version += 1;
      if (after == confirmed) continue;
    }
    places.push_back(i);
    work.items.push_back({*one.id, *one.before, std::move(after)});
  }
  if (places.empty()) return replaced;
  const absl::Status status = Run("replace", true, work, TrustingBugOf(work));
  if (!status.ok()) return status;
  for (std::size_t k = 0; k < places.size(); ++k) {
    replaced[places[k]] = (*work.replaced)[k];
  }
  return replaced;
}

absl::StatusOr<std::vector<bool>> SimulatedTable::KeepConflicts(
    Batch<Conflict> conflicts) {
  if (conflicts.empty()) return std::vector<bool>();
  const auto kept = std::make_shared<std::vector<bool>>();
  const absl::Status status = Run(
      "keep_conflicts", true,
      [kept, conflicts = CopiesOf(conflicts)](Backend& backend) {
        kept->clear();
        KeptConflicts seen = backend.conflicts();
        for (const Conflict& conflict : conflicts) {
          kept->push_back(KeepConflict(seen,
                                       backend.See(conflict.id).record.get(),
                                       conflict, backend.now()));
          if (kept->back()) backend.Keep(conflict);
        }
        return Ending::kAnswered;
      },
      PlantedBug::kEvidenceIsNotDurable);
  if (!status.ok()) return status;
  return *kept;
}

absl::StatusOr<std::vector<bool>> SimulatedTable::FindChanged(
    Batch<Watched> watched) {
  if (bug_ == PlantedBug::kLooksFindNothing) {
    return std::vector<bool>(watched.size());
  }
  const auto changed = std::make_shared<std::vector<bool>>();
  const absl::Status status =
      Run("find_unchanged", false,
          [changed, watched = CopiesOf(watched)](Backend& backend) {
            changed->clear();
            for (const Watched& one : watched) {
              changed->push_back(IsChanged(backend.See(one.id).record.get(),
                                           one, backend.now()));
            }
            return Ending::kAnswered;
          });
  if (!status.ok()) return status;
  return *changed;
}

absl::StatusOr<std::vector<int>> SimulatedTable::CountConflicts(
    Batch<RecordId> ids) {
  const auto counts = std::make_shared<std::vector<int>>();
  const absl::Status status =
      Run("count_conflicts", false,
          [counts, ids = CopiesOf(ids)](Backend& backend) {
            counts->clear();
            for (const RecordId& id : ids) {
              const RecordPtr record = backend.See(id).record;
              counts->push_back(
                  record == nullptr
                      ? 0
                      : CountConflictsOf(backend.conflicts(), id, *record));
            }
            return Ending::kAnswered;
          });
  if (!status.ok()) return status;
  return *counts;
}

absl::StatusOr<FleetRules> SimulatedTable::ReadRules() {
  const auto rules = std::make_shared<FleetRules>();
  const absl::Status status =
      Run("read_policies", false,
          [rules, &database = session_.database()](Backend&) {
            *rules = database.rules;
            return Ending::kAnswered;
          });
  if (!status.ok()) return status;
  return *rules;
}

// ---- The sweeper.

absl::StatusOr<SweepReport> SimulatedSweeper::Sweep(int limit,
                                                    bool past_locked) {
  const auto report = std::make_shared<SweepReport>();
  const Ending ending = session_.Run(true, [=, bug = bug_](Backend& backend) {
    const std::optional<std::vector<SeenRow>> due =
        DueRows(backend, static_cast<std::size_t>(limit), past_locked);
    if (!due.has_value()) return backend.failure();
    for (const Swept what : {Swept::kDeleted, Swept::kParked}) {
      for (const auto& [id, seen] : *due) {
        const auto change =
            [&](const Record& stored) -> std::optional<RecordPtr> {
          const Record& judged =
              bug == PlantedBug::kSweepDoesNotLookAgain ? *seen.record : stored;
          if (SweepOf(judged, backend.now()) != what) return std::nullopt;
          return what == Swept::kDeleted ? nullptr : Shared(ParkedRow(stored));
        };
        const Touch touch =
            backend.Update(id, seen, change, Backend::By::kPlace);
        if (touch == Touch::kGivenUp) return backend.failure();
        if (touch != Touch::kDone) continue;
        ++(what == Swept::kDeleted ? report->deleted : report->parked);
        if (what == Swept::kDeleted &&
            seen.record->state == RecordState::kUnfinished) {
          ++report->unfinished[seen.record->policy.name];
        }
      }
    }
    return Ending::kAnswered;
  });
  const absl::Status status = StatusOf(ending, "sweep", true);
  if (!status.ok()) return status;
  return *report;
}

absl::StatusOr<SweepReport> SimulatedSweeper::SweepRecords(int limit) {
  absl::StatusOr<SweepReport> swept = Sweep(limit, false);
  if (absl::IsAborted(swept.status())) swept = Sweep(limit, true);
  return swept;
}

absl::StatusOr<std::int64_t> SimulatedSweeper::SweepConflicts(
    int limit, absl::Duration kept_for) {
  const auto deleted = std::make_shared<std::int64_t>(0);
  const Ending ending =
      session_.Run(true, [deleted, limit, kept_for](Backend& backend) {
        *deleted = backend.SweepConflicts(limit, backend.now() - kept_for);
        return Ending::kAnswered;
      });
  const absl::Status status = StatusOf(ending, "sweep_conflicts", true);
  if (!status.ok()) return status;
  return *deleted;
}

}  // namespace idempotency
