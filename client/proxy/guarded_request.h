// A request with a key on its way to the HTTP service. For http_connection.cc.
#ifndef IDEMPOTENCY_CLIENT_PROXY_GUARDED_REQUEST_H_
#define IDEMPOTENCY_CLIENT_PROXY_GUARDED_REQUEST_H_

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "client/execution.h"
#include "client/http/middleware.h"
#include "client/http/problem.h"
#include "client/proxy/http_wire.h"
#include "client/proxy/socket.h"

namespace idempotency::internal {

// Of one thread. What it is given must outlive it.
class GuardedRequest {
 public:
  struct Options {
    const HostAndPort& upstream;
    const Alarm& cut;
    std::chrono::milliseconds connect_timeout;
    std::chrono::milliseconds timeout;
    // Of the answer; more is left in rest().
    std::size_t body_bytes_max;
  };

  GuardedRequest(const Options& options, const RequestHead& head,
                 std::string_view body)
      : options_(options), head_(head), body_(body) {}

  // A handler of the middleware. `execution` is null for a request that runs
  // unguarded.
  HttpResult Send(Execution* execution);

  enum class State { kNotSent, kAnswered, kFailed };
  State state() const { return state_; }

  // Of an answer that is longer: what was read of it, and where the rest is.
  const ResponseHead& response_head() const { return response_head_; }
  const std::string& beginning() const { return beginning_; }
  UpstreamStream& rest() { return *stream_; }

 private:
  HttpResult Fail(const Problem& problem, HttpEffect effect,
                  std::string_view detail);
  HttpResult FailFor(const absl::Status& error);
  // Whether the whole request was taken.
  absl::Status Write(Execution* execution);
  // Reads until the end, or until there is more than is recorded.
  absl::Status ReadBody(bool& whole);

  const Options options_;
  const RequestHead& head_;
  const std::string_view body_;
  State state_ = State::kNotSent;
  std::optional<UpstreamStream> stream_;
  ResponseHead response_head_;
  std::string beginning_;
};

}  // namespace idempotency::internal

#endif  // IDEMPOTENCY_CLIENT_PROXY_GUARDED_REQUEST_H_
