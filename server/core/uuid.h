// 128-bit identifiers: claim tokens, downstream keys and their namespace.
#ifndef IDEMPOTENCY_SERVER_CORE_UUID_H_
#define IDEMPOTENCY_SERVER_CORE_UUID_H_

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace idempotency {

struct Uuid {
  std::array<std::uint8_t, 16> bytes{};

  auto operator<=>(const Uuid&) const = default;

  bool is_nil() const { return *this == Uuid{}; }
  // All bits set (RFC 9562, section 5.10).
  bool is_max() const;
};

// Reads the 8-4-4-4-12 form in hexadecimal digits of either case; nothing
// else, so no braces, no "urn:uuid:" and no blanks.
std::optional<Uuid> ParseUuid(std::string_view text);

// The 8-4-4-4-12 form in lower case.
std::string FormatUuid(const Uuid& uuid);

// The name-based UUID of RFC 9562, section 5.5 (version 5, SHA-1).
Uuid NameBasedUuid(const Uuid& name_space, std::string_view name);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_UUID_H_
