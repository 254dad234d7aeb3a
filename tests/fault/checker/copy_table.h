// PostgreSQL's COPY ... TO STDOUT (FORMAT text, HEADER), with timezone UTC and
// datestyle ISO.
#ifndef IDEMPOTENCY_TESTS_FAULT_CHECKER_COPY_TABLE_H_
#define IDEMPOTENCY_TESTS_FAULT_CHECKER_COPY_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/core/uuid.h"

namespace idempotency::fault {

// One line. A value that is not what is asked for reads as a default, and
// makes ok() false.
class CopyRow {
 public:
  // `fields`: the raw text of each column.
  CopyRow(std::span<const std::string_view> columns,
          std::span<const std::string_view> fields)
      : columns_(columns), fields_(fields) {}

  bool IsNull(std::size_t column) const { return fields_[column] == "\\N"; }
  std::string Text(std::size_t column);
  std::string Bytes(std::size_t column);
  std::int64_t Int(std::size_t column);
  bool Bool(std::size_t column);
  Uuid Id(std::size_t column);
  absl::Time Time(std::size_t column);  // "infinity": InfiniteFuture()

  void Refuse(std::size_t column);
  bool ok() const { return problem_.empty(); }
  const std::string& problem() const { return problem_; }

 private:
  const std::span<const std::string_view> columns_;
  const std::span<const std::string_view> fields_;
  std::string problem_{};
};

// Gives every line of the file to `use`, its fields in the order of `columns`.
// Stops at the first row that is not ok() afterwards. The file's header has to
// name exactly these columns, in any order.
absl::Status ReadCopy(const std::string& path,
                      std::span<const std::string_view> columns,
                      absl::FunctionRef<void(CopyRow&)> use);

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CHECKER_COPY_TABLE_H_
