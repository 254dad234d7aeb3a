// The middleware before handlers of cpp-httplib. All of it is in this header,
// so that it is compiled with the switches that the program's httplib has.
//
//   idempotency::HttplibGuard guard(middleware);
//   server.Post("/payments", guard.Wrap({.scope = "payments",
//                                        .policy = "payment",
//                                        .required = true},
//       [&](const httplib::Request& request, httplib::Response& response,
//           idempotency::Execution* execution) {
//         response.status = 201;
//         response.set_content(
//             wallet.Charge(request.body, execution->downstream_key()),
//             "application/json");
//         return idempotency::HttpEffect::kExecuted;
//       }));
//
// A client that hangs up changes nothing: the handler runs to its end and its
// response is recorded.
//
// What cpp-httplib does before this code sees a request:
//   - It decodes %XX in header values, so that the keys "%41" and "A" are one.
//   - It takes a multipart body apart. Hashed are then the content type
//     "multipart/form-data" and a body of each part's name, file name, content
//     type and content, each after its length as 8 bytes, big-endian; parts
//     of one name in the order in which they were sent, the names sorted. A
//     retry may so have another boundary.
//   - It decompresses a body: hashed is the content.
//   - Old versions drop a header without a value: such a key is missing.
//   - Server::set_payload_max_length() bounds the body; in old versions it
//     does not bound one that is sent in chunks.
//
// A response with a content provider (streamed, chunked, a file) is recorded
// without its body: a retry is answered 410 response-not-kept.
#ifndef IDEMPOTENCY_CLIENT_HTTP_HTTPLIB_ADAPTER_H_
#define IDEMPOTENCY_CLIENT_HTTP_HTTPLIB_ADAPTER_H_

#include <httplib.h>

#include <functional>

#include "client/execution.h"
#include "client/http/middleware.h"
#include "client/http/route.h"
#include "client/operation.h"

namespace idempotency {

// Thread-safe. Must outlive the server, as must the middleware.
class HttplibGuard {
 public:
  // As httplib::Server::Handler. `execution`: see HttpHandler.
  using Handler = std::function<HttpEffect(const httplib::Request& request,
                                           httplib::Response& response,
                                           Execution* execution)>;
  using Resolver =
      std::function<Resolution(const httplib::Request&, Execution&)>;

  explicit HttplibGuard(HttpMiddleware& middleware) : middleware_(middleware) {}

  // For Server::Post, Put, Patch and Delete. The handler runs in the server's
  // thread.
  httplib::Server::Handler Wrap(HttpRoute route, Handler handler,
                                Resolver resolve = nullptr);
  // For a handler that exists and asks for nothing: all that returns was
  // executed.
  httplib::Server::Handler Wrap(HttpRoute route,
                                httplib::Server::Handler handler);

 private:
  HttpMiddleware& middleware_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_HTTP_HTTPLIB_ADAPTER_H_
