// Reads the fields of one row of an answer, in the forms that the statements
// ask for.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_PG_ROW_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_PG_ROW_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "server/core/uuid.h"
#include "server/store/postgres/pqxx_compat.h"

namespace idempotency {

// A field of another form than the one asked for, or NULL where a value is
// needed, gives an empty value and makes ok() false for good: one check after
// a whole row is enough. The row's result must live as long as the reader and
// the views it gave.
class PgRow {
 public:
  explicit PgRow(pqxx::row row) : row_(std::move(row)) {}

  bool ok() const { return ok_; }

  bool IsNull(int column) const;
  std::string_view Text(int column);
  bool Bool(int column);
  std::int64_t Int8(int column);
  std::int32_t Int4(int column);
  Uuid Id(int column);
  // Of a bytea, in hexadecimal form.
  std::string Bytes(int column);
  // Of timestamptz_send(): exact, knows infinity, and cheaper for PostgreSQL
  // than any other form.
  absl::Time Time(int column);

  std::optional<std::int64_t> OptionalInt8(int column);
  std::optional<std::string> OptionalBytes(int column);

 private:
  pqxx::field Field(int column) const;

  pqxx::row row_;
  bool ok_ = true;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_PG_ROW_H_
