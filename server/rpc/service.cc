#include "server/rpc/service.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "server/core/errors.h"
#include "server/rpc/conversion.h"
#include "server/rpc/status.h"
#include "server/rpc/unary_handler.h"
#include "server/rpc/validation.h"

namespace idempotency {

Service::Service(const ServiceOptions& options, const ServiceParts& parts)
    : options_(options), parts_(parts) {
  Install("Claim", &Service::Claim);
  Install("Finalize", &Service::Finalize);
  Install("Lookup", &Service::Lookup);
  Install("Release", &Service::Release);
}

template <typename Request, typename Response>
void Service::Install(
    const char* name,
    grpc::ServerUnaryReactor* (Service::*method)(grpc::CallbackServerContext*,
                                                 const Request*, Response*)) {
  const absl::Status unparsable = MakeError(
      Reason::kInternal, "the message can't be parsed; strings must be UTF-8");
  const google::protobuf::ServiceDescriptor* service =
      Request::descriptor()->file()->FindServiceByName("IdempotencyService");
  const int index = service->FindMethodByName(name)->index();
  MarkMethodCallback(
      index, new UnaryHandler<Request, Response>(
                 [this, method](grpc::CallbackServerContext* context,
                                const Request* request, Response* response) {
                   return (this->*method)(context, request, response);
                 },
                 ToErrorReply(unparsable, 0).status));
}

grpc::ServerUnaryReactor* Service::Claim(grpc::CallbackServerContext* context,
                                         const v1::ClaimRequest* request,
                                         v1::ClaimResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::StatusOr<ClaimCommand> command = ValidateClaim(*request);
  if (!command.ok()) return Finish(context, reactor, command.status());
  parts_.engine.Submit(
      *std::move(command),
      ContextOf(context, absl::ToChronoNanoseconds(WaitOf(*request))),
      [=, this](absl::StatusOr<ClaimOutcome> outcome) {
        Finish(context, reactor,
               Write(std::move(outcome), *request, *response));
      });
  return reactor;
}

grpc::ServerUnaryReactor* Service::Finalize(
    grpc::CallbackServerContext* context, const v1::FinalizeRequest* request,
    v1::FinalizeResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::StatusOr<FinalizeCommand> command =
      ValidateFinalize(*request, options_.body_bytes_max);
  if (!command.ok()) return Finish(context, reactor, command.status());
  parts_.engine.Submit(*std::move(command), ContextOf(context, {}),
                       [=, this](absl::StatusOr<FinalizeOutcome> outcome) {
                         if (outcome.ok()) ToProto(*outcome, *response);
                         Finish(context, reactor, outcome.status());
                       });
  return reactor;
}

grpc::ServerUnaryReactor* Service::Lookup(grpc::CallbackServerContext* context,
                                          const v1::LookupRequest* request,
                                          v1::LookupResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::StatusOr<LookupCommand> command = ValidateLookup(*request);
  if (!command.ok()) return Finish(context, reactor, command.status());
  parts_.engine.Submit(*std::move(command), ContextOf(context, {}),
                       [=, this](absl::StatusOr<LookupOutcome> outcome) {
                         Finish(context, reactor,
                                Write(std::move(outcome), *request, *response));
                       });
  return reactor;
}

grpc::ServerUnaryReactor* Service::Release(grpc::CallbackServerContext* context,
                                           const v1::ReleaseRequest* request,
                                           v1::ReleaseResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::StatusOr<ReleaseCommand> command = ValidateRelease(*request);
  if (!command.ok()) return Finish(context, reactor, command.status());
  parts_.engine.Submit(*std::move(command), ContextOf(context, {}),
                       [=, this](absl::StatusOr<ReleaseOutcome> outcome) {
                         if (outcome.ok()) ToProto(*outcome, *response);
                         Finish(context, reactor, outcome.status());
                       });
  return reactor;
}

CallContext Service::ContextOf(const grpc::CallbackServerContext* context,
                               std::chrono::nanoseconds wait) const {
  return {.deadline =
              AnswerBy(context->deadline(), std::chrono::system_clock::now(),
                       parts_.clock.Now(), options_.deadline_max + wait),
          .cancelled = [context] { return context->IsCancelled(); }};
}

template <typename Outcome, typename Request, typename Response>
absl::Status Service::Write(absl::StatusOr<Outcome> outcome,
                            const Request& request, Response& response) const {
  if (!outcome.ok()) return outcome.status();
  const absl::StatusOr<Uuid> name_space = DownstreamNamespace();
  if (!name_space.ok()) return name_space.status();
  return ToProto(*std::move(outcome),
                 {.id = {.scope = request.scope(), .key = request.key()},
                  .downstream_namespace = *name_space,
                  .random = parts_.random()},
                 response);
}

absl::StatusOr<Uuid> Service::DownstreamNamespace() const {
  if (options_.downstream_namespace.has_value()) {
    return *options_.downstream_namespace;
  }
  const std::shared_ptr<const FleetRules> rules = parts_.rules.Get();
  if (rules == nullptr) {
    return MakeError(Reason::kStoreUnavailable,
                     "the fleet's rules have not been read yet");
  }
  return rules->downstream_namespace;
}

grpc::ServerUnaryReactor* Service::Finish(grpc::CallbackServerContext* context,
                                          grpc::ServerUnaryReactor* reactor,
                                          const absl::Status& status) const {
  if (status.ok()) {
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  if (IsFault(status)) {
    parts_.log.Write(Severity::kError,
                     "a call failed through no fault of its caller",
                     ErrorField(status));
  }
  const ErrorReply reply = ToErrorReply(status, parts_.random());
  if (reply.pushback.has_value()) {
    context->AddTrailingMetadata(kPushbackTrailer,
                                 std::to_string(reply.pushback->count()));
  }
  reactor->Finish(reply.status);
  return reactor;
}

SteadyTime AnswerBy(std::chrono::system_clock::time_point deadline,
                    std::chrono::system_clock::time_point system_now,
                    SteadyTime steady_now, std::chrono::nanoseconds longest) {
  return steady_now +
         std::min<std::chrono::nanoseconds>(deadline - system_now, longest);
}

}  // namespace idempotency
