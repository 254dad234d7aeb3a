#include "client/once_machine.h"

#include <algorithm>
#include <utility>

#include "client/status.h"

namespace idempotency {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// A wait is asked for in portions, so that a coordinator that is away is
// noticed long before a long wait is over.
constexpr nanoseconds kWaitPortion = std::chrono::seconds(5);
constexpr int kLateGrantsMax = 2;
// The shortest lease that the service grants.
constexpr milliseconds kLeaseMin{100};
constexpr int kLeasesOfARun = 10;
// A lease is renewed when a third of it is over, so that two renewals may fail.
constexpr int kRenewalsPerLease = 3;
// A renewal that was not answered is sent again soon.
constexpr int kRenewalRetriesPerLease = 20;
// So long after a renewal that failed a checkpoint is sent, however long the
// lease.
constexpr milliseconds kCheckpointPauseMax{2000};
// Short enough that a renewal which hangs leaves time for two more.
constexpr int kRenewalTimeoutsPerLease = 6;
constexpr milliseconds kRenewalTimeoutMin{100};
// Longer ones could not be added up in nanoseconds.
constexpr milliseconds kDurationMax = std::chrono::hours(24 * 366);

nanoseconds ToNanoseconds(const google::protobuf::Duration& duration) {
  return std::chrono::seconds(duration.seconds()) +
         nanoseconds(duration.nanos());
}

void SetDuration(nanoseconds value, google::protobuf::Duration* duration) {
  const auto seconds = duration_cast<std::chrono::seconds>(value);
  duration->set_seconds(seconds.count());
  duration->set_nanos(static_cast<std::int32_t>((value - seconds).count()));
}

milliseconds Bounded(milliseconds duration) {
  return std::clamp(duration, -kDurationMax, kDurationMax);
}

Operation Bounded(Operation operation) {
  if (operation.lease.has_value()) operation.lease = Bounded(*operation.lease);
  if (operation.max_run_time.has_value()) {
    operation.max_run_time = Bounded(*operation.max_run_time);
  }
  operation.wait = std::max(Bounded(operation.wait), milliseconds(0));
  operation.claim_timeout = Bounded(operation.claim_timeout);
  operation.finalize_timeout = Bounded(operation.finalize_timeout);
  return operation;
}

// Rounded up: a timeout of 0 would not be sent at all.
milliseconds TimeoutOf(nanoseconds duration) {
  return duration_cast<milliseconds>(duration) + milliseconds(1);
}

absl::Status UnknownOutcome() {
  return absl::UnavailableError(
      "the server answered with an outcome this client does not know");
}

// The service's last word on a grant.
bool TellsThatTheClaimIsLost(const absl::Status& status) {
  return IsServiceError(status) &&
         (status.code() == absl::StatusCode::kFailedPrecondition ||
          status.code() == absl::StatusCode::kNotFound);
}

}  // namespace

OnceMachine::OnceMachine(Operation operation, std::string claim_token,
                         bool resolves)
    : operation_(Bounded(std::move(operation))),
      claim_token_(std::move(claim_token)),
      resolves_(resolves) {}

// ------------------------------------------------------------------ claiming

void OnceMachine::Start(Moment at, Actions& actions) {
  if (delivered_) return FinishWith({}, actions);
  if (const absl::Status valid = CheckText(operation_); !valid.ok()) {
    return FinishWith({.outcome = RunOutcome::kInvalid, .status = valid},
                      actions);
  }
  wait_ends_ = at.now + operation_.wait;
  claim_ends_ = wait_ends_ + operation_.claim_timeout;
  Claim(at, actions);
}

v1::ClaimRequest OnceMachine::ClaimOf() const {
  v1::ClaimRequest request;
  request.set_scope(operation_.scope);
  request.set_key(operation_.key);
  request.set_request_hash(operation_.request_hash);
  request.set_policy(operation_.policy);
  request.set_owner(operation_.owner);
  request.set_claim_token(claim_token_);
  return request;
}

void OnceMachine::Claim(Moment at, Actions& actions) {
  state_ = State::kClaiming;
  sent_at_ = at.now;
  v1::ClaimRequest request = ClaimOf();
  request.set_resolve_in_doubt(resolves_);
  if (operation_.lease.has_value()) {
    SetDuration(*operation_.lease, request.mutable_lease());
  }
  const nanoseconds wait = std::clamp<nanoseconds>(
      wait_ends_ - at.now, nanoseconds(0), kWaitPortion);
  if (wait > nanoseconds(0)) SetDuration(wait, request.mutable_wait());
  actions.push_back(
      SendClaim{std::move(request),
                operation_.claim_timeout + duration_cast<milliseconds>(wait)});
}

void OnceMachine::ClaimAnswered(absl::StatusOr<v1::ClaimResponse> answer,
                                Moment at, Actions& actions) {
  if (!answer.ok()) return ClaimFailed(answer.status(), at, actions);
  switch (answer->outcome_case()) {
    case v1::ClaimResponse::kClaimed:
      return Granted(answer->claimed(), at, actions);
    case v1::ClaimResponse::kReplay:
      return FinishWith(
          {.outcome = RunOutcome::kReplayed,
           .response = std::move(*answer->mutable_replay()->mutable_response()),
           .recorded = true},
          actions);
    case v1::ClaimResponse::kInProgress:
      return Wait(answer->in_progress(), at, actions);
    case v1::ClaimResponse::kMismatch:
      return FinishWith({.outcome = RunOutcome::kMismatch,
                         .status = absl::FailedPreconditionError(
                             "the key was used for a different request")},
                        actions);
    case v1::ClaimResponse::kInDoubt:
      return FinishWith(
          {.outcome = RunOutcome::kInDoubt,
           .status = absl::FailedPreconditionError(
               "an earlier attempt was abandoned with unknown outcome; find "
               "out what it did, with a resolver")},
          actions);
    case v1::ClaimResponse::OUTCOME_NOT_SET:
      break;
  }
  ClaimFailed(UnknownOutcome(), at, actions);
}

// A claim that may have been granted is given back, or it would keep everybody
// from the key for a lease.
void OnceMachine::ClaimFailed(absl::Status status, Moment at,
                              Actions& actions) {
  // An earlier answer may have granted it, too late to be used.
  const bool may_be_granted = claimed_.attempt() > 0 || MayHaveActed(status);
  const bool invalid = status.code() == absl::StatusCode::kInvalidArgument &&
                       IsServiceError(status);
  RunResult result = {
      .outcome = invalid ? RunOutcome::kInvalid : RunOutcome::kUnavailable,
      .status = std::move(status)};
  if (!may_be_granted) return FinishWith(std::move(result), actions);
  DeliverOnce(std::move(result), actions);
  Release(v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED, {}, at, actions);
}

void OnceMachine::Wait(const v1::InProgress& in_progress, Moment at,
                       Actions& actions) {
  const nanoseconds retry_after = ToNanoseconds(in_progress.retry_after());
  if (delivered_ || at.now >= wait_ends_) {
    return FinishWith({.outcome = RunOutcome::kInProgress,
                       .status = InProgressStatus(retry_after),
                       .retry_after = retry_after},
                      actions);
  }
  state_ = State::kWaiting;
  // Those who wait for one owner were told much the same: a quarter apart.
  const auto spread = duration_cast<nanoseconds>(
      std::chrono::duration<double, std::nano>(retry_after) * 0.25 * at.random);
  resend_at_ = std::min(at.now + retry_after + spread, wait_ends_);
}

void OnceMachine::Granted(const v1::Claimed& claimed, Moment at,
                          Actions& actions) {
  const bool first = claimed_.attempt() == 0;
  lease_ = ToNanoseconds(claimed.lease());
  lease_ends_ = sent_at_ + lease_;
  next_renewal_ = sent_at_ + lease_ / kRenewalsPerLease;
  claimed_ = claimed;
  if (delivered_) {
    // The caller has gone: nothing was executed for it, nothing will be.
    return Release(v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED, {}, at,
                   actions);
  }
  // After a long wait little is left of a lease that counts from the sending,
  // or nothing. The same token claims the same grant again: once for the sake
  // of a longer one, and not for ever.
  const bool over = at.now >= lease_ends_;
  const bool soon_over = at.now - sent_at_ > lease_ / 2;
  if (over) ++late_grants_;
  if ((over || (soon_over && first)) && late_grants_ <= kLateGrantsMax &&
      at.now < claim_ends_) {
    return Claim(at, actions);
  }
  if (over) {
    // No outage: the coordinator has answered.
    return ClaimFailed(
        AsOutcomeUnknown(absl::AbortedError(
            "the lease was over before the answer came; ask for a longer one")),
        at, actions);
  }
  run_ends_ =
      sent_at_ + operation_.max_run_time.value_or(
                     duration_cast<milliseconds>(lease_) * kLeasesOfARun);
  permitted_ = true;
  const bool resolve_first = claimed.has_abandoned() && resolves_;
  state_ = resolve_first ? State::kResolving : State::kExecuting;
  if (resolve_first) {
    actions.push_back(RunResolver{});
  } else {
    actions.push_back(RunFunction{});
  }
}

void OnceMachine::HangUp(Moment, Actions& actions) {
  if (state_ != State::kClaiming && state_ != State::kWaiting) return;
  RunResult result = HungUp();
  // A claim under way may still be granted; its answer is waited for.
  if (state_ == State::kClaiming) return DeliverOnce(result, actions);
  FinishWith(std::move(result), actions);
}

RunResult OnceMachine::HungUp() {
  return {.outcome = RunOutcome::kHungUp,
          .status = absl::CancelledError("the caller hung up")};
}

// ------------------------------------------------------------------ the lease

std::optional<OnceMachine::TimePoint> OnceMachine::NextRenewal() const {
  if (!runs() || renewing_ || lost_) return std::nullopt;
  if (checkpoint_.has_value()) return no_checkpoint_before_;
  // Renewed to the end of the run already.
  if (!operation_.renew || run_ends_ - lease_ends_ < kLeaseMin) {
    return std::nullopt;
  }
  const TimePoint due = std::max(next_renewal_, no_renewal_before_);
  if (due >= run_ends_) return std::nullopt;
  return due;
}

OnceMachine::Nanoseconds OnceMachine::RenewalPause() const {
  return std::max<nanoseconds>(lease_, kLeaseMin) / kRenewalRetriesPerLease;
}

void OnceMachine::Renew(Moment at, Actions& actions) {
  v1::ClaimRequest request = ClaimOf();
  request.set_renew_fencing_token(claimed_.fencing_token());
  // Unset it means: as last granted. The shortest extends nothing.
  const nanoseconds left = run_ends_ - at.now;
  if (!operation_.renew || left < kLeaseMin) {
    SetDuration(kLeaseMin, request.mutable_lease());
  } else if (left < lease_) {
    SetDuration(left, request.mutable_lease());
  }
  if (checkpoint_.has_value()) {
    request.set_checkpoint(*checkpoint_);
    request.set_checkpoint_number(checkpoint_number_);
  }
  checkpoint_sent_ = checkpoint_.has_value() ? checkpoint_number_ : 0;
  renewing_ = true;
  renewal_sent_at_ = at.now;
  const nanoseconds timeout = std::max<nanoseconds>(
      lease_ / kRenewalTimeoutsPerLease, kRenewalTimeoutMin);
  actions.push_back(SendRenewal{
      std::move(request),
      TimeoutOf(std::min<nanoseconds>(timeout, operation_.claim_timeout))});
}

void OnceMachine::RenewalAnswered(absl::StatusOr<v1::ClaimResponse> answer,
                                  Moment at, Actions& actions) {
  renewing_ = false;
  if (!runs()) return;
  // First: an answer that comes too late gives no permission back.
  ExpireLease(at, actions);
  if (answer.ok() &&
      answer->outcome_case() == v1::ClaimResponse::OUTCOME_NOT_SET) {
    answer = UnknownOutcome();
  }
  if (!answer.ok()) {
    if (TellsThatTheClaimIsLost(answer.status())) {
      return LoseClaim(answer.status(), actions);
    }
    if (answer.status().code() == absl::StatusCode::kInvalidArgument &&
        checkpoint_sent_ > 0) {
      CheckpointAnswered(answer.status(), actions);
    }
    no_renewal_before_ = at.now + RenewalPause();
    no_checkpoint_before_ =
        at.now + std::min<nanoseconds>(RenewalPause(), kCheckpointPauseMax);
    return TimePassed(at, actions);
  }
  if (!answer->has_claimed()) {
    return LoseClaim(absl::FailedPreconditionError(
                         "a renewal found that the attempt has ended"),
                     actions);
  }
  const nanoseconds left = ToNanoseconds(answer->claimed().lease());
  // What is left was told between the two moments, less what the coordinator
  // took at most. Where the database's clock was set, the lease ends otherwise
  // than an earlier answer said.
  lease_ends_ = std::clamp(lease_ends_, renewal_sent_at_ + left,
                           at.now + left + (at.now - renewal_sent_at_));
  // Not at once, however little was left when the answer was made.
  next_renewal_ = std::max(renewal_sent_at_ + left / kRenewalsPerLease,
                           at.now + RenewalPause());
  if (checkpoint_sent_ > 0) CheckpointAnswered(absl::OkStatus(), actions);
  TimePassed(at, actions);
}

void OnceMachine::CheckpointAnswered(const absl::Status& status,
                                     Actions& actions) {
  if (checkpoint_sent_ == checkpoint_number_) checkpoint_.reset();
  actions.push_back(CheckpointStored{checkpoint_sent_, status});
}

void OnceMachine::LoseClaim(absl::Status why, Actions& actions) {
  lost_ = true;
  AnswerAllCheckpoints(why, actions);
  WithdrawPermission(actions);
}

void OnceMachine::ExpireLease(Moment at, Actions& actions) {
  if (!runs() || at.now < lease_ends_) return;
  if (checkpoint_.has_value()) {
    AnswerAllCheckpoints(
        absl::UnavailableError(
            "the lease ended before the checkpoint was stored"),
        actions);
  }
  WithdrawPermission(actions);
}

void OnceMachine::WithdrawPermission(Actions& actions) {
  if (!std::exchange(permitted_, false)) return;
  actions.push_back(Withdraw{});
}

void OnceMachine::AnswerAllCheckpoints(const absl::Status& status,
                                       Actions& actions) {
  checkpoint_.reset();
  actions.push_back(CheckpointStored{checkpoint_number_, status});
}

std::int64_t OnceMachine::SaveCheckpoint(std::string checkpoint, Moment at,
                                         Actions& actions) {
  ++checkpoint_number_;
  if (!runs() || lost_) {
    AnswerAllCheckpoints(absl::FailedPreconditionError(
                             "the attempt has ended or its claim is lost"),
                         actions);
  } else {
    checkpoint_ = std::move(checkpoint);
    TimePassed(at, actions);
  }
  return checkpoint_number_;
}

// ----------------------------------------------------------------------- time

std::optional<OnceMachine::TimePoint> OnceMachine::wake_at() const {
  std::optional<TimePoint> next = resend_at_;
  const auto no_later_than = [&next](TimePoint time) {
    next = next.has_value() ? std::min(*next, time) : time;
  };
  if (runs() && permitted_) no_later_than(lease_ends_);
  if (Settles()) no_later_than(deliver_at_);
  if (const auto renewal = NextRenewal()) no_later_than(*renewal);
  return next;
}

void OnceMachine::TimePassed(Moment at, Actions& actions) {
  ExpireLease(at, actions);
  if (const auto renewal = NextRenewal();
      renewal.has_value() && at.now >= *renewal) {
    Renew(at, actions);
  }
  if (Settles() && at.now >= deliver_at_) DeliverOnce(result_, actions);
  if (!resend_at_.has_value() || at.now < *resend_at_) return;
  resend_at_.reset();
  switch (state_) {
    case State::kWaiting:
      return Claim(at, actions);
    case State::kFinalizing:
      return SendFinalizeNow(actions);
    case State::kReleasing:
      return SendReleaseNow(actions);
    default:
      return;
  }
}

}  // namespace idempotency
