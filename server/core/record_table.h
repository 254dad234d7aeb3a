// The few statements that a table of records must offer. OptimisticStore
// builds the batch contract on them, so that PostgreSQL and the in-memory
// table of the tests share every decision and differ only in these.
#ifndef IDEMPOTENCY_SERVER_CORE_RECORD_TABLE_H_
#define IDEMPOTENCY_SERVER_CORE_RECORD_TABLE_H_

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/store.h"
#include "server/core/types.h"

namespace idempotency {

// Replace `id`'s record, if it still has the claim token, fencing token and
// version of `before`, by `after`. The response is left as it is when both
// are final.
struct Replacement {
  const RecordId* id = nullptr;
  const Record* before = nullptr;
  const Record* after = nullptr;
};

struct ReadRow {
  // False when the answer would have grown too large: read it again later.
  bool read = false;
  std::optional<Record> record{};
  // RECORD_CORRUPT when the stored row is none that the coordinator writes.
  // `read` is false then, too.
  absl::Status status{};
};

struct Snapshot {
  // The database's clock when the statement began; no record in `rows` is
  // older than that.
  absl::Time now{};
  std::vector<ReadRow> rows{};
};

enum class ReadBodies { kNo, kYes };

// Where nothing was changed, for whatever reason: nullopt.
using Times = std::vector<std::optional<absl::Time>>;

struct InsertedAndFinalized {
  absl::StatusOr<Times> granted;
  absl::StatusOr<Times> expiries;
};

// Not thread-safe. Each function is one statement that is committed by itself
// (or a bounded few): it happens wholly or not at all. Items have pairwise
// distinct ids and are sorted by id; answers have the same size and order.
// A non-OK status is about the whole statement and has the codes that store.h
// gives to an item's answer.
class RecordTable {
 public:
  virtual ~RecordTable() = default;

  // Inserts NewRecord(claim, now) where there is no row, expired or not.
  // Answers the database time of each grant; nullopt where there is a row.
  // REQUIRES: MayCreate() for every claim.
  virtual absl::StatusOr<Times> InsertNew(Batch<ClaimCommand> claims) = 0;

  // Records the responses that DecideFinalize() would record, checking the
  // owner in the same statement. Answers the new expiry; nullopt where
  // nothing was changed, for whatever reason.
  virtual absl::StatusOr<Times> FinalizeOwned(
      Batch<FinalizeCommand> finalizes) = 0;

  // InsertNew() and FinalizeOwned() at the price of one, where a table can do
  // that. No id is in both.
  virtual InsertedAndFinalized InsertAndFinalize(
      Batch<ClaimCommand> claims, Batch<FinalizeCommand> finalizes) {
    return {.granted = InsertNew(claims), .expiries = FinalizeOwned(finalizes)};
  }

  // Without bodies, the headers' and body's bytes are empty.
  virtual absl::StatusOr<Snapshot> Read(Batch<RecordId> ids,
                                        ReadBodies bodies) = 0;

  // True where the record was replaced, false where it had changed or gone.
  virtual absl::StatusOr<std::vector<bool>> Replace(
      Batch<Replacement> replacements) = 0;

  // Keeps refused responses, at most kConflictsPerRecordMax a record; a row
  // that exists is counted up. False where the bound was reached.
  virtual absl::StatusOr<std::vector<bool>> KeepConflicts(
      Batch<Conflict> conflicts) = 0;

  // True where the record is gone, has another version or a lease that is
  // over.
  virtual absl::StatusOr<std::vector<bool>> FindChanged(
      Batch<Watched> watched) = 0;

  // How many different responses of the record's life were refused.
  virtual absl::StatusOr<std::vector<int>> CountConflicts(
      Batch<RecordId> ids) = 0;

  virtual absl::StatusOr<FleetRules> ReadRules() = 0;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_RECORD_TABLE_H_
