// The four kinds of calls, and the store's function for each.
#ifndef IDEMPOTENCY_SERVER_CORE_CALL_KINDS_H_
#define IDEMPOTENCY_SERVER_CORE_CALL_KINDS_H_

#include <variant>
#include <vector>

#include "server/core/call.h"
#include "server/core/call_queue.h"
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

inline absl::StatusOr<ClaimOutcome>& OutcomeOf(ClaimAnswer& answer) {
  return answer.outcome;
}
template <typename Outcome>
absl::StatusOr<Outcome>& OutcomeOf(absl::StatusOr<Outcome>& answer) {
  return answer;
}

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_CALL_KINDS_H_
