#ifndef IDEMPOTENCY_TESTS_SUPPORT_MEMORY_TABLE_H_
#define IDEMPOTENCY_TESTS_SUPPORT_MEMORY_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/limits.h"
#include "server/core/mutex.h"
#include "server/core/reaper.h"
#include "server/core/record_table.h"

namespace idempotency {

// A row of evidence.
struct KeptConflict {
  std::int32_t status_code = 0;
  absl::Time first_seen_at{};
  absl::Time last_seen_at{};
  std::int64_t count = 0;
};

// ---- What the statements do to one row: for whoever plays the database.

// The row that FinalizeOwned() leaves; nullopt: it is not touched.
std::optional<Record> FinalizedRow(const Record& stored,
                                   const FinalizeCommand& finalize,
                                   absl::Time now);
// The row that Replace() leaves; nullopt: the guard does not hold.
std::optional<Record> ReplacedRow(const Record& stored,
                                  const Replacement& replacement);
// What a sweep makes of a row.
enum class Swept { kStays, kParked, kDeleted };
Swept SweepOf(const Record& stored, absl::Time now);
// The row that a sweep parked.
Record ParkedRow(const Record& stored);
// The row with all its times moved back by `by`.
Record AgedRow(Record stored, absl::Duration by);
// Is the record no longer as it was seen? Null: there is no row.
bool IsChanged(const Record* stored, const Watched& watched, absl::Time now);

// Evidence by scope, key, claim token and digest of the refused response.
using ConflictId = std::tuple<std::string, std::string, Uuid, std::string>;
using KeptConflicts = std::map<ConflictId, KeptConflict>;

// KeepConflicts() for one refused response; `record`: the key's, or null.
// False: the bound was reached.
bool KeepConflict(KeptConflicts& kept, const Record* record,
                  const Conflict& conflict, absl::Time now);
// CountConflicts() for the record of `id`.
int CountConflictsOf(const KeptConflicts& kept, const RecordId& id,
                     const Record& record);
// SweepConflicts(): at most `limit` of those last seen before that time.
std::int64_t SweepConflictRows(KeptConflicts& kept, int limit,
                               absl::Time before);
// All evidence about `id`.
std::vector<KeptConflict> ConflictsAbout(const KeptConflicts& kept,
                                         const RecordId& id);

// The records of one imagined database, and its clock, which stands still
// until it is advanced. Any number of tables and sweepers may share it: they
// are the lanes of one or several replicas. Thread-safe.
class MemoryDatabase {
 public:
  // The clock starts at `start`, in whole microseconds; the rules hold the
  // policy `default` (30 s, at most 1 h, kept 24 h).
  explicit MemoryDatabase(
      absl::Time start = absl::FromUnixSeconds(1'800'000'000));

  absl::Time Now() const;
  // A negative `by` steps the clock back.
  void Advance(absl::Duration by);

  FleetRules rules() const;
  void SetRules(FleetRules rules);

  // How many bytes of bodies one read may answer with; the first record is
  // always read.
  void SetBodyBytesMax(std::size_t bytes);

  std::optional<Record> Find(const RecordId& id) const;
  std::size_t size() const;
  // Puts or replaces a record as it is.
  void Put(const RecordId& id, Record record);
  // Moves all times of the record back, as if `by` had passed for it alone.
  // False if there is none.
  bool Age(const RecordId& id, absl::Duration by);
  // The same for all evidence.
  void AgeConflicts(absl::Duration by);
  // The evidence about `id`.
  std::vector<KeptConflict> ConflictsOf(const RecordId& id) const;

 private:
  friend class MemoryTable;
  friend class MemorySweeper;

  mutable Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_);
  FleetRules rules_ ABSL_GUARDED_BY(mutex_);
  std::size_t body_bytes_max_ ABSL_GUARDED_BY(mutex_) =
      limits::kBodyGroupBytesMax;
  std::map<RecordId, Record> records_ ABSL_GUARDED_BY(mutex_);
  KeptConflicts conflicts_ ABSL_GUARDED_BY(mutex_);
};

enum class MemoryStatement {
  kInsertNew,
  kFinalizeOwned,
  kRead,
  kReplace,
  kKeepConflicts,
  kCountConflicts,
  kFindChanged,
  kReadRules,
  kSweepRecords,
  kSweepConflicts,
};

enum class StatementPhase {
  kBefore,       // nothing has happened yet
  kAfterCommit,  // it has happened, and nobody was told
};

// Called around each statement, without a lock, by the thread that runs it: it
// may use the database and other tables. What it returns, unless OK, is the
// statement's answer; before the statement that also keeps it from happening.
using StatementHook =
    std::function<absl::Status(MemoryStatement, StatementPhase)>;

// A lane's view of a MemoryDatabase, which must outlive it.
class MemoryTable final : public RecordTable {
 public:
  explicit MemoryTable(MemoryDatabase& database, StatementHook hook = nullptr);

  absl::StatusOr<std::vector<std::optional<absl::Time>>> InsertNew(
      Batch<ClaimCommand> claims) override;
  absl::StatusOr<std::vector<std::optional<absl::Time>>> FinalizeOwned(
      Batch<FinalizeCommand> finalizes) override;
  absl::StatusOr<Snapshot> Read(Batch<RecordId> ids,
                                ReadBodies bodies) override;
  absl::StatusOr<std::vector<bool>> Replace(
      Batch<Replacement> replacements) override;
  absl::StatusOr<std::vector<bool>> KeepConflicts(
      Batch<Conflict> conflicts) override;
  absl::StatusOr<std::vector<bool>> FindChanged(
      Batch<Watched> watched) override;
  absl::StatusOr<std::vector<int>> CountConflicts(Batch<RecordId> ids) override;
  absl::StatusOr<FleetRules> ReadRules() override;

 private:
  MemoryDatabase& database_;
  const StatementHook hook_;
};

// A replica's sweeper of a MemoryDatabase, which must outlive it. The hook
// sees SweepRecords between the choice of the rows and their deletion as
// kBefore: what changes then is not swept.
class MemorySweeper final : public Sweeper {
 public:
  explicit MemorySweeper(MemoryDatabase& database,
                         StatementHook hook = nullptr);

  absl::StatusOr<SweepReport> SweepRecords(int limit) override;
  absl::StatusOr<std::int64_t> SweepConflicts(int limit,
                                              absl::Duration kept_for) override;

 private:
  MemoryDatabase& database_;
  const StatementHook hook_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SUPPORT_MEMORY_TABLE_H_
