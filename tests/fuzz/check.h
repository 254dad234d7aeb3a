// What every fuzz target needs: a claim that ends the process when it does not
// hold, and an input cut into parts.
#ifndef IDEMPOTENCY_TESTS_FUZZ_CHECK_H_
#define IDEMPOTENCY_TESTS_FUZZ_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace idempotency::fuzz {

// libFuzzer keeps the input that led here. `claim` says what should be true.
inline void Require(bool holds, const char* claim) {
  if (holds) return;
  std::fprintf(stderr, "DOES NOT HOLD: %s\n", claim);
  std::abort();
}

inline std::string_view Text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// U+001E stands between the parts: text editors leave it alone, and no JSON,
// URL or key holds it. Of at most `parts_max` parts, the last is the rest.
inline std::vector<std::string_view> Parts(std::string_view input,
                                           std::size_t parts_max) {
  constexpr char kSeparator = '\x1e';
  std::vector<std::string_view> parts;
  while (parts.size() + 1 < parts_max) {
    const std::size_t end = input.find(kSeparator);
    if (end == std::string_view::npos) break;
    parts.push_back(input.substr(0, end));
    input.remove_prefix(end + 1);
  }
  parts.push_back(input);
  return parts;
}

// The same, filled up with empty parts.
inline std::vector<std::string_view> ExactlyParts(std::string_view input,
                                                  std::size_t count) {
  std::vector<std::string_view> parts = Parts(input, count);
  parts.resize(count);
  return parts;
}

}  // namespace idempotency::fuzz

#endif  // IDEMPOTENCY_TESTS_FUZZ_CHECK_H_
