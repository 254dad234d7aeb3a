// The sidecar's HTTP half: stands before an HTTP service in any language and
// makes each request with a key once, as the middleware does
// (client/http/middleware.h).
//
//   the request                          what becomes of it
//   of no route, or without a key that   goes through as it is, both ways, and
//     the route does not require           is not held in memory
//   with a key, or without one that is   the middleware's answer; the service
//     required                             is told in headers, see
//                                          upstream_headers.h
//
// What becomes of the service's answer to a request with a key:
//
//   there is no connection to it         503 upstream-unreachable, and the key
//                                          is given back: nothing happened
//   it comes                             recorded, if the policy records a
//                                          status like that
//   longer than is recorded              the caller gets it whole; a retry is
//                                          answered 410
//   the connection ends, or it is no     502 upstream-lost; the outcome is
//     HTTP                                 unknown, and the next attempt is
//     told
//   it does not come in time             504 upstream-timeout, likewise
//
// An answer without a length that ends early looks like one that is whole.
//
// Not done: TLS, CONNECT, Upgrade (WebSocket), trailers. The service's answer
// is read when it has the whole request, or takes no more of it. Each request
// has a connection of its own to the service, so that an old one that ends is
// not taken for an answer that was lost.
#ifndef IDEMPOTENCY_CLIENT_PROXY_HTTP_PROXY_H_
#define IDEMPOTENCY_CLIENT_PROXY_HTTP_PROXY_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/http/middleware.h"
#include "client/proxy/rules.h"
#include "client/run_once.h"

namespace idempotency {

// How a request was answered.
enum class ProxyAnswer {
  kPassed,     // by the service, without a key
  kExecuted,   // by the service, once
  kUnguarded,  // by the service, which may be asked again: it failed open
  kReplayed,   // with what was recorded
  kRefused,    // by the sidecar; the service was not asked
  kFailed,     // by the sidecar; the service could not be asked, or its answer
               // did not come
};

struct HttpProxyOptions {
  std::string listen = "127.0.0.1:0";
  std::string upstream;  // host:port
  std::chrono::milliseconds connect_timeout{5'000};
  // How long a caller may take for a head, and for the body of a request with a
  // key.
  std::chrono::milliseconds request_timeout{30'000};
  // How long a connection is kept without a request.
  std::chrono::milliseconds idle_timeout{60'000};
  // How long a request without a key may stand still.
  std::chrono::milliseconds stream_timeout{300'000};
  // Of a request with a key.
  std::size_t request_bytes_max = std::size_t{8} << 20;
  std::size_t connections_max = 512;

  // Called beside the requests, from any thread; must not block for long.
  std::function<void(ProxyAnswer, const std::string& scope)> answered;
  std::function<void(const HttpNotice&)> notice;
};

// Thread-safe.
class HttpProxy {
 public:
  // Listens and takes requests at once. INVALID_ARGUMENT for what is no
  // address, UNAVAILABLE for one that can't be listened on.
  static absl::StatusOr<std::unique_ptr<HttpProxy>> Start(
      HttpProxyOptions options, std::shared_ptr<const ProxyRules> rules,
      std::shared_ptr<RunOnce> once);

  // Drain() without grace.
  ~HttpProxy();
  HttpProxy(const HttpProxy&) = delete;
  HttpProxy& operator=(const HttpProxy&) = delete;

  int port() const;
  std::size_t connections() const;

  // For requests from now on.
  void SetRules(std::shared_ptr<const ProxyRules> rules);

  // Takes no more requests, lets those in hand end within `grace`, then cuts
  // them, those to the service too: what is then unknown is settled before this
  // returns. A request that waits for another one's end does that to its end.
  void Drain(std::chrono::milliseconds grace);

 private:
  struct Impl;
  explicit HttpProxy(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_PROXY_HTTP_PROXY_H_
