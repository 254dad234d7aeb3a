#include "server/rpc/service.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "server/core/errors.h"
#include "server/core/limits.h"
#include "server/rpc/conversion.h"
#include "server/rpc/status.h"
#include "server/rpc/unary_handler.h"
#include "server/rpc/validation.h"

namespace idempotency {

Service::Service(const ServiceOptions& options, const ServiceParts& parts)
    : options_(options), parts_(parts) {
  Install(CallKind::kClaim, &Service::Claim);
  Install(CallKind::kFinalize, &Service::Finalize);
  Install(CallKind::kLookup, &Service::Lookup);
  Install(CallKind::kRelease, &Service::Release);
}

template <typename Request, typename Response>
void Service::Install(
    CallKind kind,
    grpc::ServerUnaryReactor* (Service::*method)(grpc::CallbackServerContext*,
                                                 const Request*, Response*)) {
  const absl::Status unparsable = MakeError(
      Reason::kInternal, "the message can't be parsed; strings must be UTF-8");
  const google::protobuf::ServiceDescriptor* service =
      Request::descriptor()->file()->FindServiceByName("IdempotencyService");
  const int index =
      service->FindMethodByName(std::string(CallName(kind)))->index();
  MarkMethodCallback(
      index, new UnaryHandler<Request, Response>(
                 [this, method](grpc::CallbackServerContext* context,
                                const Request* request, Response* response) {
                   return (this->*method)(context, request, response);
                 },
                 [this, kind, unparsable](grpc::CallbackServerContext* context,
                                          const Request*, Response*) {
                   return Refuse(Start(kind, context), unparsable);
                 }));
}

Service::Started Service::Start(CallKind kind,
                                grpc::CallbackServerContext* context) const {
  CallMetrics& counts = parts_.metrics.Of(kind);
  Count(counts.started);
  return {.context = context,
          .reactor = context->DefaultReactor(),
          .counts = &counts,
          .at = parts_.clock.Now()};
}

grpc::ServerUnaryReactor* Service::Claim(grpc::CallbackServerContext* context,
                                         const v1::ClaimRequest* request,
                                         v1::ClaimResponse* response) {
  const Started call = Start(CallKind::kClaim, context);
  absl::StatusOr<ClaimCommand> command = ValidateClaim(*request);
  if (!command.ok()) return Finish(call, command.status());
  parts_.engine.Submit(
      *std::move(command),
      ContextOf(call, absl::ToChronoNanoseconds(WaitOf(*request))),
      [=, this](absl::StatusOr<ClaimOutcome> outcome) {
        Finish(call, Write(std::move(outcome), *request, *response));
      });
  return call.reactor;
}

grpc::ServerUnaryReactor* Service::Finalize(
    grpc::CallbackServerContext* context, const v1::FinalizeRequest* request,
    v1::FinalizeResponse* response) {
  const Started call = Start(CallKind::kFinalize, context);
  absl::StatusOr<FinalizeCommand> command =
      ValidateFinalize(*request, options_.body_bytes_max);
  if (!command.ok()) return Finish(call, command.status());
  parts_.engine.Submit(*std::move(command), ContextOf(call, {}),
                       [=, this](absl::StatusOr<FinalizeOutcome> outcome) {
                         if (outcome.ok()) ToProto(*outcome, *response);
                         Finish(call, outcome.status());
                       });
  return call.reactor;
}

grpc::ServerUnaryReactor* Service::Lookup(grpc::CallbackServerContext* context,
                                          const v1::LookupRequest* request,
                                          v1::LookupResponse* response) {
  const Started call = Start(CallKind::kLookup, context);
  absl::StatusOr<LookupCommand> command = ValidateLookup(*request);
  if (!command.ok()) return Finish(call, command.status());
  parts_.engine.Submit(*std::move(command), ContextOf(call, {}),
                       [=, this](absl::StatusOr<LookupOutcome> outcome) {
                         Finish(call,
                                Write(std::move(outcome), *request, *response));
                       });
  return call.reactor;
}

grpc::ServerUnaryReactor* Service::Release(grpc::CallbackServerContext* context,
                                           const v1::ReleaseRequest* request,
                                           v1::ReleaseResponse* response) {
  const Started call = Start(CallKind::kRelease, context);
  absl::StatusOr<ReleaseCommand> command = ValidateRelease(*request);
  if (!command.ok()) return Finish(call, command.status());
  parts_.engine.Submit(*std::move(command), ContextOf(call, {}),
                       [=, this](absl::StatusOr<ReleaseOutcome> outcome) {
                         if (outcome.ok()) ToProto(*outcome, *response);
                         Finish(call, outcome.status());
                       });
  return call.reactor;
}

CallContext Service::ContextOf(const Started& call,
                               std::chrono::nanoseconds wait) const {
  CallContext context{
      .deadline =
          AnswerBy(call.context->deadline(), std::chrono::system_clock::now(),
                   call.at, options_.deadline_max + wait),
      .cancelled = [context = call.context] { return context->IsCancelled(); }};
  if (wait.count() > 0) {
    context.wait_until = std::min<SteadyTime>(
        call.at + wait, context.deadline - limits::kWaitMargin);
  }
  return context;
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

grpc::ServerUnaryReactor* Service::Finish(const Started& call,
                                          const absl::Status& status) const {
  if (status.ok()) return FinishCounted(call, grpc::Status::OK);
  if (IsFault(status)) {
    parts_.log.Write(Severity::kError,
                     "a call failed through no fault of its caller",
                     ErrorField(status));
  }
  return Refuse(call, status);
}

grpc::ServerUnaryReactor* Service::Refuse(const Started& call,
                                          const absl::Status& error) const {
  const ErrorReply reply = ToErrorReply(error, parts_.random());
  if (reply.pushback.has_value()) {
    call.context->AddTrailingMetadata(kPushbackTrailer,
                                      std::to_string(reply.pushback->count()));
  }
  // A caller that went away is given no reason.
  if (reply.status.error_code() != grpc::StatusCode::CANCELLED) {
    Count(call.counts->refused[ReasonOf(error)]);
  }
  return FinishCounted(call, reply.status);
}

grpc::ServerUnaryReactor* Service::FinishCounted(
    const Started& call, const grpc::Status& status) const {
  Count(call.counts->handled[static_cast<std::size_t>(status.error_code())]);
  ObserveTime(call.counts->handling_time, parts_.clock.Now() - call.at);
  call.reactor->Finish(status);
  return call.reactor;
}

SteadyTime AnswerBy(std::chrono::system_clock::time_point deadline,
                    std::chrono::system_clock::time_point system_now,
                    SteadyTime steady_now, std::chrono::nanoseconds longest) {
  return steady_now +
         std::min<std::chrono::nanoseconds>(deadline - system_now, longest);
}

}  // namespace idempotency
