// A response's headers as one string of bytes, in order and with duplicates:
// each is its name and its value, both framed as in digest.h.
#ifndef IDEMPOTENCY_SERVER_CORE_HEADER_CODEC_H_
#define IDEMPOTENCY_SERVER_CORE_HEADER_CODEC_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace idempotency {

struct HeaderView {
  std::string_view name;
  std::string_view value;

  bool operator==(const HeaderView&) const = default;
};

void AppendHeader(const HeaderView& header, std::string& encoded);

// Views into `encoded`; nullopt when it was not made by AppendHeader.
std::optional<std::vector<HeaderView>> DecodeHeaders(std::string_view encoded);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_HEADER_CODEC_H_
