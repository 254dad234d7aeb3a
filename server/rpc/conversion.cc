#include "server/rpc/conversion.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "server/core/digest.h"
#include "server/core/errors.h"
#include "server/core/header_codec.h"
#include "server/core/limits.h"
#include "server/rpc/random.h"

namespace idempotency {
namespace {

std::string DownstreamKeyOf(const AnswerContext& context,
                            std::int32_t freed_count) {
  return DownstreamKey(context.downstream_namespace, context.id, freed_count);
}

void SetTime(absl::Time time, google::protobuf::Timestamp& out) {
  const std::int64_t seconds = absl::ToUnixSeconds(time);
  out.set_seconds(seconds);
  out.set_nanos(static_cast<std::int32_t>(
      absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(seconds))));
}

void SetDuration(absl::Duration duration, google::protobuf::Duration& out) {
  const std::int64_t seconds = absl::ToInt64Seconds(duration);
  out.set_seconds(seconds);
  out.set_nanos(static_cast<std::int32_t>(
      absl::ToInt64Nanoseconds(duration - absl::Seconds(seconds))));
}

bool IsNever(absl::Time expiry) { return expiry == absl::InfiniteFuture(); }

v1::Abandoned::Reason ToProto(AbandonReason reason) {
  switch (reason) {
    case AbandonReason::kLeaseLapsed:
      return v1::Abandoned::REASON_LEASE_LAPSED;
    case AbandonReason::kOutcomeUnknown:
      return v1::Abandoned::REASON_OUTCOME_UNKNOWN;
    case AbandonReason::kServerError:
      return v1::Abandoned::REASON_SERVER_ERROR;
  }
  return v1::Abandoned::REASON_UNSPECIFIED;
}

v1::Record::State ToProto(VisibleState state) {
  switch (state) {
    case VisibleState::kInProgress:
      return v1::Record::STATE_IN_PROGRESS;
    case VisibleState::kFinalized:
      return v1::Record::STATE_FINALIZED;
    case VisibleState::kReleased:
      return v1::Record::STATE_RELEASED;
    case VisibleState::kInDoubt:
      return v1::Record::STATE_IN_DOUBT;
  }
  return v1::Record::STATE_UNSPECIFIED;
}

v1::FinalizeResponse::Result ToProto(FinalizeResult result) {
  switch (result) {
    case FinalizeResult::kRecorded:
      return v1::FinalizeResponse::RESULT_RECORDED;
    case FinalizeResult::kRecordedWithoutBody:
      return v1::FinalizeResponse::RESULT_RECORDED_WITHOUT_BODY;
    case FinalizeResult::kReleased:
      return v1::FinalizeResponse::RESULT_RELEASED;
    case FinalizeResult::kInDoubt:
      return v1::FinalizeResponse::RESULT_IN_DOUBT;
  }
  return v1::FinalizeResponse::RESULT_UNSPECIFIED;
}

void Write(Abandoned abandoned, std::string downstream_key,
           v1::Abandoned& out) {
  out.set_attempt(abandoned.attempt);
  SetTime(abandoned.claimed_at, *out.mutable_claimed_at());
  SetTime(abandoned.abandoned_at, *out.mutable_abandoned_at());
  if (abandoned.checkpoint.has_value()) {
    out.set_checkpoint(*std::move(abandoned.checkpoint));
  }
  out.set_reason(ToProto(abandoned.reason));
  out.set_status_code(abandoned.status_code);
  out.set_downstream_key(std::move(downstream_key));
  out.set_fencing_token(abandoned.fencing_token);
  out.set_owner(std::move(abandoned.owner));
}

absl::Status Write(Response response, v1::Response& out) {
  const std::optional<std::vector<HeaderView>> headers =
      DecodeHeaders(response.headers);
  if (!headers.has_value()) {
    return MakeError(Reason::kRecordCorrupt,
                     "the recorded headers can't be read");
  }
  out.set_status_code(response.status_code);
  out.mutable_headers()->Reserve(static_cast<int>(headers->size()));
  for (const HeaderView& header : *headers) {
    v1::Header& added = *out.add_headers();
    added.set_name(std::string(header.name));
    added.set_value(std::string(header.value));
  }
  out.set_body(std::move(response.body));
  out.set_body_omitted(response.body_omitted);
  out.set_headers_omitted(response.headers_omitted);
  return absl::OkStatus();
}

absl::Status Write(Claimed claimed, const AnswerContext& context,
                   v1::ClaimResponse& response) {
  v1::Claimed& out = *response.mutable_claimed();
  std::string downstream_key = DownstreamKeyOf(context, claimed.freed_count);
  out.set_fencing_token(claimed.fencing_token);
  out.set_attempt(claimed.attempt);
  SetDuration(claimed.lease, *out.mutable_lease());
  SetTime(claimed.lease_expires_at, *out.mutable_lease_expires_at());
  if (!IsNever(claimed.expires_at)) {
    SetTime(claimed.expires_at, *out.mutable_expires_at());
  }
  if (claimed.abandoned.has_value()) {
    Write(*std::move(claimed.abandoned), downstream_key,
          *out.mutable_abandoned());
  }
  out.set_downstream_key(std::move(downstream_key));
  return absl::OkStatus();
}

absl::Status Write(Replay replay, const AnswerContext&,
                   v1::ClaimResponse& response) {
  v1::Replay& out = *response.mutable_replay();
  SetTime(replay.created_at, *out.mutable_created_at());
  SetTime(replay.finalized_at, *out.mutable_finalized_at());
  if (!IsNever(replay.expires_at)) {
    SetTime(replay.expires_at, *out.mutable_expires_at());
  }
  return Write(std::move(replay.response), *out.mutable_response());
}

absl::Status Write(InProgress in_progress, const AnswerContext& context,
                   v1::ClaimResponse& response) {
  v1::InProgress& out = *response.mutable_in_progress();
  SetDuration(RetryAfter(in_progress.lease_left, context.random),
              *out.mutable_retry_after());
  SetTime(in_progress.lease_expires_at, *out.mutable_lease_expires_at());
  out.set_attempt(in_progress.attempt);
  out.set_owner(std::move(in_progress.owner));
  return absl::OkStatus();
}

absl::Status Write(Mismatch mismatch, const AnswerContext&,
                   v1::ClaimResponse& response) {
  SetTime(mismatch.created_at,
          *response.mutable_mismatch()->mutable_created_at());
  return absl::OkStatus();
}

absl::Status Write(InDoubt in_doubt, const AnswerContext& context,
                   v1::ClaimResponse& response) {
  Write(std::move(in_doubt.abandoned),
        DownstreamKeyOf(context, in_doubt.freed_count),
        *response.mutable_in_doubt()->mutable_abandoned());
  return absl::OkStatus();
}

}  // namespace

absl::Status ToProto(ClaimOutcome outcome, const AnswerContext& context,
                     v1::ClaimResponse& out) {
  return std::visit(
      [&](auto&& alternative) {
        return Write(std::move(alternative), context, out);
      },
      std::move(outcome));
}

absl::Status ToProto(LookupOutcome outcome, const AnswerContext& context,
                     v1::LookupResponse& response) {
  v1::Record& out = *response.mutable_record();
  Record& record = outcome.record;
  std::string downstream_key = DownstreamKeyOf(context, record.freed_count);
  out.set_scope(context.id.scope);
  out.set_key(context.id.key);
  out.set_state(ToProto(outcome.state));
  out.set_request_hash(std::move(record.request_hash));
  out.set_policy(std::move(record.policy.name));
  out.set_fencing_token(record.fencing_token);
  out.set_attempt(record.attempt);
  SetTime(record.created_at, *out.mutable_created_at());
  SetTime(record.claimed_at, *out.mutable_claimed_at());
  SetTime(record.lease_expires_at, *out.mutable_lease_expires_at());
  if (!IsNever(record.expires_at)) {
    SetTime(record.expires_at, *out.mutable_expires_at());
  }
  if (record.checkpoint.has_value()) {
    out.set_checkpoint(*std::move(record.checkpoint));
  }
  out.set_conflict_count(outcome.conflict_count);
  out.set_owner(std::move(record.owner));
  if (record.abandoned.has_value()) {
    Write(*std::move(record.abandoned), downstream_key,
          *out.mutable_abandoned());
  }
  out.set_downstream_key(std::move(downstream_key));
  if (record.state != RecordState::kFinal) return absl::OkStatus();
  SetTime(record.finalized_at, *out.mutable_finalized_at());
  return Write(std::move(record.response), *out.mutable_response());
}

void ToProto(const FinalizeOutcome& outcome, v1::FinalizeResponse& out) {
  out.set_result(ToProto(outcome.result));
  if (!IsNever(outcome.expires_at)) {
    SetTime(outcome.expires_at, *out.mutable_expires_at());
  }
}

void ToProto(const ReleaseOutcome& outcome, v1::ReleaseResponse& out) {
  out.set_released(outcome.released);
  if (outcome.state.has_value()) out.set_state(ToProto(*outcome.state));
}

absl::Duration RetryAfter(absl::Duration lease_left, double random) {
  const absl::Duration pause =
      std::min(lease_left, absl::FromChrono(limits::kRetryAfterMax));
  const absl::Duration spread = absl::Seconds(Jittered(
      absl::ToDoubleSeconds(pause), limits::kRetryAfterJitter, random));
  return std::max(std::min(spread, lease_left), absl::Nanoseconds(1));
}

}  // namespace idempotency
