#include "server/rpc/decider.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "server/core/errors.h"
#include "server/core/limits.h"
#include "server/core/recorded_bytes.h"
#include "server/rpc/conversion.h"

namespace idempotency {

StartedCall Decider::Start(CallKind kind) const {
  CallMetrics& counts = parts_.metrics.Of(kind);
  Count(counts.started);
  return {.counts = &counts, .at = parts_.clock.Now()};
}

CallContext Decider::ContextOf(const StartedCall& call, Caller caller,
                               std::chrono::nanoseconds wait) const {
  CallContext context = {
      .deadline = call.at + std::min<std::chrono::nanoseconds>(
                                caller.patience, options_.deadline_max + wait),
      .wait_is_over = caller.wait_is_over,
      .cancelled = std::move(caller.gone)};
  if (wait.count() > 0) {
    context.wait_until = std::min<SteadyTime>(
        call.at + wait, context.deadline - limits::kWaitMargin);
  }
  return context;
}

template <typename Outcome, typename Response>
absl::Status Decider::WriteRecorded(absl::StatusOr<Outcome> outcome,
                                    RecordId id, Reserve reserve,
                                    Response& out) const {
  if (!outcome.ok()) return outcome.status();
  const absl::StatusOr<Uuid> name_space = DownstreamNamespace();
  if (!name_space.ok()) return name_space.status();
  const std::size_t bytes = RecordedBytes(*outcome);
  if (bytes > 0 && !reserve(bytes)) {
    return MakeError(Reason::kOverloaded,
                     "too many answers wait for their callers to read them");
  }
  return ToProto(*std::move(outcome),
                 {.id = std::move(id),
                  .downstream_namespace = *name_space,
                  .random = parts_.random()},
                 out);
}

absl::Status Decider::Write(absl::StatusOr<ClaimOutcome> outcome, RecordId id,
                            Reserve reserve, v1::ClaimResponse& out) const {
  return WriteRecorded(std::move(outcome), std::move(id), reserve, out);
}

absl::Status Decider::Write(absl::StatusOr<LookupOutcome> outcome, RecordId id,
                            Reserve reserve, v1::LookupResponse& out) const {
  return WriteRecorded(std::move(outcome), std::move(id), reserve, out);
}

absl::Status Decider::Write(const absl::StatusOr<FinalizeOutcome>& outcome,
                            const RecordId&, Reserve,
                            v1::FinalizeResponse& out) const {
  if (outcome.ok()) ToProto(*outcome, out);
  return outcome.status();
}

absl::Status Decider::Write(const absl::StatusOr<ReleaseOutcome>& outcome,
                            const RecordId&, Reserve,
                            v1::ReleaseResponse& out) const {
  if (outcome.ok()) ToProto(*outcome, out);
  return outcome.status();
}

absl::StatusOr<Uuid> Decider::DownstreamNamespace() const {
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

std::optional<ErrorReply> Decider::Settle(const StartedCall& call,
                                          const absl::Status& status) const {
  if (status.ok()) {
    CountAnswer(call, 0);
    return std::nullopt;
  }
  if (IsFault(status)) {
    parts_.log.Write(Severity::kError,
                     "a call failed through no fault of its caller",
                     ErrorField(status));
  }
  return Refuse(call, status);
}

ErrorReply Decider::Refuse(const StartedCall& call,
                           const absl::Status& error) const {
  ErrorReply reply = ReplyTo(error);
  // A caller that went away is given no reason.
  if (reply.details.code() != static_cast<int>(absl::StatusCode::kCancelled)) {
    Count(call.counts->refused[ReasonOf(error)]);
  }
  CountAnswer(call, reply.details.code());
  return reply;
}

void Decider::CountAnswer(const StartedCall& call, int code) const {
  Count(call.counts->handled[static_cast<std::size_t>(code)]);
  ObserveTime(call.counts->handling_time, parts_.clock.Now() - call.at);
}

}  // namespace idempotency
