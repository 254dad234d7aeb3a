// What a unary call and a command of Bulk have in common: each is counted,
// validated, decided by the engine and written as the wire's answer.
#ifndef IDEMPOTENCY_SERVER_RPC_DECIDER_H_
#define IDEMPOTENCY_SERVER_RPC_DECIDER_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/call.h"
#include "server/core/clock.h"
#include "server/core/metrics.h"
#include "server/core/uuid.h"
#include "server/rpc/options.h"
#include "server/rpc/status.h"
#include "server/rpc/wire_calls.h"

namespace idempotency {

// A call in hand, counted as started.
struct StartedCall {
  CallMetrics* counts = nullptr;
  SteadyTime at;
};

struct Caller {
  // How long it listens, from the call's start; the server's own bound holds
  // where this is longer.
  std::chrono::nanoseconds patience = std::chrono::nanoseconds::max();
  // Has it gone away? As CallContext::cancelled.
  std::function<bool()> gone;
  // What a Claim asks to wait is left out where this is false.
  bool may_wait = true;
  // As in CallContext.
  const std::atomic<bool>* wait_is_over = nullptr;
};

// Thread-safe. What it is made of must outlive it.
class Decider {
 public:
  Decider(const ServiceOptions& options, const ServiceParts& parts)
      : options_(options), parts_(parts) {}

  StartedCall Start(CallKind kind) const;

  // `done` runs as the engine's do, and at once for a request that is refused.
  // Each call that was started is settled with what became of it.
  template <typename Wire>
  void Decide(const typename Wire::Request& request, const StartedCall& call,
              Caller caller, Done<typename Wire::Outcome> done) const {
    auto command = Wire::Validate(request, options_);
    if (!command.ok()) return std::move(done)(command.status());
    const auto wait = caller.may_wait ? Wire::Wait(request)
                                      : std::chrono::nanoseconds::zero();
    parts_.engine.Submit(*std::move(command),
                         ContextOf(call, std::move(caller), wait),
                         std::move(done));
  }

  // May an answer with so many bytes of a recorded response be given?
  using Reserve = absl::FunctionRef<bool(std::size_t)>;
  // Writes the outcome of a call for the record `id`. An error, that of the
  // outcome or a new one, is the answer instead, and `out` means nothing.
  absl::Status Write(absl::StatusOr<ClaimOutcome> outcome, RecordId id,
                     Reserve reserve, v1::ClaimResponse& out) const;
  absl::Status Write(absl::StatusOr<LookupOutcome> outcome, RecordId id,
                     Reserve reserve, v1::LookupResponse& out) const;
  absl::Status Write(const absl::StatusOr<FinalizeOutcome>& outcome,
                     const RecordId& id, Reserve reserve,
                     v1::FinalizeResponse& out) const;
  absl::Status Write(const absl::StatusOr<ReleaseOutcome>& outcome,
                     const RecordId& id, Reserve reserve,
                     v1::ReleaseResponse& out) const;

  // Counts the call as answered. For an error, which operators hear of if it
  // is a fault, gives what the caller is told.
  std::optional<ErrorReply> Settle(const StartedCall& call,
                                   const absl::Status& status) const;
  // Likewise for an error that is no news to operators.
  ErrorReply Refuse(const StartedCall& call, const absl::Status& error) const;

  // For errors of no call: a whole stream's.
  ErrorReply ReplyTo(const absl::Status& error) const {
    return ToErrorReply(error, parts_.random());
  }

 private:
  CallContext ContextOf(const StartedCall& call, Caller caller,
                        std::chrono::nanoseconds wait) const;
  template <typename Outcome, typename Response>
  absl::Status WriteRecorded(absl::StatusOr<Outcome> outcome, RecordId id,
                             Reserve reserve, Response& out) const;
  absl::StatusOr<Uuid> DownstreamNamespace() const;
  void CountAnswer(const StartedCall& call, int code) const;

  const ServiceOptions options_;
  const ServiceParts parts_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_DECIDER_H_
