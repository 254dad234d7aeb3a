#include "server/store/postgres/pg_arrays.h"

#include <limits>
#include <type_traits>
#include <utility>

namespace idempotency {
namespace {

// PostgreSQL counts microseconds from 2000-01-01.
constexpr std::int64_t kPostgresEpochUnixMicros = 946'684'800'000'000;

// Where the header's fields lie: dimensions, flags, element type, size of the
// dimension, its lower bound; 32 bits each.
constexpr std::size_t kDimensionsAt = 0;
constexpr std::size_t kFlagsAt = 4;
constexpr std::size_t kElementAt = 8;
constexpr std::size_t kSizeAt = 12;
constexpr std::size_t kLowerBoundAt = 16;
constexpr std::size_t kHeaderBytes = 20;

template <typename Int>
void AppendBigEndian(Int value, std::string& out) {
  const auto bits = static_cast<std::make_unsigned_t<Int>>(value);
  for (int shift = 8 * (static_cast<int>(sizeof(Int)) - 1); shift >= 0;
       shift -= 8) {
    out.push_back(static_cast<char>((bits >> shift) & 0xff));
  }
}

constexpr std::int64_t kInfinity = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMinusInfinity =
    std::numeric_limits<std::int64_t>::min();

void PutUint32(std::uint32_t value, std::size_t at, std::string& out) {
  std::string encoded;
  AppendBigEndian(value, encoded);
  out.replace(at, encoded.size(), encoded);
}

}  // namespace

ArrayWriter::ArrayWriter(Element element) : bytes_(kHeaderBytes, '\0') {
  PutUint32(static_cast<std::uint32_t>(element), kElementAt, bytes_);
  PutUint32(1, kLowerBoundAt, bytes_);
}

void ArrayWriter::AddSize(std::size_t size) {
  AppendBigEndian(static_cast<std::uint32_t>(size), bytes_);
  ++count_;
}

void ArrayWriter::AddBytes(std::string_view bytes) {
  AddSize(bytes.size());
  bytes_.append(bytes);
}

void ArrayWriter::AddBool(bool value) {
  AddSize(1);
  bytes_.push_back(value ? 1 : 0);
}

void ArrayWriter::AddInt2(std::int16_t value) {
  AddSize(sizeof(value));
  AppendBigEndian(value, bytes_);
}

void ArrayWriter::AddInt4(std::int32_t value) {
  AddSize(sizeof(value));
  AppendBigEndian(value, bytes_);
}

void ArrayWriter::AddInt8(std::int64_t value) {
  AddSize(sizeof(value));
  AppendBigEndian(value, bytes_);
}

void ArrayWriter::AddUuid(const Uuid& uuid) {
  AddSize(uuid.bytes.size());
  bytes_.append(uuid.bytes.begin(), uuid.bytes.end());
}

void ArrayWriter::AddTime(absl::Time time) {
  if (time == absl::InfiniteFuture()) {
    AddInt8(kInfinity);
  } else if (time == absl::InfinitePast()) {
    AddInt8(kMinusInfinity);
  } else {
    AddInt8(absl::ToUnixMicros(time) - kPostgresEpochUnixMicros);
  }
}

void ArrayWriter::AddNull() {
  has_null_ = true;
  AppendBigEndian(std::int32_t{-1}, bytes_);
  ++count_;
}

std::string ArrayWriter::Finish() && {
  if (count_ == 0) {
    // An empty array has no dimension.
    bytes_.resize(kSizeAt);
    return std::move(bytes_);
  }
  PutUint32(1, kDimensionsAt, bytes_);
  PutUint32(has_null_ ? 1 : 0, kFlagsAt, bytes_);
  PutUint32(count_, kSizeAt, bytes_);
  return std::move(bytes_);
}

ArrayWriter& BatchWriter::Next(ArrayWriter::Element element) {
  if (column_ == columns_.size()) columns_.emplace_back(element);
  return columns_[column_++];
}

void BatchWriter::Text(std::string_view text) {
  Next(ArrayWriter::Element::kText).AddBytes(text);
}

void BatchWriter::Bytes(std::string_view bytes) {
  Next(ArrayWriter::Element::kBytea).AddBytes(bytes);
}

void BatchWriter::OptionalBytes(const std::optional<std::string>& bytes) {
  if (bytes.has_value()) return Bytes(*bytes);
  Null(ArrayWriter::Element::kBytea);
}

void BatchWriter::Bool(bool value) {
  Next(ArrayWriter::Element::kBool).AddBool(value);
}

void BatchWriter::Int2(std::int16_t value) {
  Next(ArrayWriter::Element::kInt2).AddInt2(value);
}

void BatchWriter::Int4(std::int32_t value) {
  Next(ArrayWriter::Element::kInt4).AddInt4(value);
}

void BatchWriter::Int8(std::int64_t value) {
  Next(ArrayWriter::Element::kInt8).AddInt8(value);
}

void BatchWriter::Id(const Uuid& uuid) {
  Next(ArrayWriter::Element::kUuid).AddUuid(uuid);
}

void BatchWriter::Time(absl::Time time) {
  Next(ArrayWriter::Element::kTimestampTz).AddTime(time);
}

void BatchWriter::Micros(absl::Duration duration) {
  Int8(absl::ToInt64Microseconds(duration));
}

void BatchWriter::OptionalMicros(
    const std::optional<absl::Duration>& duration) {
  if (duration.has_value()) return Micros(*duration);
  Null(ArrayWriter::Element::kInt8);
}

void BatchWriter::Null(ArrayWriter::Element element) {
  Next(element).AddNull();
}

std::vector<std::string> BatchWriter::Finish() && {
  std::vector<std::string> parameters;
  parameters.reserve(columns_.size());
  for (ArrayWriter& column : columns_) {
    parameters.push_back(std::move(column).Finish());
  }
  return parameters;
}

std::string BinaryInt8(std::int64_t value) {
  std::string encoded;
  AppendBigEndian(value, encoded);
  return encoded;
}

std::string BinaryBool(bool value) { return std::string(1, value ? 1 : 0); }

std::optional<absl::Time> DecodeBinaryTime(std::string_view bytes) {
  if (bytes.size() != sizeof(std::int64_t)) return std::nullopt;
  std::uint64_t bits = 0;
  for (const char c : bytes) bits = bits << 8 | static_cast<unsigned char>(c);
  const auto micros = static_cast<std::int64_t>(bits);
  if (micros == kInfinity) return absl::InfiniteFuture();
  if (micros == kMinusInfinity) return absl::InfinitePast();
  return absl::FromUnixMicros(kPostgresEpochUnixMicros) +
         absl::Microseconds(micros);
}

}  // namespace idempotency
