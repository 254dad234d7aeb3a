#include "server/core/outcome_counts.h"

#include <variant>

namespace idempotency {
namespace {

struct ResultOfOutcome {
  // Only the holder's own repeat is granted without a write.
  ClaimResult operator()(const Claimed&) { return ClaimResult::kClaimedAgain; }
  ClaimResult operator()(const Replay&) { return ClaimResult::kReplay; }
  ClaimResult operator()(const InProgress&) { return ClaimResult::kInProgress; }
  ClaimResult operator()(const Mismatch&) { return ClaimResult::kMismatch; }
  ClaimResult operator()(const InDoubt&) { return ClaimResult::kInDoubt; }
};

}  // namespace

void CountUnwritten(const ClaimOutcome& outcome, const Record& record,
                    Metrics& metrics) {
  PolicyMetrics& counts = metrics.policies.At(record.policy.name);
  Count(counts.claims[std::visit(ResultOfOutcome(), outcome)]);
}

void CountInProgress(const std::string& policy, Metrics& metrics) {
  Count(metrics.policies.At(policy).claims[ClaimResult::kInProgress]);
}

void CountGrant(Grant grant, const Record& record, Metrics& metrics) {
  PolicyMetrics& counts = metrics.policies.At(record.policy.name);
  if (grant == Grant::kAgain) {
    Count(counts.claims[ClaimResult::kClaimedAgain]);
    return;
  }
  Count(counts.claims[ClaimResult::kClaimed]);
  if (record.abandoned.has_value()) {
    Count(counts.takeovers[record.abandoned->reason]);
  }
}

void CountFinalize(const absl::StatusOr<FinalizeOutcome>& answer,
                   Metrics& metrics) {
  if (answer.ok()) Count(metrics.finalizes[answer->result]);
}

void CountRelease(const absl::StatusOr<ReleaseOutcome>& answer,
                  Metrics& metrics) {
  if (!answer.ok()) return;
  const bool freed = answer->state == VisibleState::kReleased;
  Count(metrics.releases[!answer->released ? ReleaseResult::kNothing
                         : freed           ? ReleaseResult::kFreed
                                           : ReleaseResult::kGivenUp]);
}

}  // namespace idempotency
