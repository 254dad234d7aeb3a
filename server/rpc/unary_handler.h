// How gRPC calls the service's unary methods.
#ifndef IDEMPOTENCY_SERVER_RPC_UNARY_HANDLER_H_
#define IDEMPOTENCY_SERVER_RPC_UNARY_HANDLER_H_

#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <utility>

#include "idempotency/v1/idempotency.grpc.pb.h"

namespace idempotency {

// The handler that gRPC's generated code installs answers a message that can't
// be parsed with UNIMPLEMENTED, which clients take for a server without the
// method. This one gives it to `refuse`, which is not to look at the message,
// and is otherwise the same.
template <typename Request, typename Response>
class UnaryHandler final : public grpc::internal::MethodHandler {
 public:
  using Method = std::function<grpc::ServerUnaryReactor*(
      grpc::CallbackServerContext*, const Request*, Response*)>;

  UnaryHandler(Method carry_out, Method refuse)
      : carry_out_(std::move(carry_out)), refuse_(std::move(refuse)) {}

  void RunHandler(const HandlerParameter& call) override {
    if (call.status.ok()) return carry_out_.RunHandler(call);
    refuse_.RunHandler(HandlerParameter(
        call.call, call.server_context, call.request, grpc::Status::OK,
        call.internal_data, call.call_requester));
  }

  void* Deserialize(grpc_call* call, grpc_byte_buffer* bytes,
                    grpc::Status* status, void** handler_data) override {
    return carry_out_.Deserialize(call, bytes, status, handler_data);
  }

 private:
  using Handler = grpc::internal::CallbackUnaryHandler<Request, Response>;

  Handler carry_out_;
  Handler refuse_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_UNARY_HANDLER_H_
