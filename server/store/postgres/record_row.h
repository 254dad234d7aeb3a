// A record as a row of kReadRecords and as the arrays of kReplace.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_RECORD_ROW_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_RECORD_ROW_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/record_table.h"
#include "server/core/types.h"
#include "server/store/postgres/pg_arrays.h"
#include "server/store/postgres/pg_row.h"
#include "server/store/postgres/statement_runner.h"

namespace idempotency {

// Enumerators as the smallint columns hold them.
template <typename Enum>
std::int16_t StoredEnum(Enum value) {
  return static_cast<std::int16_t>(value);
}

// How many columns kReadRecords has.
inline constexpr int kReadColumns = 45;

struct StoredRecord {
  absl::Time now{};  // of the read
  RecordId id{};
  Record record{};
  // The record has a body of this size that is not in `record`.
  std::size_t left_out_body_bytes = 0;
};

// The record of one row. RECORD_CORRUPT for one that the coordinator does not
// write: unknown numbers, or columns that contradict each other. `with_bodies`
// says what was asked for.
absl::StatusOr<StoredRecord> ReadStoredRecord(pqxx::row row, bool with_bodies);

// The name in a row of kReadRecords, whatever state the rest is in.
RecordId ReadStoredId(const pqxx::row& row);

// The parameters of kReplace.
Parameters ReplaceParameters(Batch<Replacement> replacements);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_RECORD_ROW_H_
