// What the middleware does with the requests of one route.
#ifndef IDEMPOTENCY_CLIENT_HTTP_ROUTE_H_
#define IDEMPOTENCY_CLIENT_HTTP_ROUTE_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/http/fingerprint.h"
#include "client/http/request.h"

namespace idempotency {

struct HttpRoute {
  // Whose keys these are: one scope for each operation, "payments/create".
  std::string scope;
  std::string policy = {};  // empty: the scope's
  std::string owner = {};   // this process, for people: pod, host

  // Who sends the request: a tenant, an account. Two callers may then send the
  // same key and never meet: the scope becomes "scope/caller". Names that a
  // scope cannot hold, or of more than 64 characters, appear there as a digest.
  // Null, or an empty name: the route's scope alone. Has to be set where
  // callers do not trust each other. Runs in the calling thread; if it throws,
  // the answer is 500 misconfigured.
  //
  // With it the route's scope has at most 56 bytes, and no other route has a
  // scope below it: the caller `refunds` of the route `payments` is the route
  // `payments/refunds`.
  std::function<std::string(const HttpRequest&)> caller = nullptr;

  // Whether a request without a key is refused with 400, or its handler runs
  // unguarded. Safe methods (GET, HEAD, OPTIONS, TRACE) always run unguarded.
  bool required = false;
  // What happens when the coordinator cannot be asked: 503, and the handler
  // does not run. True: it runs unguarded, and `notice` of the middleware is
  // told. Only for operations that may be executed twice: nothing is recorded
  // of it, and a retry runs anew, perhaps beside it. It also opens when this
  // process has as many operations under way as RunOnceOptions allows.
  bool fail_open = false;

  // What tells a retry from another request with the same key.
  HttpFingerprint fingerprint = {};

  // Response headers, by name in any case, that are recorded although they are
  // usually not (see recorded_headers.h), and those that are not recorded
  // although they usually are. The first caller gets all of them.
  std::vector<std::string> headers_recorded = {};
  std::vector<std::string> headers_left_out = {};
  // A longer body is recorded without: a retry is answered 410, and `notice` is
  // told. Bodies are also left out, which nobody is told of, above the
  // `body_bytes_max` of the client (ClientOptions) and above what the
  // coordinator keeps; each is 1 MiB unless set otherwise.
  std::size_t body_bytes_max = std::size_t{1} << 20;

  std::string key_header = "Idempotency-Key";
  // Marks what was recorded earlier with "true". "X-Idempotent-Replayed" is
  // another that is in use.
  std::string replayed_header = "Idempotent-Replayed";

  // As in Operation. A request that waits for another one's end holds its
  // thread meanwhile, if it has one.
  std::chrono::milliseconds wait{0};
  std::optional<std::chrono::milliseconds> lease = std::nullopt;
  std::optional<std::chrono::milliseconds> max_run_time = std::nullopt;
  std::chrono::milliseconds claim_timeout{5'000};
  std::chrono::milliseconds finalize_timeout{5'000};
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_HTTP_ROUTE_H_
