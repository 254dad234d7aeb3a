// HTTP in front of RunOnce: a request goes in, its handler runs once for its
// Idempotency-Key, and a response comes out. Knows no framework;
// httplib_adapter.h puts it before the handlers of cpp-httplib.
//
//   idempotency::HttpMiddleware middleware(*once);
//   const idempotency::HttpRoute route{.scope = "payments", .required = true};
//   v1::Response response = middleware.Handle(
//       request, route, [&](idempotency::Execution* execution) {
//         return idempotency::HttpResult{idempotency::MakeResponse(
//             201, wallet.Charge(amount, execution->downstream_key()))};
//       });
//
// What is answered, beside the handler's own response:
//
//   the key               the answer
//   missing, not required the handler runs unguarded: `execution` is null
//   missing, required     400 key-missing
//   malformed, repeated   400 key-malformed
//   another request's     422 key-reused
//   under way             409 in-progress, Retry-After
//   in doubt              the resolver's, or 409 in-doubt; not the handler
//   done before           the recorded status, headers and body, marked
//     without its headers likewise, and Idempotent-Headers-Omitted: true
//     without its body    likewise if the status has none; else 410
//                         response-not-kept
//   taken over meanwhile  the response that counts, marked, or 409 superseded;
//                         never the handler's own
//   no coordinator        503 unavailable, Retry-After; where the route fails
//                         open the handler runs unguarded
//   handler threw, or the 500 outcome-unknown; the next one is told
//     response cannot be
//     recorded
//   its record is corrupt 500 outcome-unknown; not the handler
//   not for this route    500 misconfigured
#ifndef IDEMPOTENCY_CLIENT_HTTP_MIDDLEWARE_H_
#define IDEMPOTENCY_CLIENT_HTTP_MIDDLEWARE_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "client/execution.h"
#include "client/http/problem.h"
#include "client/http/request.h"
#include "client/http/route.h"
#include "client/operation.h"
#include "client/run_once.h"
#include "idempotency/v1/idempotency.pb.h"

namespace idempotency {

// What a handler did, beside what it answers.
enum class HttpEffect {
  // It executed: the response is recorded. A status of 500 and above is not,
  // unless the policy says so: the next one is told.
  kExecuted,
  // Nothing: the response is only for this caller, a retry runs anew. For
  // what was refused before anything was done: 401, 429, 503.
  kNothing,
  // Perhaps something: the response is only for this caller, the next one is
  // told.
  kUnknown,
};

struct HttpResult {
  v1::Response response;
  HttpEffect effect = HttpEffect::kExecuted;
};

// `execution` is null where the request runs unguarded: without a key, with a
// safe method, or because the route fails open. Else it tells attempt,
// downstream key and what was abandoned.
using HttpHandler = std::function<HttpResult(Execution* execution)>;
// As the resolver of RunOnce; of WasExecuted the response is recorded like a
// handler's.
using HttpResolver = std::function<Resolution(Execution& execution)>;

// Returns soon, and gives the result to `answer` from any thread. The first
// answer counts; if every copy of `answer` is gone without one, or the function
// throws, it is 500 outcome-unknown.
using AsyncHttpHandler =
    std::function<void(std::shared_ptr<Execution> execution,
                       std::function<void(HttpResult)> answer)>;

// Whether such a request needs the coordinator, or is refused for its key; any
// other runs unguarded whatever its body is, which need not be read before.
bool IsGuarded(const HttpRequest& request, const HttpRoute& route);

// What somebody has to know of. `scope` is the record's; no key, no body.
struct HttpNotice {
  enum class Kind {
    kRanUnguarded,    // the coordinator could not be asked, and it failed open
    kUnavailable,     // likewise, and it was answered 503
    kMisconfigured,   // the coordinator does not take such a request, or the
                      // route's `caller` threw
    kBodyNotKept,     // a response was recorded without its body
    kOutcomeUnknown,  // the handler threw, its response was not recordable, or
                      // the record is corrupt (DATA_LOSS)
    kSuperseded,      // it ran, but another attempt's response counts
    kNotRecorded,     // a response was answered before the coordinator had
                      // confirmed it. It is sent on for one lease; how that
                      // ends is not told
  };
  Kind kind;
  std::string scope;
  // May quote what a handler threw.
  absl::Status why;
};

struct HttpMiddlewareOptions {
  // Before the name of each problem's type.
  std::string problem_type_prefix = "urn:idempotency:";
  // Called beside the request, from any thread; must not block for long. What
  // it throws is dropped. Null: a line to standard error, without what handlers
  // threw.
  std::function<void(const HttpNotice&)> notice = nullptr;
};

// Thread-safe.
class HttpMiddleware {
 public:
  // `once` must outlive it, and every request that was started.
  explicit HttpMiddleware(RunOnce& once, HttpMiddlewareOptions options = {});

  // A problem as this object words it, for what an adapter refuses itself.
  v1::Response Refuse(const Problem& problem,
                      std::string_view detail = "") const;

  // Blocks until there is a response. Handler and resolver run in the calling
  // thread, as in RunOnce::Run; the operation is settled also if nobody is
  // there any more to take the response. What an unguarded handler throws is
  // thrown. `body_omitted` is set only in a response of the handler's own; a
  // resolver's without its body is 410 response-not-kept.
  v1::Response Handle(const HttpRequest& request, const HttpRoute& route,
                      const HttpHandler& handler,
                      const HttpResolver& resolve = nullptr);

  // The same without a thread for each request, as RunOnce::Start: `done` is
  // called once, in the executor or, for a request that runs unguarded or is
  // refused by its key, in the calling thread. `route` need not outlive the
  // call. Null where nothing can be hung up.
  std::unique_ptr<Running> Start(const HttpRequest& request,
                                 const HttpRoute& route,
                                 AsyncHttpHandler handler,
                                 std::function<void(v1::Response)> done,
                                 AsyncResolver resolve = nullptr);

 private:
  RunOnce& once_;
  const std::shared_ptr<const HttpMiddlewareOptions> options_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_HTTP_MIDDLEWARE_H_
