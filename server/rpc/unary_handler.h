// How gRPC calls the service's unary methods.
#ifndef IDEMPOTENCY_SERVER_RPC_UNARY_HANDLER_H_
#define IDEMPOTENCY_SERVER_RPC_UNARY_HANDLER_H_

#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <utility>

#include "idempotency/v1/idempotency.grpc.pb.h"

namespace idempotency {

// The handler that gRPC's generated code installs answers a message that can't
// be parsed with UNIMPLEMENTED, which clients take for a server without the
// method. This one answers it with `unparsable` and is otherwise the same.
template <typename Request, typename Response>
class UnaryHandler final : public grpc::internal::MethodHandler {
 public:
  using Method = std::function<grpc::ServerUnaryReactor*(
      grpc::CallbackServerContext*, const Request*, Response*)>;

  UnaryHandler(Method method, grpc::Status unparsable)
      : carry_out_(std::move(method)),
        refuse_([unparsable = std::move(unparsable)](
                    grpc::CallbackServerContext* context, const Request*,
                    Response*) {
          grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
          reactor->Finish(unparsable);
          return reactor;
        }) {}

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
