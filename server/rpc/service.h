// The calls of idempotency.v1.IdempotencyService. Each goes to the engine, by
// way of the Decider, and is answered from there: no thread of gRPC ever waits
// for the store.
#ifndef IDEMPOTENCY_SERVER_RPC_SERVICE_H_
#define IDEMPOTENCY_SERVER_RPC_SERVICE_H_

#include <grpcpp/support/server_callback.h>

#include "idempotency/v1/idempotency.grpc.pb.h"
#include "server/core/metrics.h"
#include "server/rpc/bulk_streams.h"
#include "server/rpc/decider.h"
#include "server/rpc/options.h"
#include "server/rpc/reply_budget.h"
#include "server/rpc/unary_call.h"

namespace idempotency {

// Thread-safe; must outlive the grpc::Server that it is registered with.
class Service final : public v1::IdempotencyService::CallbackService {
 public:
  Service(const ServiceOptions& options, const ServiceParts& parts);

  // Begins a call, as gRPC does by a handler that stands in for the generated
  // method.
  template <typename Wire>
  grpc::ServerUnaryReactor* Start(grpc::CallbackServerContext* context,
                                  const typename Wire::Request* request,
                                  typename Wire::Response* response) {
    auto* const call =
        new UnaryCall<Wire>(decider_, budget_, *context, *request, *response);
    call->Start();
    return call;
  }

  // Bulk is served without the generated code's method for it.
  BulkStreams& streams() { return streams_; }

 private:
  // Put a handler of the service's own in place of the generated one.
  template <typename Wire>
  void Install();
  void InstallBulk();
  grpc::ServerUnaryReactor* RefuseUnparsable(
      CallKind kind, grpc::CallbackServerContext* context) const;

  const Decider decider_;
  ReplyBudget budget_;
  BulkStreams streams_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_SERVICE_H_
