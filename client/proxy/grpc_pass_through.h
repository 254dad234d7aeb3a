// A call without a key: gone through as it is, both ways. For grpc_proxy.cc.
#ifndef IDEMPOTENCY_CLIENT_PROXY_GRPC_PASS_THROUGH_H_
#define IDEMPOTENCY_CLIENT_PROXY_GRPC_PASS_THROUGH_H_

#include <memory>

#include "client/mutex.h"
#include "client/proxy/grpc_upstream.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/support/client_callback.h"

namespace idempotency::internal {

// Deletes itself when gRPC is done with both calls, the caller's and the one to
// the service.
//
// Holds one message each way: the next one is read when gRPC has taken the last
// one for sending, so that flow control goes through too. The service's call
// has the caller's deadline and is cancelled with the caller's.
//
// Threads: gRPC's. What the caller's side asks of the service's call outside of
// that call's own reactions is covered by a hold of it, one for each direction:
// downwards until the service has sent its last message, upwards until then and
// while no message is on its way up.
class GrpcPassThrough final {
 public:
  // What to return of CreateReactor(). `slot` is kept as long as the calls.
  static grpc::ServerGenericBidiReactor* Start(
      std::shared_ptr<GrpcUpstream> upstream, std::shared_ptr<void> slot,
      grpc::GenericCallbackServerContext& context);

 private:
  class CallerSide;
  class ServiceSide;

  GrpcPassThrough(std::shared_ptr<GrpcUpstream> upstream,
                  std::shared_ptr<void> slot,
                  grpc::GenericCallbackServerContext& context);
  ~GrpcPassThrough();

  // One of the two calls is done.
  void SideDone();

  const std::shared_ptr<GrpcUpstream> upstream_;
  const std::shared_ptr<void> slot_;
  grpc::GenericCallbackServerContext& caller_context_;
  grpc::ClientContext service_context_;
  const std::unique_ptr<CallerSide> caller_;
  const std::unique_ptr<ServiceSide> service_;
  // On its way up, and on its way down.
  grpc::ByteBuffer up_;
  grpc::ByteBuffer down_;

  Mutex mutex_;
  int sides_ ABSL_GUARDED_BY(mutex_) = 2;
};

}  // namespace idempotency::internal

#endif  // IDEMPOTENCY_CLIENT_PROXY_GRPC_PASS_THROUGH_H_
