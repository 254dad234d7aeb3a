// Unary gRPC methods that are executed once for their caller's key, the
// metadata "idempotency-key": claimed first, recorded afterwards, and everybody
// else with the key is given the recorded answer.
//
//   grpc::Status Charge(grpc::ServerContext* context,
//                       const ChargeRequest* request,
//                       ChargeReply* reply) override {
//     return idempotency::CallOnce(
//         *once_, charge_, *context, *request, *reply,
//         [&](idempotency::OnceCall& call) {
//           return wallet_.Charge(*request, call.downstream_key(), reply);
//         });
//   }
//
//   std::shared_ptr<idempotency::RunOnce> once_;
//   idempotency::OnceMethod charge_{"/shop.Payments/Charge",
//                                   {.scope = "payments", .policy =
//                                   "payment"}};
//
// What the caller is told in each case: call_status.h. A caller that hangs up,
// or whose deadline passes, changes nothing once the handler runs: what it
// answers is recorded.
//
// The hash of the request is made of the message as this program serialises it,
// fields in the order of their numbers, maps by key. Callers of one record go
// by one way, or send messages whose bytes are these.
#ifndef IDEMPOTENCY_CLIENT_GRPC_ONCE_METHOD_H_
#define IDEMPOTENCY_CLIENT_GRPC_ONCE_METHOD_H_

#include <google/protobuf/message_lite.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "client/execution.h"
#include "client/grpc/once_call.h"
#include "client/operation.h"
#include "client/run_once.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

namespace idempotency {

// May be made for a single call, such as with a scope of its caller's own:
// where callers do not trust each other, one must not meet the other's keys.
struct OnceMethod {
  std::string path;  // "/package.Service/Method", as gRPC sends it
  OnceRule rule;
};

// What a handler is given of its call. Of one handler, or resolver, at a time.
class OnceCall {
 public:
  explicit OnceCall(std::shared_ptr<Execution> execution = nullptr)
      : execution_(std::move(execution)) {}

  // The attempt that was granted. Null: it runs without a claim, because no key
  // was given and none is required, or because the rule fails open.
  Execution* execution() const { return execution_.get(); }
  // Of the execution; empty without one.
  const std::string& downstream_key() const;
  // Null, or the earlier attempt that may have acted.
  const v1::Abandoned* abandoned() const;

  // Sent after the reply, recorded with it and replayed; those that the handler
  // puts into the context itself are sent only. In lower case, see
  // IsHandedOn().
  void AddTrailer(std::string name, std::string value);
  const GrpcMetadata& trailers() const { return trailers_; }

 private:
  const std::shared_ptr<Execution> execution_;
  GrpcMetadata trailers_;
};

// What a handler says: a status, executed, which is recorded with reply and
// trailers (one that maps to 500 or more only where the policy says so, and
// CANCELLED never: its outcome is unknown); or that nothing happened; or that
// nobody knows. Throwing means the last, and the caller is told UNKNOWN.
using HandlerResult =
    std::variant<grpc::Status, NothingHappened, OutcomeUnknown>;

// It was executed, and this is what its caller was told or should have been,
// with the reply that the resolver has filled in.
struct WasAnswered {
  grpc::Status status;
};
// What a resolver finds out about an abandoned attempt. Throwing means
// StillUnknown.
using ResolverResult = std::variant<WasAnswered, NeverExecuted, StillUnknown>;

using MethodHandler = std::function<HandlerResult(OnceCall&)>;
using MethodResolver = std::function<ResolverResult(OnceCall&)>;

// For a method of gRPC's synchronous services. Runs `handler` in this thread,
// at most once, and returns what the method is to return; `reply` is filled in,
// also with what another attempt has recorded. Without `resolver` a method
// that is in doubt and held is not touched.
grpc::Status CallOnce(RunOnce& once, const OnceMethod& method,
                      grpc::ServerContext& context,
                      const google::protobuf::MessageLite& request,
                      google::protobuf::MessageLite& reply,
                      const MethodHandler& handler,
                      const MethodResolver& resolver = nullptr);

// The answer to come of a handler: from any thread, the first one counts. One
// that is dropped without an answer has answered OutcomeUnknown (StillUnknown).
using HandlerDone = std::function<void(HandlerResult)>;
using ResolverDone = std::function<void(ResolverResult)>;
using AsyncMethodHandler =
    std::function<void(std::shared_ptr<OnceCall>, HandlerDone)>;
using AsyncMethodResolver =
    std::function<void(std::shared_ptr<OnceCall>, ResolverDone)>;

// The same for gRPC's callback services: returns what the method is to return.
// Handler and resolver return soon, and may use request, reply and context
// until they have answered. `once` must outlive the server.
grpc::ServerUnaryReactor* CallOnce(RunOnce& once, const OnceMethod& method,
                                   grpc::CallbackServerContext& context,
                                   const google::protobuf::MessageLite& request,
                                   google::protobuf::MessageLite& reply,
                                   AsyncMethodHandler handler,
                                   AsyncMethodResolver resolver = nullptr);

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_GRPC_ONCE_METHOD_H_
