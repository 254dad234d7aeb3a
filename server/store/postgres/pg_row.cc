#include "server/store/postgres/pg_row.h"

#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include "server/store/postgres/pg_arrays.h"

namespace idempotency {
namespace {

constexpr std::int8_t kNoDigit = -1;

constexpr std::array<std::int8_t, 256> kHexDigits = [] {
  std::array<std::int8_t, 256> digits{};
  digits.fill(kNoDigit);
  for (int i = 0; i < 10; ++i) digits['0' + i] = static_cast<std::int8_t>(i);
  for (int i = 0; i < 6; ++i) {
    digits['a' + i] = static_cast<std::int8_t>(10 + i);
  }
  return digits;
}();

std::int8_t HexDigit(char c) {
  return kHexDigits[static_cast<unsigned char>(c)];
}

// The bytes of "\x0a1b"; nullopt for anything else.
std::optional<std::string> DecodeHex(std::string_view text) {
  if (text.size() % 2 != 0 || text.substr(0, 2) != "\\x") return std::nullopt;
  text.remove_prefix(2);
  std::string bytes(text.size() / 2, '\0');
  int seen = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const int high = HexDigit(text[2 * i]);
    const int low = HexDigit(text[2 * i + 1]);
    seen |= high | low;
    bytes[i] = static_cast<char>(high * 16 + low);
  }
  if (seen < 0) return std::nullopt;
  return bytes;
}

template <typename Int>
std::optional<Int> ParseInt(std::string_view text) {
  Int value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

// The value, or an empty one with `ok` made false.
template <typename Value>
Value Checked(std::optional<Value> value, bool& ok) {
  if (value.has_value()) return *std::move(value);
  ok = false;
  return Value{};
}

}  // namespace

pqxx::field PgRow::Field(int column) const {
  return row_[static_cast<pqxx::row::size_type>(column)];
}

bool PgRow::IsNull(int column) const { return Field(column).is_null(); }

std::string_view PgRow::Text(int column) {
  const pqxx::field field = Field(column);
  if (field.is_null()) {
    ok_ = false;
    return {};
  }
  return {field.c_str(), field.size()};
}

bool PgRow::Bool(int column) {
  const std::string_view text = Text(column);
  if (text != "t" && text != "f") ok_ = false;
  return text == "t";
}

std::int64_t PgRow::Int8(int column) {
  return Checked(ParseInt<std::int64_t>(Text(column)), ok_);
}

std::int32_t PgRow::Int4(int column) {
  return Checked(ParseInt<std::int32_t>(Text(column)), ok_);
}

Uuid PgRow::Id(int column) { return Checked(ParseUuid(Text(column)), ok_); }

std::string PgRow::Bytes(int column) {
  return Checked(DecodeHex(Text(column)), ok_);
}

absl::Time PgRow::Time(int column) {
  return Checked(DecodeBinaryTime(Bytes(column)), ok_);
}

std::optional<std::int64_t> PgRow::OptionalInt8(int column) {
  if (IsNull(column)) return std::nullopt;
  return Int8(column);
}

std::optional<std::string> PgRow::OptionalBytes(int column) {
  if (IsNull(column)) return std::nullopt;
  return Bytes(column);
}

}  // namespace idempotency
