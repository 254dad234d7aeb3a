#include "client/http/idempotency_key.h"

#include <cstddef>

#include "absl/status/status.h"

namespace idempotency {
namespace {

constexpr std::size_t kKeyBytesMax = 255;

bool IsPrintable(char c) { return c >= ' ' && c <= '~'; }

// `value` begins with a quotation mark.
absl::StatusOr<std::string> ReadString(std::string_view value) {
  std::string key;
  for (std::size_t i = 1; i < value.size(); ++i) {
    if (value[i] == '"') {
      if (i + 1 == value.size()) return key;
      return absl::InvalidArgumentError(
          "it goes on after the closing quotation mark");
    }
    if (!IsPrintable(value[i])) {
      return absl::InvalidArgumentError("it is not printable ASCII");
    }
    if (value[i] == '\\' &&
        (++i == value.size() || (value[i] != '"' && value[i] != '\\'))) {
      return absl::InvalidArgumentError(
          "a backslash stands before something else than \\ and \"");
    }
    key += value[i];
  }
  return absl::InvalidArgumentError("its closing quotation mark is missing");
}

absl::StatusOr<std::string> ReadBare(std::string_view value) {
  for (const char c : value) {
    if (!IsPrintable(c)) {
      return absl::InvalidArgumentError("it is not printable ASCII");
    }
    if (c == ' ' || c == '"' || c == '\\' || c == ',' || c == ';') {
      return absl::InvalidArgumentError(
          "it needs quotation marks, or is more than one");
    }
  }
  return std::string(value);
}

}  // namespace

absl::StatusOr<std::optional<std::string>> ParseIdempotencyKey(
    std::span<const std::string_view> values) {
  if (values.empty()) return std::nullopt;
  if (values.size() > 1) {
    return absl::InvalidArgumentError("it was sent more than once");
  }
  const std::string_view value = values.front();
  absl::StatusOr<std::string> key =
      value.starts_with('"') ? ReadString(value) : ReadBare(value);
  if (!key.ok()) return key.status();
  if (key->empty()) return absl::InvalidArgumentError("it is empty");
  if (key->size() > kKeyBytesMax) {
    return absl::InvalidArgumentError("it has more than 255 characters");
  }
  return *std::move(key);
}

}  // namespace idempotency
