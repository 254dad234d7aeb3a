// HTTP/1.1 messages over sockets, with bodies that pass by: the caller's
// connection, and a call to the service behind the sidecar. The only user of
// Boost.Beast besides socket.h.
//
// Errors of all functions: DEADLINE_EXCEEDED; CANCELLED once the sidecar cuts
// its connections; INVALID_ARGUMENT for what is no HTTP, RESOURCE_EXHAUSTED for
// a head that is too long; UNAVAILABLE where the connection is lost or ends
// before it should.
#ifndef IDEMPOTENCY_CLIENT_PROXY_HTTP_WIRE_H_
#define IDEMPOTENCY_CLIENT_PROXY_HTTP_WIRE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/proxy/socket.h"

namespace idempotency::internal {

// Request line, or status line, and headers together.
inline constexpr std::size_t kHeadBytesMax = 64 * 1024;

// Header fields in the order in which they were received.
using Fields = std::vector<std::pair<std::string, std::string>>;

// What follows a head. Neither length nor chunks: of a request, nothing; of a
// response, bytes until the connection ends.
struct Framing {
  std::optional<std::uint64_t> length = std::nullopt;
  bool chunked = false;
};

struct HttpHead {
  Fields fields;
  Framing framing = {};
};

struct RequestHead : HttpHead {
  std::string method;
  std::string target;
  bool keep_alive = true;
  // HTTP/1.0 knows no chunks.
  bool knows_chunks = true;

  bool has_body() const {
    return framing.chunked || framing.length.value_or(0) > 0;
  }
};

struct ResponseHead : HttpHead {
  int status = 0;
  // None for an answer to HEAD and for 204 and 304, whatever `framing` says.
  bool has_body = true;
};

// A connection that a caller made. Of one thread. Requests come one after the
// other, also when they were sent ahead.
class CallerStream {
 public:
  explicit CallerStream(Socket socket);
  ~CallerStream();
  CallerStream(const CallerStream&) = delete;
  CallerStream& operator=(const CallerStream&) = delete;

  // The next request, for whose first byte it waits until `idle` is over or
  // `stop` rings. Nothing: it does not come.
  absl::StatusOr<std::optional<RequestHead>> ReadHead(
      std::chrono::milliseconds idle, std::chrono::milliseconds timeout,
      const Alarm& stop);
  // Of what follows: reads and writes.
  void SetDeadline(Socket::TimePoint deadline);

  absl::Status SendContinue();
  // Some bytes of the body, at least one; none at its end.
  absl::StatusOr<std::size_t> ReadBody(std::span<char> bytes);

  absl::Status WriteHead(const ResponseHead& head, bool keep_alive);
  absl::Status WriteBody(std::string_view bytes);
  absl::Status EndBody();

  void CloseGently();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

// One request to the service, over a connection of its own. Of one thread.
class UpstreamStream {
 public:
  explicit UpstreamStream(Socket socket);
  ~UpstreamStream();
  UpstreamStream(const UpstreamStream&) = delete;
  UpstreamStream& operator=(const UpstreamStream&) = delete;

  void SetDeadline(Socket::TimePoint deadline);

  absl::Status WriteHead(const RequestHead& head);
  absl::Status WriteBody(std::string_view bytes);
  absl::Status EndBody();

  // The first answer that is final: a 100 or 103 is passed over.
  absl::StatusOr<ResponseHead> ReadHead();
  absl::StatusOr<std::size_t> ReadBody(std::span<char> bytes);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace idempotency::internal

#endif  // IDEMPOTENCY_CLIENT_PROXY_HTTP_WIRE_H_
