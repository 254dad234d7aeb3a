// Unary gRPC calls over one plain-text HTTP/2 connection, without gRPC: a
// gRPC client takes 22 to 35 us of CPU for each call, this takes a fifth of
// that, so that a load generator does not measure itself.
#ifndef TESTS_BENCHMARK_HTTP2_CONNECTION_H_
#define TESTS_BENCHMARK_HTTP2_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct nghttp2_session;

namespace idempotency::benchmark {

// One call on its way. The caller owns it, fills the first three members, keeps
// them unchanged until the call is done, and may then use the object again.
struct Call {
  std::string_view path;             // "/package.Service/Method"
  std::string_view request;          // the message with gRPC's 5-byte prefix
  std::string_view idempotency_key;  // the metadata of that name; empty: none

  // The answer; valid once the call is done.
  std::string response;  // with gRPC's prefix; empty if there was no message
  std::string grpc_message;
  int http_status = 0;
  int grpc_status = -1;       // -1: the server sent none
  uint32_t stream_error = 0;  // HTTP/2 error code of the stream, 0: none
  size_t request_bytes_sent = 0;
};

// Not thread-safe: one thread owns the connection and drives it by calling
// OnReadable and OnWritable when its socket is ready.
class Http2Connection {
 public:
  // Runs inside OnReadable for each call that is done; may call Start.
  using DoneFunction = std::function<void(Call&)>;

  // Connects to an IPv4 `host`:`port`; blocks until the kernel has connected.
  // `timeout` is the deadline of every call as gRPC writes it: "20S", "500m".
  static absl::StatusOr<std::unique_ptr<Http2Connection>> Connect(
      const std::string& host, uint16_t port, const std::string& timeout,
      DoneFunction done);

  ~Http2Connection();
  Http2Connection(const Http2Connection&) = delete;
  Http2Connection& operator=(const Http2Connection&) = delete;

  int fd() const { return fd_; }

  // Queues `call`; Flush, OnReadable or OnWritable puts it on the wire.
  absl::Status Start(Call* call);

  // Writes what is queued, as far as the socket takes it.
  absl::Status Flush();

  // Reads once, finishes the calls whose answers are complete, then flushes.
  // An error means that the connection is of no more use; the calls that were
  // on it are never reported as done.
  absl::Status OnReadable();
  absl::Status OnWritable() { return Flush(); }

  // True while the socket did not take everything: wait for it to be writable.
  bool wants_write() const { return written_ < output_.size(); }

 private:
  friend struct SessionCallbacks;

  Http2Connection(int fd, std::string authority, std::string timeout,
                  DoneFunction done);
  absl::Status Open();

  int fd_;
  std::string authority_;
  std::string timeout_;
  DoneFunction done_;
  nghttp2_session* session_ = nullptr;
  std::string output_;  // serialised frames; the first written_ bytes are sent
  size_t written_ = 0;
  std::string input_;
};

}  // namespace idempotency::benchmark

#endif  // TESTS_BENCHMARK_HTTP2_CONNECTION_H_
