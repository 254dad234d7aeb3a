// The dumps of a round's tables, as transitions.sql says they are taken: COPY
// in text format with a header line. Columns are found by name; one that is
// unknown or missing is refused, and so is a value that cannot be understood.
#ifndef IDEMPOTENCY_TESTS_FAULT_CHECKER_DUMP_H_
#define IDEMPOTENCY_TESTS_FAULT_CHECKER_DUMP_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/types.h"

namespace idempotency::fault {

// `record.response.body` is not the body but a digest of headers and body as
// they are stored; `record.response.headers` is empty.
struct StoredRow {
  RecordId id{};
  absl::Time at{};  // when it was written down
  Record record{};
};

enum class ChangeKind { kInsert, kUpdate, kDelete };

// A line of fault_transitions. Of a deletion, `row` is what was deleted.
struct Change {
  std::int64_t seq = 0;
  ChangeKind kind = ChangeKind::kInsert;
  std::int64_t old_version = 0;  // 0: an insert
  StoredRow row{};
};

// Each reads a whole file and gives its lines to `use` in the file's order.
// Errors name file and line.
absl::Status ReadTransitions(const std::string& path,
                             absl::FunctionRef<void(Change)> use);
absl::Status ReadRecords(const std::string& path,
                         absl::FunctionRef<void(StoredRow)> use);
absl::Status ReadConflicts(const std::string& path,
                           absl::FunctionRef<void(Conflict)> use);

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CHECKER_DUMP_H_
