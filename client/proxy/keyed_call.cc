#include "client/proxy/keyed_call.h"

#include <utility>

#include "client/grpc/call_status.h"
#include "client/proxy/upstream_headers.h"
#include "client/status.h"

namespace idempotency::internal {
namespace {

using grpc::StatusCode;

grpc::Status Refusal(const std::string& why) {
  return CallStatus(StatusCode::INVALID_ARGUMENT, "NOT_UNARY", why);
}

// gRPC itself ends calls with these codes when it loses sight of them, and then
// has no details. Trailers prove nothing: a reply that is too long to be taken
// comes with those of a service that executed.
bool IsMadeUp(const GrpcAnswer& answer) {
  switch (answer.status.error_code()) {
    case StatusCode::CANCELLED:
    case StatusCode::UNKNOWN:
    case StatusCode::DEADLINE_EXCEEDED:
    case StatusCode::RESOURCE_EXHAUSTED:
    case StatusCode::INTERNAL:
    case StatusCode::UNAVAILABLE:
      return answer.status.error_details().empty();
    default:
      return false;
  }
}

// What is done with an answer of the service's, or with the lack of one.
FunctionResult Judge(const UpstreamAnswer& upstream) {
  const absl::Status status = ToAbslStatus(upstream.answer.status);
  if (!upstream.sent) return NothingHappened{status};
  if (IsMadeUp(upstream.answer) || LeavesUnknown(upstream.answer.status)) {
    return OutcomeUnknown{status};
  }
  return Executed{ToResponse(upstream.answer)};
}

}  // namespace

KeyedCall::KeyedCall(RunOnce& once, std::shared_ptr<GrpcUpstream> upstream,
                     std::shared_ptr<const GrpcRoute> route, std::string key,
                     std::shared_ptr<void> slot,
                     grpc::GenericCallbackServerContext& context)
    : once_(once),
      upstream_(std::move(upstream)),
      route_(std::move(route)),
      key_(std::move(key)),
      slot_(std::move(slot)),
      context_(context),
      method_(context.method()),
      request_{.method = context.method(),
               .metadata = HandedOn(context.client_metadata()),
               .message = {},
               .may_be_sent = nullptr} {}

void KeyedCall::Start() {
  self_ = shared_from_this();
  StartRead(&incoming_);
}

void KeyedCall::OnReadDone(bool ok) {
  if (!read_) {
    if (!ok) return Answer({.status = Refusal("the call has no message")});
    read_ = true;
    request_.message = BytesOf(incoming_);
    incoming_.Clear();
    return StartRead(&incoming_);
  }
  if (ok) {
    return Answer({.status = Refusal("a call with a key has one message; "
                                     "streams go without")});
  }
  if (context_.IsCancelled()) {
    return Answer({.status = grpc::Status(StatusCode::CANCELLED, "")});
  }
  Run();
}

void KeyedCall::Run() {
  const Operation operation = OperationOf(
      route_->rule, method_, key_, request_.message, context_.deadline());
  AsyncResolver resolve;
  if (route_->resolves) {
    // The service itself finds out, being told.
    resolve = [](const std::shared_ptr<Execution>&,
                 const Completion<Resolution>& completion) {
      completion(NeverExecuted{});
    };
  }
  auto running = once_.Start(
      operation,
      [self = shared_from_this()](
          const std::shared_ptr<Execution>& execution,
          const Completion<FunctionResult>& completion) {
        self->Ask(execution, completion);
      },
      [self = shared_from_this()](const RunResult& result) {
        Notify(self->route_->rule, self->method_, result);
        if (self->route_->rule.fail_open && HasNoCoordinator(result)) {
          return self->Ask(
              nullptr,
              Completion<FunctionResult>([self](const FunctionResult& answer) {
                self->Answer(self->ForCaller(AnswerOf(answer), true), true);
              }));
        }
        self->Answer(self->ForCaller(AnswerOf(result),
                                     result.outcome == RunOutcome::kUnknown),
                     result.outcome == RunOutcome::kExecuted);
      },
      std::move(resolve));
  bool hung_up = false;
  Running* const started = running.get();
  {
    MutexLock lock(mutex_);
    running_ = std::move(running);
    hung_up = answered_;
  }
  if (hung_up) started->HangUp();
}

void KeyedCall::Ask(const std::shared_ptr<Execution>& execution,
                    const Completion<FunctionResult>& completion) {
  // Asked once, whatever comes of it.
  UpstreamRequest request = std::move(request_);
  if (execution != nullptr) {
    // A connection may take longer than the lease.
    request.may_be_sent = [execution] { return execution->permitted(); };
    for (auto& [name, value] : UpstreamHeaders(execution->claimed())) {
      request.metadata.emplace_back(std::move(name), std::move(value));
    }
  }
  upstream_->Call(
      std::move(request), route_->timeout,
      [self = shared_from_this(), completion](const UpstreamAnswer& upstream) {
        self->initial_metadata_ = upstream.initial_metadata;
        self->lost_sight_ = IsMadeUp(upstream.answer);
        completion(Judge(upstream));
      });
}

GrpcAnswer KeyedCall::ForCaller(GrpcAnswer answer, bool unknown) const {
  // gRPC's own words may name addresses behind the sidecar.
  if (unknown && lost_sight_) {
    answer.status = CallStatus(answer.status.error_code(), "OUTCOME_UNKNOWN",
                               "the sidecar lost sight of the call; whether it "
                               "was carried out is not known");
  }
  return answer;
}

void KeyedCall::Answer(const GrpcAnswer& answer, bool with_initial_metadata) {
  {
    MutexLock lock(mutex_);
    if (std::exchange(answered_, true)) return;
  }
  if (with_initial_metadata) {
    for (const auto& [name, value] : initial_metadata_) {
      context_.AddInitialMetadata(name, value);
    }
  }
  for (const auto& [name, value] : answer.trailers) {
    context_.AddTrailingMetadata(name, value);
  }
  if (!answer.status.ok()) return Finish(answer.status);
  outgoing_ = BufferOf(answer.message);
  StartWriteAndFinish(&outgoing_, grpc::WriteOptions(), answer.status);
}

void KeyedCall::OnCancel() {
  Running* running = nullptr;
  {
    MutexLock lock(mutex_);
    running = running_.get();
  }
  // It stays: it is put there once.
  if (running != nullptr) running->HangUp();
  Answer({.status = grpc::Status(StatusCode::CANCELLED, "")});
}

void KeyedCall::OnDone() { self_.reset(); }

}  // namespace idempotency::internal
