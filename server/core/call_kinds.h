// The four kinds of calls, and the store's function for each.
#ifndef IDEMPOTENCY_SERVER_CORE_CALL_KINDS_H_
#define IDEMPOTENCY_SERVER_CORE_CALL_KINDS_H_

#include <type_traits>
#include <variant>
#include <vector>

#include "server/core/call.h"
#include "server/core/call_queue.h"
#include "server/core/errors.h"
#include "server/core/metrics.h"
#include "server/core/store.h"

namespace idempotency {

struct ClaimKind {
  static constexpr CallKind kKind = CallKind::kClaim;
  using Request = ClaimCall;
  static std::vector<ClaimAnswer> Run(Store& store, Batch<ClaimCommand> batch) {
    return store.ClaimBatch(batch);
  }
};
struct FinalizeKind {
  // Does an OK answer end the claim that others wait for?
  static constexpr bool kEndsClaims = true;
  static constexpr CallKind kKind = CallKind::kFinalize;
  using Request = FinalizeCall;
  static auto Run(Store& store, Batch<FinalizeCommand> batch) {
    return store.FinalizeBatch(batch);
  }
};
struct LookupKind {
  static constexpr bool kEndsClaims = false;
  static constexpr CallKind kKind = CallKind::kLookup;
  using Request = LookupCall;
  static auto Run(Store& store, Batch<LookupCommand> batch) {
    return store.LookupBatch(batch);
  }
};
struct ReleaseKind {
  static constexpr bool kEndsClaims = true;
  static constexpr CallKind kKind = CallKind::kRelease;
  using Request = ReleaseCall;
  static auto Run(Store& store, Batch<ReleaseCommand> batch) {
    return store.ReleaseBatch(batch);
  }
};

template <typename Kind>
typename Kind::Request& RequestOf(Led& led) {
  return std::get<typename Kind::Request>(led.leader.front().request);
}

// Those of the round that are of this kind.
template <typename Kind>
std::vector<Led*> CallsOf(std::vector<Led>& round) {
  std::vector<Led*> calls;
  for (Led& led : round) {
    if (!led.leader.empty() && std::holds_alternative<typename Kind::Request>(
                                   led.leader.front().request)) {
      calls.push_back(&led);
    }
  }
  return calls;
}

// What goes to the store as one batch, which is counted. `now` tells which
// claims may still wait.
template <typename Kind>
auto CommandsOf(const std::vector<Led*>& calls, Metrics& metrics,
                SteadyTime now) {
  using Command = decltype(Kind::Request::command);
  std::vector<const Command*> commands;
  commands.reserve(calls.size());
  for (Led* const led : calls) {
    Command& command = RequestOf<Kind>(*led).command;
    if constexpr (std::is_same_v<Command, ClaimCommand>) {
      const Call& call = led->leader.front();
      command.waits = call.context.wait_until > now;
      command.wants_record = command.waits || !led->followers.empty();
      command.seen_present = led->after_crowd || call.seen != nullptr;
    }
    commands.push_back(&command);
  }
  metrics.batches[static_cast<std::size_t>(Kind::kKind)].Observe(calls.size());
  return commands;
}

inline absl::StatusOr<ClaimOutcome>& OutcomeOf(ClaimAnswer& answer) {
  return answer.outcome;
}
template <typename Outcome>
absl::StatusOr<Outcome>& OutcomeOf(absl::StatusOr<Outcome>& answer) {
  return answer;
}

// Do the followers get the leader's answer? Whoever looks up a record sees the
// same, and nobody is told anything else of one that can't be read.
template <typename Kind, typename Outcome>
bool HoldsForFollowers(const absl::StatusOr<Outcome>& outcome) {
  return Kind::kKind == CallKind::kLookup ||
         (!outcome.ok() &&
          ReasonOf(outcome.status()) == Reason::kRecordCorrupt);
}

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_CALL_KINDS_H_
