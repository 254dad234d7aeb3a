// From the end of the function to the end of the operation: what happened is
// recorded or given back, and the caller is told.
#include <algorithm>
#include <utility>

#include "client/once_machine.h"
#include "client/status.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// Where no lease is known: none was asked for, and the claim never answered.
constexpr milliseconds kSettleDefault = std::chrono::seconds(30);
constexpr milliseconds kResendMin{50};
constexpr milliseconds kResendMax{2000};
constexpr int kResendsPerLease = 20;
// For the answer to one sending, however soon the caller wants its result.
constexpr milliseconds kSendTimeoutMin{1000};

enum class Answer {
  kDone,
  kRefused,     // the record is another attempt's, or gone
  kImpossible,  // and never will be possible: what was sent is not acceptable
  kNone,        // may have been carried out, or not
};

Answer AnswerOf(const absl::Status& status) {
  if (status.ok()) return Answer::kDone;
  if (!IsServiceError(status)) return Answer::kNone;
  switch (status.code()) {
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
      return Answer::kRefused;
    case absl::StatusCode::kInvalidArgument:
      return Answer::kImpossible;
    default:
      return Answer::kNone;
  }
}

absl::Status OrElse(absl::Status why, const absl::Status& otherwise) {
  return why.ok() ? otherwise : std::move(why);
}

bool Recorded(v1::FinalizeResponse::Result result) {
  return result == v1::FinalizeResponse::RESULT_RECORDED ||
         result == v1::FinalizeResponse::RESULT_RECORDED_WITHOUT_BODY;
}

}  // namespace

bool OnceMachine::FunctionMayStart(Moment at, Actions& actions) {
  ExpireLease(at, actions);
  if (finishing_) {
    Release(v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED, HungUp(), at,
            actions);
    return false;
  }
  if (permitted_) return true;
  Release(v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED,
          {.outcome = RunOutcome::kUnavailable,
           .status = absl::AbortedError(
               "the claim was lost before the function could start")},
          at, actions);
  return false;
}

void OnceMachine::FunctionEnded(FunctionResult result, Moment at,
                                Actions& actions) {
  if (state_ != State::kExecuting) return;
  if (auto* const executed = std::get_if<Executed>(&result)) {
    return Finalize(RunOutcome::kExecuted, std::move(executed->response), at,
                    actions);
  }
  if (auto* const nothing = std::get_if<NothingHappened>(&result)) {
    return Release(v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED,
                   {.outcome = RunOutcome::kNothingHappened,
                    .status = OrElse(std::move(nothing->why),
                                     absl::AbortedError("nothing happened"))},
                   at, actions);
  }
  Release(v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN,
          {.outcome = RunOutcome::kUnknown,
           .status = OrElse(std::move(std::get<OutcomeUnknown>(result).why),
                            absl::UnknownError("the outcome is unknown"))},
          at, actions);
}

void OnceMachine::ResolverEnded(Resolution resolution, Moment at,
                                Actions& actions) {
  if (state_ != State::kResolving) return;
  if (auto* const executed = std::get_if<WasExecuted>(&resolution)) {
    return Finalize(RunOutcome::kResolved, std::move(executed->response), at,
                    actions);
  }
  if (std::holds_alternative<NeverExecuted>(resolution)) {
    state_ = State::kExecuting;
    actions.push_back(RunFunction{});
    return;
  }
  // This attempt did nothing itself, so that the one it asked about stays the
  // one that is known.
  Release(v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED,
          {.outcome = RunOutcome::kInDoubt,
           .status = OrElse(std::move(std::get<StillUnknown>(resolution).why),
                            absl::UnknownError("the channel cannot tell"))},
          at, actions);
}

void OnceMachine::StopRunning(Moment at, Actions& actions) {
  AnswerAllCheckpoints(absl::CancelledError("the attempt has ended"), actions);
  const nanoseconds lease = operation_.lease.value_or(kSettleDefault);
  settle_ends_ = at.now + (lease_ > nanoseconds(0) ? lease_ : lease);
  if (finishing_) settle_ends_ = at.now;
  deliver_at_ = at.now + operation_.finalize_timeout;
}

milliseconds OnceMachine::SendTimeout() const {
  return std::max(operation_.finalize_timeout, kSendTimeoutMin);
}

void OnceMachine::Finish(Moment at, Actions& actions) {
  finishing_ = true;
  settle_ends_ = std::min(settle_ends_, at.now);
  if (resend_at_.has_value()) resend_at_ = at.now;
  HangUp(at, actions);
  TimePassed(at, actions);
}

// ----------------------------------------------------------------- finalizing

void OnceMachine::Finalize(RunOutcome outcome, v1::Response response, Moment at,
                           Actions& actions) {
  StopRunning(at, actions);
  state_ = State::kFinalizing;
  result_ = {.outcome = outcome, .response = std::move(response)};
  SendFinalizeNow(actions);
}

void OnceMachine::SendFinalizeNow(Actions& actions) {
  v1::FinalizeRequest request;
  request.set_scope(operation_.scope);
  request.set_key(operation_.key);
  request.set_claim_token(claim_token_);
  *request.mutable_response() = result_.response;
  actions.push_back(SendFinalize{std::move(request), SendTimeout()});
}

void OnceMachine::FinalizeAnswered(absl::StatusOr<v1::FinalizeResponse> answer,
                                   Moment at, Actions& actions) {
  switch (AnswerOf(answer.status())) {
    case Answer::kDone: {
      RunResult result = std::move(result_);
      result.recorded = Recorded(answer->result());
      return FinishWith(std::move(result), actions);
    }
    case Answer::kRefused:
      return LookUpWinner(answer.status(), actions);
    case Answer::kImpossible:
      return Release(
          v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN,
          {.outcome = RunOutcome::kUnknown, .status = answer.status()}, at,
          actions);
    case Answer::kNone:
      break;
  }
  // The caller gets what was done; the record gets it as soon as it can.
  DeliverOnce(result_, actions);
  if (at.now < settle_ends_) return SendAgainLater(at);
  Release(v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN, {}, at, actions);
}

// What counts is what everybody else is told, never the own response.
void OnceMachine::LookUpWinner(absl::Status refusal, Actions& actions) {
  RunResult conflict = {.outcome = RunOutcome::kConflict,
                        .status = std::move(refusal)};
  if (delivered_) return FinishWith(std::move(conflict), actions);
  result_ = std::move(conflict);
  state_ = State::kLookingUp;
  v1::LookupRequest request;
  request.set_scope(operation_.scope);
  request.set_key(operation_.key);
  actions.push_back(SendLookup{std::move(request), operation_.claim_timeout});
}

void OnceMachine::LookupAnswered(absl::StatusOr<v1::LookupResponse> answer,
                                 Moment, Actions& actions) {
  if (answer.ok() && answer->record().state() == v1::Record::STATE_FINALIZED &&
      answer->record().request_hash() == operation_.request_hash) {
    return FinishWith(
        {.outcome = RunOutcome::kWinner,
         .response = std::move(*answer->mutable_record()->mutable_response()),
         .recorded = true},
        actions);
  }
  FinishWith(std::move(result_), actions);
}

// ------------------------------------------------------------------ releasing

void OnceMachine::Release(v1::ReleaseRequest::Disposition disposition,
                          RunResult result, Moment at, Actions& actions) {
  // After a Finalize that was sent for a lease there is one try left.
  if (state_ != State::kFinalizing) StopRunning(at, actions);
  state_ = State::kReleasing;
  result_ = std::move(result);
  disposition_ = disposition;
  SendReleaseNow(actions);
}

void OnceMachine::SendReleaseNow(Actions& actions) {
  v1::ReleaseRequest request;
  request.set_scope(operation_.scope);
  request.set_key(operation_.key);
  request.set_claim_token(claim_token_);
  request.set_disposition(disposition_);
  actions.push_back(SendRelease{std::move(request), SendTimeout()});
}

void OnceMachine::ReleaseAnswered(absl::StatusOr<v1::ReleaseResponse> answer,
                                  Moment at, Actions& actions) {
  // Refused: the record is another's business by now.
  if (AnswerOf(answer.status()) != Answer::kNone || at.now >= settle_ends_) {
    return FinishWith(std::move(result_), actions);
  }
  DeliverOnce(result_, actions);
  SendAgainLater(at);
}

// --------------------------------------------------------------------- ending

void OnceMachine::SendAgainLater(Moment at) {
  const nanoseconds pause = std::clamp<nanoseconds>(
      (settle_ends_ - at.now) / kResendsPerLease, kResendMin, kResendMax);
  // From a half to the whole of it, so that many do not come back together.
  resend_at_ = at.now + std::chrono::duration_cast<nanoseconds>(
                            pause * (0.5 + 0.5 * at.random));
}

void OnceMachine::FinishWith(RunResult result, Actions& actions) {
  state_ = State::kEnded;
  resend_at_.reset();
  DeliverOnce(std::move(result), actions);
  actions.push_back(End{});
}

void OnceMachine::DeliverOnce(RunResult result, Actions& actions) {
  if (std::exchange(delivered_, true)) return;
  actions.push_back(Deliver{std::move(result)});
}

}  // namespace idempotency
