// What an operation that runs once does next: a pure state machine, without
// threads, clock, randomness or network of its own.
//
//   claiming ─▶ waiting ─▶ claiming …          another owner runs
//      │
//      ├─▶ resolving ─▶ executing ─▶ finalizing ─▶ (looking up) ─▶ ended
//      │       │            │
//      └───────┴────────────┴─▶ releasing ─▶ ended
//
// Renewals go on beside resolving and executing. The result is delivered once,
// at the latest when the first Finalize or Release was given up; sending goes
// on after that, for one lease.
#ifndef IDEMPOTENCY_CLIENT_ONCE_MACHINE_H_
#define IDEMPOTENCY_CLIENT_ONCE_MACHINE_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/environment.h"
#include "client/operation.h"

namespace idempotency {

// Every event appends what is to be done because of it, in order. The actions
// that begin with Send or Run are answered by the event of the same name, once;
// at most one renewal and one other call are under way at a time.
//
// Not thread-safe.
class OnceMachine {
 public:
  using TimePoint = ClientEnvironment::TimePoint;

  // When an event happened, and a fresh random number, 0 <= random < 1.
  struct Moment {
    TimePoint now;
    double random;
  };

  struct SendClaim {
    v1::ClaimRequest request;
    std::chrono::milliseconds timeout;
  };
  struct SendRenewal {
    v1::ClaimRequest request;
    std::chrono::milliseconds timeout;
  };
  struct SendFinalize {
    v1::FinalizeRequest request;
    std::chrono::milliseconds timeout;
  };
  struct SendLookup {
    v1::LookupRequest request;
    std::chrono::milliseconds timeout;
  };
  struct SendRelease {
    v1::ReleaseRequest request;
    std::chrono::milliseconds timeout;
  };
  struct RunFunction {};
  struct RunResolver {};
  // The permission is gone, for good.
  struct Withdraw {};
  // Of the checkpoint with this number and of all before it that are open.
  struct CheckpointStored {
    std::int64_t number;
    absl::Status status;
  };
  struct Deliver {
    RunResult result;
  };
  struct End {};  // the last action of all
  using Action = std::variant<SendClaim, SendRenewal, SendFinalize, SendLookup,
                              SendRelease, RunFunction, RunResolver, Withdraw,
                              CheckpointStored, Deliver, End>;
  using Actions = std::vector<Action>;

  // `resolves`: RunResolver will be understood. Durations longer than a year
  // count as a year.
  OnceMachine(Operation operation, std::string claim_token, bool resolves);

  // Once. After HangUp() nothing is claimed.
  void Start(Moment at, Actions& actions);

  void ClaimAnswered(absl::StatusOr<v1::ClaimResponse> answer, Moment at,
                     Actions& actions);
  void RenewalAnswered(absl::StatusOr<v1::ClaimResponse> answer, Moment at,
                       Actions& actions);
  void FinalizeAnswered(absl::StatusOr<v1::FinalizeResponse> answer, Moment at,
                        Actions& actions);
  void LookupAnswered(absl::StatusOr<v1::LookupResponse> answer, Moment at,
                      Actions& actions);
  void ReleaseAnswered(absl::StatusOr<v1::ReleaseResponse> answer, Moment at,
                       Actions& actions);
  // To be asked right before the function is called, which may be long after
  // RunFunction. False: the claim was lost meanwhile and has been given back;
  // the function is not to be called, and its end is of no interest.
  bool FunctionMayStart(Moment at, Actions& actions);
  void FunctionEnded(FunctionResult result, Moment at, Actions& actions);
  void ResolverEnded(Resolution resolution, Moment at, Actions& actions);

  // At most 4 KiB. Returns its number; a CheckpointStored with that number or a
  // greater one answers it.
  std::int64_t SaveCheckpoint(std::string checkpoint, Moment at,
                              Actions& actions);
  void HangUp(Moment at, Actions& actions);
  // HangUp, and from now on each thing is sent once more only.
  void Finish(Moment at, Actions& actions);

  // To be called at wake_at() or later; earlier, it does nothing.
  void TimePassed(Moment at, Actions& actions);
  std::optional<TimePoint> wake_at() const;

  // Of the grant; unset before.
  const v1::Claimed& claimed() const { return claimed_; }
  // Also between a lease's end and the event that tells of it: a process may be
  // stopped for longer than its lease, and then its timers are late.
  bool permitted(TimePoint now) const {
    return runs() && permitted_ && now < lease_ends_;
  }

 private:
  enum class State {
    kClaiming,
    kWaiting,
    kResolving,
    kExecuting,
    kFinalizing,
    kLookingUp,
    kReleasing,
    kEnded,
  };
  using Nanoseconds = std::chrono::nanoseconds;

  // A result is held back until what it says is settled.
  bool Settles() const {
    return !delivered_ &&
           (state_ == State::kFinalizing || state_ == State::kReleasing);
  }
  bool runs() const {
    return state_ == State::kResolving || state_ == State::kExecuting;
  }

  // once_machine.cc: from the claim to the grant, and the lease.
  void Claim(Moment at, Actions& actions);
  void Granted(const v1::Claimed& claimed, Moment at, Actions& actions);
  void Wait(const v1::InProgress& in_progress, Moment at, Actions& actions);
  void ClaimFailed(absl::Status status, Moment at, Actions& actions);
  void Renew(Moment at, Actions& actions);
  void LoseClaim(absl::Status why, Actions& actions);
  void ExpireLease(Moment at, Actions& actions);
  void WithdrawPermission(Actions& actions);
  // Of the one that the renewal under way carried; of all that are open.
  void CheckpointAnswered(const absl::Status& status, Actions& actions);
  void AnswerAllCheckpoints(const absl::Status& status, Actions& actions);
  std::optional<TimePoint> NextRenewal() const;
  Nanoseconds RenewalPause() const;
  v1::ClaimRequest ClaimOf() const;

  // once_settling.cc: from the function's end to the end.
  void StopRunning(Moment at, Actions& actions);
  void Finalize(RunOutcome outcome, v1::Response response, Moment at,
                Actions& actions);
  void Release(v1::ReleaseRequest::Disposition disposition, RunResult result,
               Moment at, Actions& actions);
  void LookUpWinner(absl::Status refusal, Actions& actions);
  void SendFinalizeNow(Actions& actions);
  void SendReleaseNow(Actions& actions);
  void SendAgainLater(Moment at);
  std::chrono::milliseconds SendTimeout() const;
  static RunResult HungUp();
  void FinishWith(RunResult result, Actions& actions);
  void DeliverOnce(RunResult result, Actions& actions);

  const Operation operation_;
  const std::string claim_token_;
  const bool resolves_;

  State state_ = State::kClaiming;
  bool delivered_ = false;
  bool finishing_ = false;

  TimePoint wait_ends_{};               // for another owner
  TimePoint claim_ends_{};              // for a grant that arrives in time
  TimePoint sent_at_{};                 // of the latest claim
  std::optional<TimePoint> resend_at_;  // of whatever waits to be sent again

  v1::Claimed claimed_;
  // As far as this process knows, counted from before the claim was sent.
  TimePoint lease_ends_{};
  Nanoseconds lease_{0};
  int late_grants_ = 0;
  TimePoint run_ends_{};  // no renewal holds the claim beyond it
  bool permitted_ = false;
  bool lost_ = false;

  bool renewing_ = false;  // a renewal is under way
  TimePoint renewal_sent_at_{};
  TimePoint next_renewal_{};
  TimePoint no_renewal_before_{};
  TimePoint no_checkpoint_before_{};

  std::int64_t checkpoint_number_ = 0;     // of the latest one
  std::optional<std::string> checkpoint_;  // waits for its renewal
  std::int64_t checkpoint_sent_ = 0;       // by the renewal under way

  // What is being settled: the response in it is the one to record.
  RunResult result_;
  v1::ReleaseRequest::Disposition disposition_{};
  TimePoint settle_ends_{};
  TimePoint deliver_at_{};  // also without an answer
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_ONCE_MACHINE_H_
