// A statement on its way through the database.
#ifndef IDEMPOTENCY_TESTS_SIMULATION_BACKEND_H_
#define IDEMPOTENCY_TESTS_SIMULATION_BACKEND_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "tests/simulation/database.h"

namespace idempotency {

// Lives in its fiber, one statement long. Functions that wait return false, or
// kGivenUp, when the statement is over for whatever reason: the work then
// returns failure().
class Backend {
 public:
  Backend(Database& database, bool writes, std::shared_ptr<Reply> reply);
  ~Backend();
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // From the begin to the answer.
  void Run(StatementWork& work);

  // ---- For the work.

  // statement_timestamp().
  absl::Time now() const { return now_; }
  Ending failure() const { return failure_; }

  // The row as the statement's snapshot has it. One snapshot is what is seen
  // until the statement first waits: all of them are to be taken before.
  Version See(const RecordId& id);
  // All rows that there are, likewise.
  std::vector<std::pair<RecordId, Version>> SeeAll();
  // As the standby has it.
  Version SeeOnStandby(const RecordId& id);

  enum class Touch { kDone, kSkipped, kGivenUp };

  // What becomes of a row; nullopt: it does not fit, and is left alone; null:
  // it is deleted.
  using Change = absl::FunctionRef<std::optional<RecordPtr>(const Record&)>;
  // How a statement finds a row: by its key, or by its ctid, which is another
  // one after every update.
  enum class By { kKey, kPlace };
  // UPDATE or DELETE of one row that the snapshot has as `seen`: `change` is
  // asked of that version, then the row is locked, and if it has changed since
  // the snapshot, asked again of the latest one. Whatever that says, the row
  // stays locked. One that was deleted is waited for, and left alone.
  Touch Update(const RecordId& id, const Version& seen, Change change,
               By by = By::kKey);
  // FOR UPDATE SKIP LOCKED of one row: `fits` is asked of the latest version.
  // After kDone the row is See(), which stays.
  Touch LockIfFree(const RecordId& id, const Version& seen,
                   absl::FunctionRef<bool(const Record&)> fits);
  // INSERT ... ON CONFLICT DO NOTHING: waits for whoever changes the row.
  Touch Insert(const RecordId& id, Record record);

  const KeptConflicts& conflicts() const { return database_.conflicts_; }
  void Keep(const Conflict& conflict) { conflicts_.push_back(conflict); }
  // Deletes at most `limit` of those last seen before that time, for good.
  std::int64_t SweepConflicts(int limit, absl::Time before) {
    return SweepConflictRows(database_.conflicts_, limit, before);
  }

 private:
  friend class Database;

  bool over() const { return ended_ || killed_; }
  bool Pause(Microseconds duration);
  Touch GiveUp(Ending why);
  enum class Wait { kYes, kNo };
  // `seen`: the version to lock, or what became of it by updates; null: the
  // key, whatever row it has.
  Touch Lock(Row& row, const Version* seen, Wait wait);
  static void Release(Row& row);
  void Unlock();
  Ending Commit();
  bool AwaitStandby(std::uint64_t position);

  Database& database_;
  const bool writes_;
  const std::shared_ptr<Reply> reply_;
  const absl::Time now_;
  const SteadyTime began_;
  Gate gate_;
  std::vector<Row*> locked_;
  std::vector<RowChange> changes_;
  std::vector<Conflict> conflicts_;
  Ending failure_ = Ending::kCut;
  bool flushed_ = false;  // what is done is done
  bool awaits_standby_ = false;
  bool cancelled_ = false;
  bool killed_ = false;
  bool ended_ = false;  // the database it belonged to has gone
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_BACKEND_H_
