#include "tests/fault/checker/answer_fits.h"

#include <optional>
#include <string>
#include <variant>

#include "server/core/errors.h"
#include "tests/fault/checker/hex.h"

namespace idempotency::fault {
namespace {

bool IsTime(std::int64_t said_us, absl::Time time) {
  return said_us == 0 || absl::FromUnixMicros(said_us) == time;
}

// Unset says "never", or nothing: callers may leave times out.
bool IsExpiry(const std::optional<std::int64_t>& said_us, absl::Time time) {
  return !said_us.has_value() || absl::FromUnixMicros(*said_us) == time;
}

template <typename Number>
bool IsNumber(std::int64_t said, Number number) {
  return said == 0 || said == number;
}

bool IsText(const std::string& said, const std::string& text) {
  return said.empty() || said == text;
}

bool IsError(const absl::Status& status, const AnswerEvent& answer) {
  return answer.code != "OK" && answer.reason == ReasonName(ReasonOf(status));
}

bool IsReason(SaidReason said, AbandonReason reason) {
  switch (said) {
    case SaidReason::kNone:
      return true;
    case SaidReason::kLeaseLapsed:
      return reason == AbandonReason::kLeaseLapsed;
    case SaidReason::kOutcomeUnknown:
      return reason == AbandonReason::kOutcomeUnknown;
    case SaidReason::kServerError:
      return reason == AbandonReason::kServerError;
  }
  return false;
}

bool IsState(SaidState said, const std::optional<VisibleState>& state) {
  if (!state.has_value()) return said == SaidState::kNone;
  switch (*state) {
    case VisibleState::kInProgress:
      return said == SaidState::kInProgress;
    case VisibleState::kFinalized:
      return said == SaidState::kFinalized;
    case VisibleState::kReleased:
      return said == SaidState::kReleased;
    case VisibleState::kInDoubt:
      return said == SaidState::kInDoubt;
  }
  return false;
}

bool FitsOutcome(const Claimed& claimed, const AnswerEvent& answer) {
  return answer.outcome == Outcome::kClaimed &&
         answer.fencing == claimed.fencing_token &&
         IsNumber(answer.attempt, claimed.attempt) &&
         IsTime(answer.lease_until_us, claimed.lease_expires_at) &&
         IsExpiry(answer.expires_us, claimed.expires_at) &&
         TellsOf(claimed.abandoned, answer);
}

// The digest is compared where the record is at hand: see HasResponse().
bool FitsOutcome(const Replay& replay, const AnswerEvent& answer) {
  return answer.outcome == Outcome::kReplay &&
         answer.status == replay.response.status_code &&
         answer.body_omitted == replay.response.body_omitted &&
         answer.headers_omitted == replay.response.headers_omitted &&
         IsTime(answer.created_us, replay.created_at) &&
         IsTime(answer.finalized_us, replay.finalized_at) &&
         IsExpiry(answer.expires_us, replay.expires_at);
}

bool FitsOutcome(const InProgress& in_progress, const AnswerEvent& answer) {
  return answer.outcome == Outcome::kInProgress &&
         IsTime(answer.lease_until_us, in_progress.lease_expires_at) &&
         IsNumber(answer.attempt, in_progress.attempt) &&
         IsText(answer.owner, in_progress.owner);
}

bool FitsOutcome(const Mismatch& mismatch, const AnswerEvent& answer) {
  return answer.outcome == Outcome::kMismatch &&
         IsTime(answer.created_us, mismatch.created_at);
}

bool FitsOutcome(const InDoubt& in_doubt, const AnswerEvent& answer) {
  return answer.outcome == Outcome::kInDoubt &&
         TellsOf(in_doubt.abandoned, answer);
}

Outcome OutcomeOf(FinalizeResult result) {
  switch (result) {
    case FinalizeResult::kRecorded:
      return Outcome::kRecorded;
    case FinalizeResult::kRecordedWithoutBody:
      return Outcome::kRecordedWithoutBody;
    case FinalizeResult::kReleased:
      return Outcome::kResultReleased;
    case FinalizeResult::kInDoubt:
      return Outcome::kResultInDoubt;
  }
  return Outcome::kNone;
}

bool FitsFinal(const Record& record, const AnswerEvent& answer) {
  return answer.status == record.response.status_code &&
         IsTime(answer.finalized_us, record.finalized_at) &&
         HasResponse(answer, record.response, record.response_digest);
}

}  // namespace

bool TellsOf(const std::optional<Abandoned>& abandoned,
             const AnswerEvent& answer) {
  if (!abandoned.has_value()) return answer.abandoned_attempt == 0;
  const std::string checkpoint = abandoned->checkpoint.value_or("");
  return answer.abandoned_attempt == abandoned->attempt &&
         IsNumber(answer.abandoned_fencing, abandoned->fencing_token) &&
         IsTime(answer.abandoned_claimed_us, abandoned->claimed_at) &&
         IsTime(answer.abandoned_us, abandoned->abandoned_at) &&
         IsReason(answer.abandoned_reason, abandoned->reason) &&
         IsNumber(answer.abandoned_status, abandoned->status_code) &&
         IsText(answer.abandoned_checkpoint, ToHex(checkpoint)) &&
         IsText(answer.abandoned_owner, abandoned->owner);
}

bool HasResponse(const AnswerEvent& answer, const Response& response,
                 const std::string& response_digest) {
  if (answer.body_omitted != response.body_omitted ||
      answer.headers_omitted != response.headers_omitted) {
    return false;
  }
  if (response.body_omitted || response.headers_omitted) return true;
  return answer.digest == ToHex(response_digest);
}

bool Fits(const absl::StatusOr<ClaimOutcome>& decided,
          const AnswerEvent& answer) {
  if (!decided.ok()) return IsError(decided.status(), answer);
  return std::visit(
      [&](const auto& outcome) { return FitsOutcome(outcome, answer); },
      *decided);
}

bool Fits(const absl::StatusOr<FinalizeOutcome>& decided,
          const AnswerEvent& answer) {
  if (!decided.ok()) return IsError(decided.status(), answer);
  return answer.outcome == OutcomeOf(decided->result) &&
         IsExpiry(answer.expires_us, decided->expires_at);
}

bool Fits(const absl::StatusOr<ReleaseOutcome>& decided,
          const AnswerEvent& answer) {
  if (!decided.ok()) return IsError(decided.status(), answer);
  const Outcome outcome =
      decided->released ? Outcome::kReleased : Outcome::kNotReleased;
  return answer.outcome == outcome && IsState(answer.state, decided->state);
}

bool Fits(const absl::StatusOr<LookupOutcome>& decided,
          const AnswerEvent& answer) {
  if (!decided.ok()) return IsError(decided.status(), answer);
  const Record& record = decided->record;
  return answer.outcome == Outcome::kFound &&
         IsState(answer.state, decided->state) &&
         answer.fencing == record.fencing_token &&
         IsNumber(answer.attempt, record.attempt) &&
         IsText(answer.hash, ToHex(record.request_hash)) &&
         IsText(answer.policy, record.policy.name) &&
         IsTime(answer.created_us, record.created_at) &&
         IsTime(answer.claimed_us, record.claimed_at) &&
         IsTime(answer.lease_until_us, record.lease_expires_at) &&
         IsExpiry(answer.expires_us, record.expires_at) &&
         IsText(answer.owner, record.owner) &&
         IsText(answer.checkpoint, ToHex(record.checkpoint.value_or(""))) &&
         TellsOf(record.abandoned, answer) &&
         (decided->state != VisibleState::kFinalized ||
          FitsFinal(record, answer));
}

}  // namespace idempotency::fault
