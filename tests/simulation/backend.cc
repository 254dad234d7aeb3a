#include "tests/simulation/backend.h"

#include <algorithm>

namespace idempotency {
namespace {

// Between two steps of a statement others mostly get no turn.
constexpr unsigned kPauseBeforeSnapshot = 20;
constexpr unsigned kPauseBetweenRows = 15;
constexpr unsigned kPauseAfterFlush = 20;

}  // namespace

Backend::Backend(Database& database, bool writes, std::shared_ptr<Reply> reply)
    : database_(database),
      writes_(writes),
      reply_(std::move(reply)),
      now_(database.Now()),
      began_(database.clock().steady_now()),
      gate_(database.scheduler_) {
  database_.active_.push_back(this);
}

Backend::~Backend() {
  if (!ended_) {
    Unlock();
    std::erase(database_.active_, this);
  }
}

bool Backend::Pause(Microseconds duration) {
  gate_.WaitFor(duration);
  return !over();
}

void Backend::Run(StatementWork& work) {
  Random& random = database_.scheduler_.random();
  if (random.Chance(kPauseBeforeSnapshot) &&
      !Pause(database_.weather_.Short(random))) {
    return reply_->Give(Ending::kCut);
  }
  if (writes_ && database_.scheduler_.Now() < database_.read_only_until_) {
    return reply_->Give(Ending::kReadOnly);
  }
  Ending ending = work(*this);
  if (ending == Ending::kAnswered) {
    if (database_.bug() == PlantedBug::kAnswerBeforeCommit) {
      reply_->Give(Ending::kAnswered);
    }
    ending = Commit();
  }
  if (ended_) return;
  Unlock();
  // The answer is on its way; those who were waited for can go on.
  if (!Pause(database_.weather_.Short(random))) ending = Ending::kCut;
  reply_->Give(ending);
}

Version Backend::See(const RecordId& id) {
  return database_.RowOf(id).committed;
}

Version Backend::SeeOnStandby(const RecordId& id) {
  return database_.RowOf(id).on_standby;
}

std::vector<std::pair<RecordId, Version>> Backend::SeeAll() {
  std::vector<std::pair<RecordId, Version>> all;
  for (const auto& [id, row] : database_.rows_) {
    if (row->committed.record != nullptr) all.emplace_back(id, row->committed);
  }
  return all;
}

Backend::Touch Backend::GiveUp(Ending why) {
  failure_ = why;
  return Touch::kGivenUp;
}

// The lock is had, or must be waited for until its holder ends, each time for
// lock_timeout at most. Of a row that is gone there is none: what may be there
// now is another row.
Backend::Touch Backend::Lock(Row& row, const Version* seen, Wait wait) {
  Random& random = database_.scheduler_.random();
  if (!database_.weather_.calm && random.Chance(kPauseBetweenRows) &&
      !Pause(database_.weather_.Short(random))) {
    return GiveUp(Ending::kCut);
  }
  const auto is_gone = [&] {
    return seen != nullptr && (row.committed.record == nullptr ||
                               row.committed.chain != seen->chain);
  };
  while (!is_gone() && row.writer != nullptr && row.writer != this) {
    if (wait == Wait::kNo) return Touch::kSkipped;
    database_.weather_.Count("lock waits");
    const Backend* const holder = row.writer;
    row.waiting.push_back(this);
    const bool woken = gate_.WaitFor(limits::kLockWaitMax);
    if (ended_) return GiveUp(Ending::kCut);
    std::erase(row.waiting, this);
    if (over()) return GiveUp(Ending::kCut);
    if (!woken && row.writer == holder) return GiveUp(Ending::kLockTimeout);
  }
  if (is_gone()) return Touch::kSkipped;
  if (row.writer == nullptr) {
    row.writer = this;
    row.writer_changes_it = false;
    locked_.push_back(&row);
  }
  return Touch::kDone;
}

void Backend::Release(Row& row) {
  row.writer = nullptr;
  row.writer_changes_it = false;
  for (Backend* const waiting : row.waiting) waiting->gate_.Open();
}

void Backend::Unlock() {
  for (Row* const row : std::exchange(locked_, {})) Release(*row);
}

Backend::Touch Backend::Update(const RecordId& id, const Version& seen,
                               Change change, By by) {
  if (seen.record == nullptr) return Touch::kSkipped;
  std::optional<RecordPtr> next = change(*seen.record);
  if (!next.has_value()) return Touch::kSkipped;
  Row& row = database_.RowOf(id);
  const Touch locked = Lock(row, &seen, Wait::kYes);
  if (locked != Touch::kDone) return locked;
  if (row.committed.record != seen.record) {
    const PlantedBug bug = database_.bug();
    if (by == By::kPlace && !database_.finds_moved_rows &&
        bug != PlantedBug::kSweepDoesNotLookAgain) {
      return Touch::kSkipped;
    }
    if (bug != PlantedBug::kGuardIsNotReadAgain) {
      next = change(*row.committed.record);
      if (!next.has_value()) return Touch::kSkipped;
    }
  }
  row.writer_changes_it = true;
  changes_.push_back({.row = &row,
                      .after = {.record = *std::move(next),
                                .chain = seen.chain,
                                .number = ++database_.versions_,
                                .at = now_,
                                .began = began_}});
  return Touch::kDone;
}

Backend::Touch Backend::LockIfFree(
    const RecordId& id, const Version& seen,
    absl::FunctionRef<bool(const Record&)> fits) {
  Row& row = database_.RowOf(id);
  const Touch locked = Lock(row, &seen, Wait::kNo);
  if (locked != Touch::kDone) return locked;
  return fits(*row.committed.record) ? Touch::kDone : Touch::kSkipped;
}

Backend::Touch Backend::Insert(const RecordId& id, Record record) {
  Row& row = database_.RowOf(id);
  // Whoever has locked the row only will leave it there.
  if (row.committed.record != nullptr && !row.writer_changes_it) {
    return Touch::kSkipped;
  }
  if (database_.bug() != PlantedBug::kInsertDoesNotWait) {
    const Touch locked = Lock(row, nullptr, Wait::kYes);
    if (locked != Touch::kDone) return locked;
    if (row.committed.record != nullptr) {
      locked_.pop_back();
      Release(row);
      return Touch::kSkipped;
    }
  }
  row.writer_changes_it = true;
  // The first of a chain gives it its number.
  const std::uint64_t number = ++database_.versions_;
  changes_.push_back(
      {.row = &row,
       .after = {.record = std::make_shared<const Record>(std::move(record)),
                 .chain = number,
                 .number = number,
                 .at = now_,
                 .began = began_}});
  return Touch::kDone;
}

// Until the standby has it, or the wait is ended by force: then it is committed
// all the same. False: and nobody is told so.
bool Backend::AwaitStandby(std::uint64_t position) {
  while (database_.replicated_ < position && !cancelled_ && !over()) {
    awaits_standby_ = true;
    gate_.WaitFor(std::chrono::hours(1));
    if (ended_) return false;
    awaits_standby_ = false;
  }
  return !over();
}

Ending Backend::Commit() {
  if (changes_.empty() && conflicts_.empty()) return Ending::kAnswered;
  Random& random = database_.scheduler_.random();
  Microseconds flush = database_.weather_.Short(random);
  if (database_.weather_.Strikes(
          random, database_.weather_.slow_commit_per_mille, "slow commits")) {
    flush = random.Between(Milliseconds(50), Milliseconds(500));
  }
  if (!Pause(flush)) return Ending::kCut;
  const std::uint64_t position = database_.Flush(changes_, conflicts_, now_);
  flushed_ = true;
  bool told = !database_.has_standby_ || AwaitStandby(position);
  if (ended_) return Ending::kCut;
  if (random.Chance(kPauseAfterFlush)) {
    told = Pause(database_.weather_.Short(random)) && told;
    if (ended_) return Ending::kCut;
  }
  database_.MakeVisible(changes_, conflicts_, now_);
  if (!told) return Ending::kCut;
  return cancelled_ ? Ending::kUnconfirmed : Ending::kAnswered;
}

}  // namespace idempotency
