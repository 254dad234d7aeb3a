// Arrays and numbers in PostgreSQL's binary format, as parameters of a
// statement. A batch is one array a column, which unnest() turns into rows.
// Binary, so that no byte of a key needs an escape.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_PG_ARRAYS_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_PG_ARRAYS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "server/core/uuid.h"

namespace idempotency {

// Writes one one-dimensional array. The functions that add an element are
// those of its type; each call of an Add function adds one element.
class ArrayWriter {
 public:
  // PostgreSQL's fixed numbers of the element types.
  enum class Element : std::uint32_t {
    kBool = 16,
    kBytea = 17,
    kInt8 = 20,
    kInt2 = 21,
    kInt4 = 23,
    kText = 25,
    kTimestampTz = 1184,
    kUuid = 2950,
  };

  explicit ArrayWriter(Element element);

  // For kText, which must be UTF-8 without NUL, and kBytea.
  void AddBytes(std::string_view bytes);
  void AddBool(bool value);
  void AddInt2(std::int16_t value);
  void AddInt4(std::int32_t value);
  void AddInt8(std::int64_t value);
  void AddUuid(const Uuid& uuid);
  // Whole microseconds, rounded down. The infinite times are PostgreSQL's.
  void AddTime(absl::Time time);
  void AddNull();

  // The array's bytes. The writer is used up.
  std::string Finish() &&;

 private:
  void AddSize(std::size_t size);

  std::string bytes_;
  std::uint32_t count_ = 0;
  bool has_null_ = false;
};

// Writes a batch row by row, each value into the array of its column. Every
// row writes the same columns in the same order and ends with EndRow().
class BatchWriter {
 public:
  void Text(std::string_view text);
  void Bytes(std::string_view bytes);
  // nullopt: NULL.
  void OptionalBytes(const std::optional<std::string>& bytes);
  void Bool(bool value);
  void Int2(std::int16_t value);
  void Int4(std::int32_t value);
  void Int8(std::int64_t value);
  void Id(const Uuid& uuid);
  void Time(absl::Time time);
  // As bigint.
  void Micros(absl::Duration duration);
  void OptionalMicros(const std::optional<absl::Duration>& duration);
  void Null(ArrayWriter::Element element);

  void EndRow() { column_ = 0; }

  // One array a column. The writer is used up.
  std::vector<std::string> Finish() &&;

 private:
  ArrayWriter& Next(ArrayWriter::Element element);

  std::vector<ArrayWriter> columns_;
  std::size_t column_ = 0;
};

// Parameters of type bigint and boolean.
std::string BinaryInt8(std::int64_t value);
std::string BinaryBool(bool value);

// What timestamptz_send() gives; nullopt for anything but 8 bytes.
std::optional<absl::Time> DecodeBinaryTime(std::string_view bytes);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_PG_ARRAYS_H_
