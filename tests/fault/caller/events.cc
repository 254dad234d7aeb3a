#include "tests/fault/caller/events.h"

#include <string>

#include "absl/strings/escaping.h"
#include "client/status.h"
#include "server/core/digest.h"
#include "server/core/header_codec.h"
#include "server/core/uuid.h"

namespace idempotency::fault {
namespace {

std::int64_t Micros(const google::protobuf::Duration& duration) {
  return duration.seconds() * 1'000'000 + duration.nanos() / 1000;
}

std::int64_t Micros(const google::protobuf::Timestamp& time) {
  return time.seconds() * 1'000'000 + time.nanos() / 1000;
}

std::string Hex(const std::string& bytes) {
  return absl::BytesToHexString(bytes);
}

// A token that is none stays as it is: the server refuses it.
std::string TokenText(const std::string& token) {
  const auto uuid = ParseUuid(token);
  return uuid.has_value() ? FormatUuid(*uuid) : token;
}

std::string DigestOf(const v1::Response& response) {
  Response as_stored{.status_code = response.status_code(),
                     .body = response.body(),
                     .body_omitted = response.body_omitted(),
                     .headers_omitted = response.headers_omitted()};
  for (const v1::Header& header : response.headers()) {
    AppendHeader({header.name(), header.value()}, as_stored.headers);
  }
  return Hex(ResponseDigest(as_stored));
}

// Of a call or an answer.
template <typename Event>
void SetResponse(const v1::Response& response, Event& event) {
  event.status = response.status_code();
  event.digest = DigestOf(response);
  event.body_omitted = response.body_omitted();
  event.headers_omitted = response.headers_omitted();
}

SaidReason ReasonOf(v1::Abandoned::Reason reason) {
  switch (reason) {
    case v1::Abandoned::REASON_LEASE_LAPSED:
      return SaidReason::kLeaseLapsed;
    case v1::Abandoned::REASON_OUTCOME_UNKNOWN:
      return SaidReason::kOutcomeUnknown;
    case v1::Abandoned::REASON_SERVER_ERROR:
      return SaidReason::kServerError;
    default:
      return SaidReason::kNone;
  }
}

void SetAbandoned(const v1::Abandoned& abandoned, AnswerEvent& event) {
  event.abandoned_attempt = abandoned.attempt();
  event.abandoned_fencing = abandoned.fencing_token();
  event.abandoned_claimed_us = Micros(abandoned.claimed_at());
  event.abandoned_us = Micros(abandoned.abandoned_at());
  event.abandoned_reason = ReasonOf(abandoned.reason());
  event.abandoned_status = abandoned.status_code();
  event.abandoned_checkpoint = Hex(abandoned.checkpoint());
  event.abandoned_downstream = abandoned.downstream_key();
  event.abandoned_owner = abandoned.owner();
}

template <typename Message>
void SetExpiry(const Message& message, AnswerEvent& event) {
  if (message.has_expires_at()) event.expires_us = Micros(message.expires_at());
}

void SetClaimed(const v1::Claimed& claimed, AnswerEvent& event) {
  event.outcome = Outcome::kClaimed;
  event.fencing = claimed.fencing_token();
  event.attempt = claimed.attempt();
  event.lease_us = Micros(claimed.lease());
  event.lease_until_us = Micros(claimed.lease_expires_at());
  SetExpiry(claimed, event);
  event.downstream = claimed.downstream_key();
  if (claimed.has_abandoned()) SetAbandoned(claimed.abandoned(), event);
}

void SetReplay(const v1::Replay& replay, AnswerEvent& event) {
  event.outcome = Outcome::kReplay;
  SetResponse(replay.response(), event);
  event.created_us = Micros(replay.created_at());
  event.finalized_us = Micros(replay.finalized_at());
  SetExpiry(replay, event);
}

void SetInProgress(const v1::InProgress& in_progress, AnswerEvent& event) {
  event.outcome = Outcome::kInProgress;
  event.retry_after_us = Micros(in_progress.retry_after());
  event.lease_until_us = Micros(in_progress.lease_expires_at());
  event.attempt = in_progress.attempt();
  event.owner = in_progress.owner();
}

SaidState StateOf(v1::Record::State state) {
  switch (state) {
    case v1::Record::STATE_IN_PROGRESS:
      return SaidState::kInProgress;
    case v1::Record::STATE_FINALIZED:
      return SaidState::kFinalized;
    case v1::Record::STATE_RELEASED:
      return SaidState::kReleased;
    case v1::Record::STATE_IN_DOUBT:
      return SaidState::kInDoubt;
    default:
      return SaidState::kNone;
  }
}

Outcome OutcomeOf(v1::FinalizeResponse::Result result) {
  switch (result) {
    case v1::FinalizeResponse::RESULT_RECORDED:
      return Outcome::kRecorded;
    case v1::FinalizeResponse::RESULT_RECORDED_WITHOUT_BODY:
      return Outcome::kRecordedWithoutBody;
    case v1::FinalizeResponse::RESULT_RELEASED:
      return Outcome::kResultReleased;
    case v1::FinalizeResponse::RESULT_IN_DOUBT:
      return Outcome::kResultInDoubt;
    default:
      return Outcome::kNone;
  }
}

SaidDisposition DispositionOf(v1::ReleaseRequest::Disposition disposition) {
  switch (disposition) {
    case v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED:
      return SaidDisposition::kNotExecuted;
    case v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN:
      return SaidDisposition::kOutcomeUnknown;
    case v1::ReleaseRequest::DISPOSITION_NEVER_EXECUTED:
      return SaidDisposition::kNeverExecuted;
    default:
      return SaidDisposition::kUnset;
  }
}

template <typename Request>
CallEvent CallTo(Kind kind, const Request& request) {
  CallEvent event;
  event.kind = kind;
  event.scope = request.scope();
  event.key = request.key();
  return event;
}

AnswerEvent AnswerWithOk() {
  AnswerEvent event;
  event.code = "OK";
  return event;
}

}  // namespace

CallEvent CallOf(const v1::ClaimRequest& request) {
  CallEvent event = CallTo(Kind::kClaim, request);
  event.token = TokenText(request.claim_token());
  event.hash = Hex(request.request_hash());
  event.renew = request.renew_fencing_token();
  if (request.has_lease()) event.lease_us = Micros(request.lease());
  event.wait_us = Micros(request.wait());
  event.resolve = request.resolve_in_doubt();
  event.policy = request.policy();
  if (request.has_checkpoint()) event.checkpoint = Hex(request.checkpoint());
  event.checkpoint_number = request.checkpoint_number();
  event.owner = request.owner();
  return event;
}

CallEvent CallOf(const v1::FinalizeRequest& request) {
  CallEvent event = CallTo(Kind::kFinalize, request);
  event.token = TokenText(request.claim_token());
  SetResponse(request.response(), event);
  return event;
}

CallEvent CallOf(const v1::LookupRequest& request) {
  return CallTo(Kind::kLookup, request);
}

CallEvent CallOf(const v1::ReleaseRequest& request) {
  CallEvent event = CallTo(Kind::kRelease, request);
  event.token = TokenText(request.claim_token());
  event.disposition = DispositionOf(request.disposition());
  return event;
}

AnswerEvent AnswerOf(const v1::ClaimResponse& response) {
  AnswerEvent event = AnswerWithOk();
  switch (response.outcome_case()) {
    case v1::ClaimResponse::kClaimed:
      SetClaimed(response.claimed(), event);
      break;
    case v1::ClaimResponse::kReplay:
      SetReplay(response.replay(), event);
      break;
    case v1::ClaimResponse::kInProgress:
      SetInProgress(response.in_progress(), event);
      break;
    case v1::ClaimResponse::kMismatch:
      event.outcome = Outcome::kMismatch;
      event.created_us = Micros(response.mismatch().created_at());
      break;
    case v1::ClaimResponse::kInDoubt:
      event.outcome = Outcome::kInDoubt;
      SetAbandoned(response.in_doubt().abandoned(), event);
      break;
    case v1::ClaimResponse::OUTCOME_NOT_SET:
      break;
  }
  return event;
}

AnswerEvent AnswerOf(const v1::FinalizeResponse& response) {
  AnswerEvent event = AnswerWithOk();
  event.outcome = OutcomeOf(response.result());
  SetExpiry(response, event);
  return event;
}

AnswerEvent AnswerOf(const v1::ReleaseResponse& response) {
  AnswerEvent event = AnswerWithOk();
  event.outcome =
      response.released() ? Outcome::kReleased : Outcome::kNotReleased;
  event.state = StateOf(response.state());
  return event;
}

AnswerEvent AnswerOf(const v1::LookupResponse& response) {
  const v1::Record& record = response.record();
  AnswerEvent event = AnswerWithOk();
  event.outcome = Outcome::kFound;
  event.state = StateOf(record.state());
  event.hash = Hex(record.request_hash());
  event.policy = record.policy();
  event.fencing = record.fencing_token();
  event.attempt = record.attempt();
  event.created_us = Micros(record.created_at());
  event.claimed_us = Micros(record.claimed_at());
  event.lease_until_us = Micros(record.lease_expires_at());
  event.finalized_us = Micros(record.finalized_at());
  SetExpiry(record, event);
  if (record.has_response()) SetResponse(record.response(), event);
  event.checkpoint = Hex(record.checkpoint());
  event.downstream = record.downstream_key();
  event.conflicts = record.conflict_count();
  event.owner = record.owner();
  if (record.has_abandoned()) SetAbandoned(record.abandoned(), event);
  return event;
}

AnswerEvent AnswerOf(const absl::Status& error) {
  AnswerEvent event;
  event.code = absl::StatusCodeToString(error.code());
  event.reason = ErrorReasonOf(error);
  return event;
}

std::string WordOf(const AnswerEvent& answer) {
  switch (answer.outcome) {
    case Outcome::kNone:
      return answer.reason.empty() ? answer.code : answer.reason;
    case Outcome::kClaimed:
      return answer.abandoned_attempt > 0 ? "took_over" : "claimed";
    case Outcome::kReplay:
      return "replay";
    case Outcome::kInProgress:
      return "in_progress";
    case Outcome::kMismatch:
      return "mismatch";
    case Outcome::kInDoubt:
      return "in_doubt";
    case Outcome::kRecorded:
      return "recorded";
    case Outcome::kRecordedWithoutBody:
      return "recorded_without_body";
    case Outcome::kResultReleased:
      return "result_released";
    case Outcome::kResultInDoubt:
      return "result_in_doubt";
    case Outcome::kReleased:
      return "released";
    case Outcome::kNotReleased:
      return "not_released";
    case Outcome::kFound:
      return "found";
    case Outcome::kExecuted:
      return "executed";
  }
  return "";
}

}  // namespace idempotency::fault
