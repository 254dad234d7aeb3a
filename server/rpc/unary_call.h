// One unary call from its start until gRPC has sent its answer.
#ifndef IDEMPOTENCY_SERVER_RPC_UNARY_CALL_H_
#define IDEMPOTENCY_SERVER_RPC_UNARY_CALL_H_

#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "server/rpc/decider.h"
#include "server/rpc/reply_budget.h"
#include "server/rpc/status.h"

namespace idempotency {

// Made with new; deletes itself when gRPC is done with the call. All that it
// is given must outlive it.
template <typename Wire>
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(const Decider& decider, ReplyBudget& budget,
            grpc::CallbackServerContext& context,
            const typename Wire::Request& request,
            typename Wire::Response& response)
      : decider_(decider),
        budget_(budget),
        context_(context),
        request_(request),
        response_(response),
        call_(decider.Start(Wire::kKind)) {}

  // Once. Until the call is bound to gRPC, which is after its handler has
  // returned, this object stays; afterwards it may be gone at any time.
  void Start() {
    decider_.Decide<Wire>(
        request_, call_,
        {.patience = TimeLeft(context_.deadline()),
         .gone = [this] { return context_.IsCancelled(); }},
        [this](absl::StatusOr<typename Wire::Outcome> outcome) {
          Answer(std::move(outcome));
        });
  }

  void OnDone() override {
    budget_.Give(charged_);
    delete this;
  }

  // OnDone() is short and the only reaction, so that gRPC need not hand it to
  // another thread: as for the reactor that gRPC has for unary calls itself.
  bool InternalInlineable() override { return true; }

 private:
  // gRPC keeps the message beside its serialised form until it is sent.
  static constexpr std::size_t kCopies = 2;

  static std::chrono::nanoseconds TimeLeft(
      std::chrono::system_clock::time_point deadline) {
    return deadline - std::chrono::system_clock::now();
  }

  void Answer(absl::StatusOr<typename Wire::Outcome> outcome) {
    const auto reserve = [this](std::size_t bytes) {
      if (!budget_.TryTake(kCopies * bytes)) return false;
      charged_ = kCopies * bytes;
      return true;
    };
    const absl::Status status = decider_.Write(
        std::move(outcome), Wire::Shown(request_), reserve, response_);
    const std::optional<ErrorReply> error = decider_.Settle(call_, status);
    // Nothing may be touched afterwards.
    Finish(error.has_value() ? EndWith(*error, context_) : grpc::Status::OK);
  }

  const Decider& decider_;
  ReplyBudget& budget_;
  grpc::CallbackServerContext& context_;
  const typename Wire::Request& request_;
  typename Wire::Response& response_;
  const StartedCall call_;
  std::size_t charged_ = 0;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_UNARY_CALL_H_
