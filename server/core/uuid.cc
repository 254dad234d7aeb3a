#include "server/core/uuid.h"

#include <openssl/evp.h>

#include <algorithm>

namespace idempotency {
namespace {

constexpr char kHexDigits[] = "0123456789abcdef";

bool IsDashPosition(std::size_t position) {
  return position == 8 || position == 13 || position == 18 || position == 23;
}

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

bool Uuid::is_max() const {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](std::uint8_t byte) { return byte == 0xff; });
}

std::optional<Uuid> ParseUuid(std::string_view text) {
  if (text.size() != 36) return std::nullopt;
  Uuid uuid;
  std::size_t digits = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (IsDashPosition(i)) {
      if (text[i] != '-') return std::nullopt;
      continue;
    }
    const int value = HexValue(text[i]);
    if (value < 0) return std::nullopt;
    std::uint8_t& byte = uuid.bytes[digits / 2];
    byte = static_cast<std::uint8_t>(byte << 4 | value);
    ++digits;
  }
  return uuid;
}

std::string FormatUuid(const Uuid& uuid) {
  std::string text;
  text.reserve(36);
  for (const std::uint8_t byte : uuid.bytes) {
    if (IsDashPosition(text.size())) text.push_back('-');
    text.push_back(kHexDigits[byte >> 4]);
    text.push_back(kHexDigits[byte & 0xf]);
  }
  return text;
}

Uuid NameBasedUuid(const Uuid& name_space, std::string_view name) {
  std::string input(reinterpret_cast<const char*>(name_space.bytes.data()),
                    name_space.bytes.size());
  input.append(name);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  // Looked up once: OpenSSL 3 takes locks to look it up.
  static const EVP_MD* const sha1 = EVP_MD_fetch(nullptr, "SHA1", nullptr);
  EVP_Digest(input.data(), input.size(), digest.data(), nullptr, sha1, nullptr);
  Uuid uuid;
  std::copy_n(digest.begin(), uuid.bytes.size(), uuid.bytes.begin());
  uuid.bytes[6] = static_cast<std::uint8_t>((uuid.bytes[6] & 0x0f) | 0x50);
  uuid.bytes[8] = static_cast<std::uint8_t>((uuid.bytes[8] & 0x3f) | 0x80);
  return uuid;
}

}  // namespace idempotency
