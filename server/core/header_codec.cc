#include "server/core/header_codec.h"

#include <cstddef>
#include <cstdint>

#include "server/core/digest.h"

namespace idempotency {
namespace {

// Takes one framed part off the front of `encoded`.
std::optional<std::string_view> TakeFramed(std::string_view& encoded) {
  constexpr std::size_t kFrame = 8;
  if (encoded.size() < kFrame) return std::nullopt;
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < kFrame; ++i) {
    size = size << 8 | static_cast<unsigned char>(encoded[i]);
  }
  encoded.remove_prefix(kFrame);
  if (size > encoded.size()) return std::nullopt;
  const std::string_view part = encoded.substr(0, size);
  encoded.remove_prefix(size);
  return part;
}

}  // namespace

void AppendHeader(const HeaderView& header, std::string& encoded) {
  AppendFramed(header.name, encoded);
  AppendFramed(header.value, encoded);
}

std::optional<std::vector<HeaderView>> DecodeHeaders(std::string_view encoded) {
  std::vector<HeaderView> headers;
  while (!encoded.empty()) {
    const std::optional<std::string_view> name = TakeFramed(encoded);
    if (!name.has_value()) return std::nullopt;
    const std::optional<std::string_view> value = TakeFramed(encoded);
    if (!value.has_value()) return std::nullopt;
    headers.push_back({*name, *value});
  }
  return headers;
}

}  // namespace idempotency
