// The end of a simulated life, and what waiters are owed in it.
#include <chrono>
#include <string>
#include <variant>

#include "tests/unit/engine_world.h"

namespace idempotency {
namespace {

// Every key that is waited for is looked at once in this time, and more.
constexpr std::chrono::milliseconds kLearnsWithin{1500};

}  // namespace

// Once lanes run all the time, a waiter's answer is to be explained by what
// the record was of late, and not just at some moment since it asked.
HistoryChecker::Sent EngineWorld::CheckWait(const HistoryChecker::Sent& sent,
                                            const Replica& replica,
                                            SteadyTime wait_until) {
  if (!finishing_since_.has_value() || replica.draining ||
      wait_until < *finishing_since_ + kLearnsWithin) {
    return sent;
  }
  if (clock_.Now() > wait_until + kLearnsWithin) {
    waits_violations_.push_back("W2: a wait did not end");
  }
  return checker_.NotBefore(sent,
                            database_.Now() - absl::FromChrono(kLearnsWithin));
}

// Nobody is sent away early who may wait.
void EngineWorld::CheckPatience(const Replica& replica, SteadyTime wait_until,
                                const ClaimOutcome& outcome) {
  if (std::holds_alternative<InProgress>(outcome) && !replica.draining &&
      clock_.Now() + limits::kLockWaitMax < wait_until) {
    waits_violations_.push_back("W1: a wait ended early");
  }
}

void EngineWorld::Finish() {
  constexpr int kRoundsMax = 2000;
  calm_ = true;
  finishing_since_ = clock_.Now();
  while (!lost_statements_.empty()) LetALostStatementArrive();
  for (int i = 0; i < kRoundsMax && answered_ < asked_; ++i) {
    PassTime(absl::Milliseconds(15));
    for (Replica& replica : replicas_) {
      for (Lane* lane : replica.lanes) lane->RunBatch();
    }
  }
  violations_ = checker_.violations();
  violations_.insert(violations_.end(), waits_violations_.begin(),
                     waits_violations_.end());
  if (answered_ != asked_) {
    violations_.push_back("L3: " + std::to_string(asked_) + " calls, " +
                          std::to_string(answered_) + " answers");
  }
}

}  // namespace idempotency
