#include "client/grpc/once_method.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <atomic>
#include <optional>

#include "client/grpc/call_status.h"
#include "client/status.h"

namespace idempotency {
namespace {

using google::protobuf::MessageLite;

// Nothing where it is longer than Protobuf can make it.
std::optional<std::string> Serialized(const MessageLite& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    if (!message.SerializePartialToCodedStream(&coded)) return std::nullopt;
  }
  return bytes;
}

v1::Response ResponseOf(const grpc::Status& status, const OnceCall& call,
                        const MessageLite& reply) {
  GrpcAnswer answer = {.status = status, .trailers = call.trailers()};
  if (!status.ok()) return ToResponse(answer);
  std::optional<std::string> message = Serialized(reply);
  if (message.has_value()) {
    answer.message = *std::move(message);
    return ToResponse(answer);
  }
  v1::Response response = ToResponse(answer);
  response.set_body_omitted(true);
  return response;
}

// What was thrown is for the service's own eyes.
absl::Status Threw(const std::string& who) {
  return absl::UnknownError(who + " threw");
}

FunctionResult ToFunctionResult(HandlerResult result, const OnceCall& call,
                                const MessageLite& reply) {
  if (auto* const nothing = std::get_if<NothingHappened>(&result)) {
    return std::move(*nothing);
  }
  if (auto* const unknown = std::get_if<OutcomeUnknown>(&result)) {
    return std::move(*unknown);
  }
  const grpc::Status& status = std::get<grpc::Status>(result);
  if (LeavesUnknown(status)) return OutcomeUnknown{ToAbslStatus(status)};
  return Executed{ResponseOf(status, call, reply)};
}

Resolution ToResolution(ResolverResult result, const OnceCall& call,
                        const MessageLite& reply) {
  if (const auto* const answered = std::get_if<WasAnswered>(&result)) {
    return WasExecuted{ResponseOf(answered->status, call, reply)};
  }
  if (auto* const unknown = std::get_if<StillUnknown>(&result)) {
    return std::move(*unknown);
  }
  return NeverExecuted{};
}

FunctionResult CallGuarded(const MethodHandler& handler, OnceCall& call,
                           MessageLite& reply) {
  reply.Clear();
  try {
    return ToFunctionResult(handler(call), call, reply);
  } catch (...) {
    return OutcomeUnknown{Threw("the handler")};
  }
}

Resolution CallGuarded(const MethodResolver& resolver, OnceCall& call,
                       MessageLite& reply) {
  try {
    return ToResolution(resolver(call), call, reply);
  } catch (...) {
    return StillUnknown{Threw("the resolver")};
  }
}

bool FilledReply(RunOutcome outcome) {
  return outcome == RunOutcome::kExecuted || outcome == RunOutcome::kResolved;
}

// Puts the answer into context and, where the handler has not, into the reply.
grpc::Status Deliver(const GrpcAnswer& answer, bool reply_is_filled,
                     grpc::ServerContextBase& context, MessageLite& reply) {
  for (const auto& [name, value] : answer.trailers) {
    context.AddTrailingMetadata(name, value);
  }
  if (answer.status.ok() && !reply_is_filled &&
      !reply.ParsePartialFromString(answer.message)) {
    return CallStatus(grpc::StatusCode::DATA_LOSS, "RECORD_CORRUPT",
                      "the recorded reply is no message of this method");
  }
  return answer.status;
}

Operation OperationFor(const OnceMethod& method,
                       const grpc::ServerContextBase& context, std::string key,
                       const MessageLite& request) {
  return OperationOf(method.rule, method.path, std::move(key),
                     Serialized(request).value_or(""), context.deadline());
}

}  // namespace

// -------------------------------------------------------------------- OnceCall

const std::string& OnceCall::downstream_key() const {
  static const std::string* const kNone = new std::string();
  return execution_ == nullptr ? *kNone : execution_->downstream_key();
}

const v1::Abandoned* OnceCall::abandoned() const {
  return execution_ == nullptr ? nullptr : execution_->abandoned();
}

void OnceCall::AddTrailer(std::string name, std::string value) {
  if (!IsHandedOn(name, value)) return;
  trailers_.emplace_back(std::move(name), std::move(value));
}

// ----------------------------------------------------------------- synchronous

grpc::Status CallOnce(RunOnce& once, const OnceMethod& method,
                      grpc::ServerContext& context, const MessageLite& request,
                      MessageLite& reply, const MethodHandler& handler,
                      const MethodResolver& resolver) {
  CallKey key = KeyOf(context.client_metadata(), method.rule.required);
  if (!key.refusal.ok()) return key.refusal;
  const auto without_claim = [&] {
    OnceCall call;
    return Deliver(AnswerOf(CallGuarded(handler, call, reply)), true, context,
                   reply);
  };
  if (!key.key.has_value()) return without_claim();

  // Not owned: the call is over when the function is.
  const auto call_of = [](Execution& execution) {
    return OnceCall(
        std::shared_ptr<Execution>(std::shared_ptr<void>(), &execution));
  };
  std::function<Resolution(Execution&)> resolve;
  if (resolver) {
    resolve = [&](Execution& execution) {
      OnceCall call = call_of(execution);
      return CallGuarded(resolver, call, reply);
    };
  }
  const RunResult result = once.Run(
      OperationFor(method, context, *std::move(key.key), request),
      [&](Execution& execution) {
        OnceCall call = call_of(execution);
        return CallGuarded(handler, call, reply);
      },
      resolve);
  Notify(method.rule, method.path, result);
  if (method.rule.fail_open && HasNoCoordinator(result)) return without_claim();
  return Deliver(AnswerOf(result), FilledReply(result.outcome), context, reply);
}

// -------------------------------------------------------------------- callback

namespace {

// Deletes itself when gRPC is done with the call. Handler and resolver run only
// before Finish(), which comes with their answer.
class OnceReactor final : public grpc::ServerUnaryReactor {
 public:
  OnceReactor(grpc::CallbackServerContext& context, MessageLite& reply,
              OnceMethod method, AsyncMethodHandler handler,
              AsyncMethodResolver resolver)
      : context_(context),
        reply_(reply),
        method_(std::move(method)),
        handler_(std::move(handler)),
        resolver_(std::move(resolver)) {}

  // One of these two, within the method: gRPC does not react before it returns.
  void Start(RunOnce& once, const Operation& operation) {
    idempotency::AsyncResolver resolve;
    if (resolver_) {
      resolve = [this](std::shared_ptr<Execution> execution,
                       const Completion<Resolution>& completion) {
        RunResolver(std::move(execution), completion);
      };
    }
    running_ = once.Start(
        operation,
        [this](std::shared_ptr<Execution> execution,
               const Completion<FunctionResult>& completion) {
          RunHandler(std::move(execution), completion);
        },
        [this](const RunResult& result) {
          Notify(method_.rule, method_.path, result);
          if (method_.rule.fail_open && HasNoCoordinator(result)) {
            return RunWithoutClaim();
          }
          FinishWith(AnswerOf(result), FilledReply(result.outcome));
        },
        std::move(resolve));
  }
  void RunWithoutClaim() {
    RunHandler(nullptr,
               Completion<FunctionResult>([this](const FunctionResult& result) {
                 FinishWith(AnswerOf(result), true);
               }));
  }

  void OnCancel() override {
    if (running_ != nullptr) running_->HangUp();
  }
  void OnDone() override { delete this; }

 private:
  // What answers through `completion`. A second answer may come when the reply
  // has gone.
  template <typename Result, typename Answer>
  std::function<void(Result)> AnswerThrough(
      const std::shared_ptr<OnceCall>& call,
      const Completion<Answer>& completion,
      Answer (*convert)(Result, const OnceCall&, const MessageLite&)) {
    return
        [this, call, completion, convert,
         answered = std::make_shared<std::atomic<bool>>(false)](Result result) {
          if (answered->exchange(true)) return;
          completion(convert(std::move(result), *call, reply_));
        };
  }

  void RunHandler(std::shared_ptr<Execution> execution,
                  const Completion<FunctionResult>& completion) {
    const auto call = std::make_shared<OnceCall>(std::move(execution));
    const HandlerDone done =
        AnswerThrough<HandlerResult>(call, completion, &ToFunctionResult);
    reply_.Clear();
    // This object may be gone as soon as it has answered.
    const AsyncMethodHandler handler = handler_;
    try {
      handler(call, done);
    } catch (...) {
      done(OutcomeUnknown{Threw("the handler")});
    }
  }

  void RunResolver(std::shared_ptr<Execution> execution,
                   const Completion<Resolution>& completion) {
    const auto call = std::make_shared<OnceCall>(std::move(execution));
    const ResolverDone done =
        AnswerThrough<ResolverResult>(call, completion, &ToResolution);
    const AsyncMethodResolver resolver = resolver_;
    try {
      resolver(call, done);
    } catch (...) {
      done(StillUnknown{Threw("the resolver")});
    }
  }

  void FinishWith(const GrpcAnswer& answer, bool reply_is_filled) {
    // Nothing may be touched afterwards.
    Finish(Deliver(answer, reply_is_filled, context_, reply_));
  }

  grpc::CallbackServerContext& context_;
  MessageLite& reply_;
  const OnceMethod method_;
  const AsyncMethodHandler handler_;
  const AsyncMethodResolver resolver_;
  std::unique_ptr<Running> running_;
};

}  // namespace

grpc::ServerUnaryReactor* CallOnce(RunOnce& once, const OnceMethod& method,
                                   grpc::CallbackServerContext& context,
                                   const MessageLite& request,
                                   MessageLite& reply,
                                   AsyncMethodHandler handler,
                                   AsyncMethodResolver resolver) {
  CallKey key = KeyOf(context.client_metadata(), method.rule.required);
  auto* const reactor = new OnceReactor(
      context, reply, method, std::move(handler), std::move(resolver));
  if (!key.refusal.ok()) {
    reactor->Finish(key.refusal);
  } else if (!key.key.has_value()) {
    reactor->RunWithoutClaim();
  } else {
    reactor->Start(once,
                   OperationFor(method, context, *std::move(key.key), request));
  }
  return reactor;
}

}  // namespace idempotency
