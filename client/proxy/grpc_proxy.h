// The sidecar's gRPC half: stands before a gRPC service in any language and
// makes each unary call that has a key, the metadata "idempotency-key", once.
//
//   auto proxy = idempotency::GrpcProxy::Start(
//       {.listen = "127.0.0.1:8081", .upstream = "127.0.0.1:8080"},
//       {{.methods = "/shop.Payments/Charge",
//         .rule = {.scope = "payments", .policy = "payment"}}},
//       idempotency::RunOnce::Connect("127.0.0.1:50051"));
//
// Calls without a key, and those of methods that no route names, go through
// both ways as they are: any kind of stream, metadata, status, deadline and
// cancellation.
//
// A call with a key has one message and gets one. A retry sends the same bytes:
// of a message with maps, keep them, or serialise deterministically. Request
// hash and record are those of once_call.h and recorded_call.h: what a service
// of the wrapper (once_method.h) has recorded is replayed here, and the
// reverse. The caller's deadline and cancellation do not reach the service:
// what runs, runs on, for the route's `timeout` at most, and is recorded. The
// service is told about its attempt in metadata: upstream_headers.h.
//
//   what becomes of the call to the service      what is done
//   there is no connection to it                 given back: nothing happened
//   its status                                   recorded, if the policy
//                                                records a status like that
//   CANCELLED; and UNKNOWN, DEADLINE_EXCEEDED,   the outcome is unknown, and
//     RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE  the next attempt is told
//     without details, as gRPC says when it
//     loses sight of a call, or when its reply
//     is too long
//
// What gRPC says of a call with a key that it lost sight of, the rule's
// `notice` gets; the caller is told the code, and nothing of the addresses that
// gRPC may name. Calls that go through get gRPC's own words.
#ifndef IDEMPOTENCY_CLIENT_PROXY_GRPC_PROXY_H_
#define IDEMPOTENCY_CLIENT_PROXY_GRPC_PROXY_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/grpc/once_call.h"
#include "client/run_once.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace idempotency {

struct GrpcRoute {
  // "/package.Service/Method", "/package.Service/*" or "/*": of several that
  // fit, the first of these kinds counts.
  std::string methods;
  OnceRule rule;  // its max_run_time unset: as long as the call may take
  // The service resolves what an earlier attempt left: it is asked, with
  // idempotency-abandoned, also where the record is held, and its answer
  // counts. Otherwise such a call is answered IN_DOUBT.
  bool resolves = false;
  // How long the service may take, up to a day.
  std::chrono::milliseconds timeout{60'000};
};

struct GrpcProxyOptions {
  std::string listen = "127.0.0.1:0";
  std::shared_ptr<grpc::ServerCredentials> credentials = nullptr;  // null: none
  // A gRPC name of the service.
  std::string upstream;
  std::shared_ptr<grpc::ChannelCredentials> upstream_credentials = nullptr;
  // How long a call with a key waits for a connection to be made.
  std::chrono::milliseconds connect_timeout{5'000};
  // The longest messages from callers, and from the service.
  int request_bytes_max = 4 << 20;
  int response_bytes_max = 16 << 20;
  // Calls at a time; more are answered UNAVAILABLE. Memory is bounded by this
  // times both lengths, some times over while they are copied: choose them by
  // what there is. A call counts until its caller has taken the answer, has
  // hung up (one whose connection is dead, after 80 s) or is past its deadline.
  std::size_t calls_max = 1'000;
};

// Thread-safe.
class GrpcProxy {
 public:
  // Listens and takes calls at once. An address that can't be listened on and a
  // route that says nothing sensible are errors.
  static absl::StatusOr<std::unique_ptr<GrpcProxy>> Start(
      const GrpcProxyOptions& options, std::vector<GrpcRoute> routes,
      std::shared_ptr<RunOnce> once);

  // Drain() without grace.
  ~GrpcProxy();
  GrpcProxy(const GrpcProxy&) = delete;
  GrpcProxy& operator=(const GrpcProxy&) = delete;

  int port() const;

  // For calls from now on; upon an error, the old ones stay.
  absl::Status SetRoutes(std::vector<GrpcRoute> routes);

  // Takes no more calls, lets those in hand end within `grace`, then cancels
  // them, those to the service too: outcomes that are then unknown are settled
  // by `once`, which is to be destroyed after this. Once.
  void Drain(std::chrono::milliseconds grace);

 private:
  struct Impl;
  explicit GrpcProxy(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_PROXY_GRPC_PROXY_H_
