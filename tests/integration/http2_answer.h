// Tells when a gRPC server has answered, from the bytes it sent.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_HTTP2_ANSWER_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_HTTP2_ANSWER_H_

#include <cstddef>
#include <string_view>

namespace idempotency {

// Whether `reply`, which begins with a frame, holds one that ends a stream:
// the trailers of a call.
inline bool EndsAStream(std::string_view reply) {
  constexpr std::size_t kFrameHeaderBytes = 9;
  constexpr char kHeadersFrame = 1;
  constexpr unsigned kEndStream = 1;
  while (reply.size() >= kFrameHeaderBytes) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      length = length * 256 + static_cast<unsigned char>(reply[i]);
    }
    if (reply.size() < kFrameHeaderBytes + length) return false;
    const auto flags = static_cast<unsigned char>(reply[4]);
    if (reply[3] == kHeadersFrame && (flags & kEndStream) != 0) return true;
    reply.remove_prefix(kFrameHeaderBytes + length);
  }
  return false;
}

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_HTTP2_ANSWER_H_
