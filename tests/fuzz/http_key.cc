// Input: the values of the field Idempotency-Key, apart by U+001E; without a
// byte, the field was not sent.
#include <algorithm>
#include <optional>
#include <string>

#include "client/http/idempotency_key.h"
#include "tests/fuzz/check.h"

namespace idempotency {
namespace {

using fuzz::Require;

constexpr std::size_t kKeyBytesMax = 255;

absl::StatusOr<std::optional<std::string>> ParseOne(std::string_view value) {
  return ParseIdempotencyKey({&value, 1});
}

// As a String of RFC 8941.
std::string Quoted(std::string_view key) {
  std::string quoted = "\"";
  for (const char c : key) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

bool NeedsQuotes(std::string_view key) {
  return key.find_first_of(" \"\\,;") != std::string_view::npos;
}

void CheckAccepted(std::string_view value, const std::string& key) {
  Require(!key.empty() && key.size() <= kKeyBytesMax,
          "a key has 1 to 255 bytes");
  Require(std::all_of(key.begin(), key.end(),
                      [](unsigned char c) { return c >= ' ' && c <= '~'; }),
          "a key is printable ASCII");
  // So no two values are the same key, but for the quotation marks.
  Require(value == Quoted(key) || (value == key && !NeedsQuotes(key)),
          "the value is the key, bare or as a String, and nothing else");
  Require(*ParseOne(Quoted(key)) == key, "the key as a String is the key");
  if (!NeedsQuotes(key)) {
    Require(*ParseOne(key) == key, "bare and quoted are the same key");
  }
}

// Every key that may be sent is taken: one is made of the input.
void CheckComplete(std::string_view bytes) {
  std::string key;
  for (const char c : bytes.substr(0, kKeyBytesMax)) {
    constexpr int kPrintable = '~' - ' ' + 1;
    key += static_cast<char>(' ' + static_cast<unsigned char>(c) % kPrintable);
  }
  if (key.empty()) return;
  const auto parsed = ParseOne(Quoted(key));
  Require(parsed.ok() && **parsed == key,
          "every printable key of 1 to 255 bytes is read from its String");
}

void FuzzKey(std::string_view input) {
  const std::vector<std::string_view> values =
      input.empty() ? std::vector<std::string_view>()
                    : fuzz::Parts(input, input.size() + 1);
  const auto parsed = ParseIdempotencyKey(values);
  if (values.empty()) {
    Require(parsed.ok() && !parsed->has_value(), "no field, no key");
  } else if (parsed.ok()) {
    Require(parsed->has_value(), "a field that is read has a key");
    Require(values.size() == 1, "a field that is sent twice is refused");
    CheckAccepted(values.front(), **parsed);
  } else {
    Require(absl::IsInvalidArgument(parsed.status()),
            "a refusal is INVALID_ARGUMENT");
    constexpr std::size_t kLongerThanMessages = 100;
    Require(parsed.status().message().size() < kLongerThanMessages,
            "a refusal does not repeat the value");
  }
  CheckComplete(input);
}

}  // namespace
}  // namespace idempotency

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  idempotency::FuzzKey(idempotency::fuzz::Text(data, size));
  return 0;
}
