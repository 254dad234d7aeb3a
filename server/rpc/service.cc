#include "server/rpc/service.h"

#include <google/protobuf/descriptor.h>

#include <memory>
#include <string>
#include <string_view>

#include "server/rpc/status.h"
#include "server/rpc/unary_handler.h"
#include "server/rpc/validation.h"
#include "server/rpc/wire_calls.h"

namespace idempotency {
namespace {

int MethodIndex(std::string_view name) {
  const google::protobuf::ServiceDescriptor* service =
      v1::BulkRequest::descriptor()->file()->FindServiceByName(
          "IdempotencyService");
  return service->FindMethodByName(std::string(name))->index();
}

}  // namespace

Service::Service(const ServiceOptions& options, const ServiceParts& parts)
    : decider_(options, parts),
      budget_(options.reply_bytes_max, parts.metrics.reply_bytes),
      streams_({.decider = decider_,
                .budget = budget_,
                .metrics = parts.metrics.bulk,
                .done = nullptr},
               options.bulk_age_max, parts.random) {
  Install<ClaimWire>();
  Install<FinalizeWire>();
  Install<LookupWire>();
  Install<ReleaseWire>();
  InstallBulk();
}

template <typename Wire>
void Service::Install() {
  using Request = typename Wire::Request;
  using Response = typename Wire::Response;
  MarkMethodCallback(MethodIndex(CallName(Wire::kKind)),
                     new UnaryHandler<Request, Response>(
                         [this](grpc::CallbackServerContext* context,
                                const Request* request, Response* response) {
                           return Start<Wire>(context, request, response);
                         },
                         [this](grpc::CallbackServerContext* context,
                                const Request*, Response*) {
                           return RefuseUnparsable(Wire::kKind, context);
                         }));
}

void Service::InstallBulk() {
  MarkMethodCallback(MethodIndex("Bulk"),
                     new grpc::internal::CallbackBidiHandler<grpc::ByteBuffer,
                                                             grpc::ByteBuffer>(
                         [this](grpc::CallbackServerContext* context) {
                           return streams_.Open(context);
                         }));
}

grpc::ServerUnaryReactor* Service::RefuseUnparsable(
    CallKind kind, grpc::CallbackServerContext* context) const {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(EndWith(
      decider_.Refuse(decider_.Start(kind), UnparsableMessage()), *context));
  return reactor;
}

}  // namespace idempotency
