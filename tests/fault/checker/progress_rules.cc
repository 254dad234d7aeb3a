#include "tests/fault/checker/progress_rules.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "tests/support/record_rules.h"

namespace idempotency::fault {
namespace {

constexpr int kTriedInVainMin = 3;
constexpr std::int64_t kGoodputCallsMin = 20;

// Did it fail for want of a working service? Not if its own fault refused it.
bool IsInVain(const Operation& operation) {
  if (operation.is_decided()) return false;
  if (!operation.answer.has_value()) return true;
  const std::string& reason = operation.answer->reason;
  return reason != "INVALID_FIELD" && reason != "UNKNOWN_POLICY" &&
         reason != "POLICY_NOT_ALLOWED";
}

std::int64_t EndOf(const Operation& operation) {
  return operation.answer.has_value()
             ? operation.answer->t
             : operation.call.t + operation.call.deadline_us * 1000;
}

// Calls in vain, one after the other.
struct InVain {
  int calls = 0;
  std::int64_t since = 0;
  std::int64_t until = 0;

  void Add(const Operation& operation) {
    if (calls++ == 0) since = operation.call.t;
    until = std::max(until, EndOf(operation));
  }
  bool IsTooMuch(absl::Duration patience) const {
    return calls >= kTriedInVainMin &&
           until - since > absl::ToInt64Nanoseconds(patience);
  }
};

// What came of asking for one key that was left unfinished.
class AskedAtTheEnd {
 public:
  AskedAtTheEnd(const States& states, absl::Duration patience)
      : states_(states), patience_(absl::ToInt64Nanoseconds(patience)) {}

  // In the order of their calls.
  void Add(const Operation& operation) {
    if (operation.call.kind == Kind::kLookup) {
      first_lookup_ = std::min(first_lookup_, operation.call.t);
      if (operation.is_decided()) {
        looked_up_ = std::min(looked_up_, operation.answer->t);
      }
    }
    if (operation.call.kind != Kind::kClaim) return;
    first_claim_ = std::min(first_claim_, operation.call.t);
    if (operation.is_decided()) last_ = &operation;
  }

  bool is_asked() const { return first_claim_ != kNever; }

  // Empty: it was had in time.
  std::string WhyNotLookedUp() const {
    if (first_lookup_ == kNever) return "was not looked up at the end";
    if (looked_up_ == kNever) return "could not be looked up at the end";
    if (looked_up_ > first_lookup_ + patience_) {
      return "was looked up too late at the end";
    }
    return "";
  }

  std::string WhyNotHad() const {
    if (last_ == nullptr) return "no claim of it was decided at the end";
    const AnswerEvent& answer = *last_->answer;
    if (answer.outcome == Outcome::kInDoubt && !last_->call.resolve) {
      return last_->name() + " was told InDoubt, and nobody could resolve it";
    }
    // Another owner's lease that runs on is what the claim may be told of.
    if (answer.t <= std::max(first_claim_, LeaseEnd()) + patience_) return "";
    return last_->name() + " was told " +
           std::string(OutcomeName(answer.outcome)) + " too late at the end";
  }

 private:
  static constexpr std::int64_t kNever =
      std::numeric_limits<std::int64_t>::max();

  // Of the lease that kept the claims waiting; 0: none.
  std::int64_t LeaseEnd() const {
    const Record* const state = states_.at(states_.LastAt(first_claim_));
    if (state == nullptr || !IsUnfinished(*state) || IsGivenUp(*state)) {
      return 0;
    }
    return states_.clock().LastAt(state->lease_expires_at);
  }

  const States& states_;
  const std::int64_t patience_;
  std::int64_t first_lookup_ = kNever;
  std::int64_t looked_up_ = kNever;
  std::int64_t first_claim_ = kNever;
  const Operation* last_ = nullptr;  // claim that was decided
};

}  // namespace

bool SaysNothing(const Operation& operation) {
  constexpr std::int64_t kHastyUs = 250'000;
  return (operation.answer.has_value() &&
          operation.answer->code == "CANCELLED") ||
         (operation.call.deadline_us != 0 &&
          operation.call.deadline_us < kHastyUs);
}

void CheckLeftKey(const States& states, const Limits& limits,
                  std::int64_t closing, Findings& findings) {
  const Record* const state = states.at(states.LastAt(closing));
  if (state != nullptr && IsUnfinished(*state)) ++findings.counts.left;
  AskedAtTheEnd key(states, limits.left_patience);
  for (const Operation& operation : states.key().operations) {
    if (operation.call.t >= closing) key.Add(operation);
  }
  if (!key.is_asked()) return;
  ++findings.counts.left_asked;
  if (const std::string why = key.WhyNotLookedUp(); !why.empty()) {
    findings.Violate("L2", states.id(), "a key left unfinished " + why);
  }
  if (const std::string why = key.WhyNotHad(); !why.empty()) {
    findings.Violate("L1", states.id(),
                     "nobody gets a key left unfinished: " + why);
  }
}

void CheckProgress(const States& states, const Limits& limits,
                   const Settled& settled, Findings& findings) {
  InVain all;
  InVain dead_owner;
  bool decided = false;
  for (const Operation& operation : states.key().operations) {
    if (!settled.IsBegunIn(operation) || SaysNothing(operation)) continue;
    if (!IsInVain(operation)) {
      decided = true;
      // Whoever only looks does not get it.
      if (operation.call.kind == Kind::kClaim) dead_owner = {};
      continue;
    }
    all.Add(operation);
    const Record* const state = states.at(states.LastAt(operation.call.t));
    const bool takeable = operation.call.kind == Kind::kClaim &&
                          state != nullptr && IsUnfinished(*state) &&
                          states.WasOver(*state, operation.call.t) &&
                          (!state->held || operation.call.resolve);
    if (!takeable) continue;
    dead_owner.Add(operation);
    if (!dead_owner.IsTooMuch(limits.patience)) continue;
    findings.Violate("L1", states.id(),
                     "nobody gets the key of a dead owner: " +
                         operation.name() + " failed like those before");
    dead_owner = {};
  }
  if (decided || !all.IsTooMuch(limits.patience)) return;
  findings.Violate("L2", states.id(),
                   std::to_string(all.calls) +
                       " calls after the last fault, and none decided");
}

void CheckGoodput(const Run& run, const Limits& limits, const Settled& settled,
                  Findings& findings) {
  std::int64_t calls = 0;
  std::int64_t in_vain = 0;
  std::int64_t& decided = findings.counts.after_faults;
  for (const auto& [id, key] : run.keys) {
    for (const Operation& operation : key.operations) {
      if (!settled.IsBegunIn(operation) || SaysNothing(operation)) continue;
      ++calls;
      if (operation.is_decided()) ++decided;
      if (IsInVain(operation)) ++in_vain;
    }
  }
  const auto wanted = limits.decided_share * static_cast<double>(calls);
  if (calls < kGoodputCallsMin ||
      static_cast<double>(calls - in_vain) >= wanted) {
    return;
  }
  findings.Violate("L4", {},
                   std::to_string(in_vain) + " of " + std::to_string(calls) +
                       " calls after the last fault were not decided");
}

}  // namespace idempotency::fault
