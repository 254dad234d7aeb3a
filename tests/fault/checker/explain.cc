#include "tests/fault/checker/explain.h"

#include <algorithm>
#include <string>
#include <vector>

#include "server/core/errors.h"
#include "server/core/limits.h"
#include "server/core/transitions.h"
#include "tests/fault/checker/answer_fits.h"
#include "tests/fault/checker/hex.h"
#include "tests/support/record_rules.h"

namespace idempotency::fault {
namespace {

constexpr absl::Duration kTick = absl::Microseconds(1);

absl::StatusOr<Uuid> TokenOf(const CallEvent& call) {
  const std::optional<Uuid> token = ParseUuid(call.token);
  if (token.has_value()) return *token;
  return absl::InvalidArgumentError(
      "call " + call.op + " has no claim token: '" + call.token + "'");
}

absl::StatusOr<Command> ClaimOf(const CallEvent& call) {
  const absl::StatusOr<Uuid> token = TokenOf(call);
  if (!token.ok()) return token.status();
  const std::optional<std::string> hash = FromHex(call.hash);
  const std::optional<std::string> checkpoint =
      FromHex(call.checkpoint.value_or(""));
  if (!hash.has_value() || hash->empty() || !checkpoint.has_value()) {
    return absl::InvalidArgumentError(
        "call " + call.op + ": hash and checkpoint are not hexadecimal");
  }
  ClaimCommand claim{.id = {call.scope, call.key},
                     .request_hash = *hash,
                     .claim_token = *token,
                     .policy_name = call.policy,
                     .resolve_in_doubt = call.resolve,
                     .renew_fencing_token = call.renew,
                     .checkpoint_number = call.checkpoint_number,
                     .owner = call.owner};
  if (call.lease_us.has_value()) {
    claim.lease = absl::Microseconds(*call.lease_us);
  }
  if (call.checkpoint.has_value()) claim.checkpoint = *checkpoint;
  return claim;
}

absl::StatusOr<Command> FinalizeOf(const CallEvent& call) {
  const absl::StatusOr<Uuid> token = TokenOf(call);
  if (!token.ok()) return token.status();
  const std::optional<std::string> digest = FromHex(call.digest);
  if (!digest.has_value() || digest->empty()) {
    return absl::InvalidArgumentError("call " + call.op +
                                      " has no digest in hexadecimal");
  }
  FinalizeCommand finalize{.id = {call.scope, call.key},
                           .claim_token = *token,
                           .response_digest = *digest};
  finalize.response.status_code = static_cast<std::int32_t>(call.status);
  finalize.response.body_omitted = call.body_omitted;
  finalize.response.headers_omitted = call.headers_omitted;
  return finalize;
}

absl::StatusOr<Command> ReleaseOf(const CallEvent& call) {
  const absl::StatusOr<Uuid> token = TokenOf(call);
  if (!token.ok()) return token.status();
  ReleaseCommand release{.id = {call.scope, call.key}, .claim_token = *token};
  switch (call.disposition) {
    case SaidDisposition::kNotExecuted:
      release.disposition = Disposition::kNotExecuted;
      return release;
    case SaidDisposition::kOutcomeUnknown:
      release.disposition = Disposition::kOutcomeUnknown;
      return release;
    case SaidDisposition::kNeverExecuted:
      release.disposition = Disposition::kNeverExecuted;
      return release;
    case SaidDisposition::kUnset:
      break;
  }
  return absl::InvalidArgumentError("call " + call.op + " has no disposition");
}

// ---- Changes.

// The times at which the change can have been decided, the likeliest first:
// each kind of change leaves its time somewhere in the record.
std::vector<absl::Time> TimesOf(const Step& step, const Span& span) {
  const Record& after = *step.after;
  const Record* const before = step.before;
  std::vector<absl::Time> times;
  if (before == nullptr || before->fencing_token != after.fencing_token) {
    times.push_back(after.claimed_at);
    return times;
  }
  if (after.state == RecordState::kFinal &&
      before->state != RecordState::kFinal) {
    times.push_back(after.finalized_at);
    return times;
  }
  if (after.state == RecordState::kReleased &&
      before->state != RecordState::kReleased) {
    times.push_back(after.expires_at -
                    after.policy.retention.value_or(
                        absl::FromChrono(limits::kFreedPermanentRetention)));
    return times;
  }
  if (after.gave_up_at != before->gave_up_at) {
    times.push_back(after.gave_up_at);
    return times;
  }
  if (after.lease_expires_at != before->lease_expires_at) {
    times.push_back(after.lease_expires_at - after.lease);
  }
  times.push_back(std::min(span.until, before->lease_expires_at - after.lease));
  times.push_back(std::min(span.until, before->expires_at - kTick));
  times.push_back(span.until);
  times.push_back(span.from);
  return times;
}

// What may be told of a change when only its row is known: the response itself
// is not, nor what its headers and body were cut down to.
FinalizeCommand AsStored(const FinalizeCommand& finalize, const Record& after) {
  FinalizeCommand command = finalize;
  if (after.state != RecordState::kFinal) return command;
  command.response.headers = after.response.headers;
  command.response.body = after.response.body;
  command.response.body_omitted |= after.response.body_omitted;
  command.response.headers_omitted |= after.response.headers_omitted;
  return command;
}

template <typename Outcome>
bool IsExplained(const Decision<Outcome>& decision, const Record& after,
                 const AnswerEvent* answer) {
  return decision.write.has_value() && *decision.write == after &&
         (answer == nullptr || Fits(decision.answer, *answer));
}

bool MakesAt(const ClaimCommand& claim, const Step& step, absl::Time now,
             const AnswerEvent* answer) {
  if (!claim.policy_name.empty() && claim.renew_fencing_token == 0 &&
      (step.before == nullptr ||
       step.before->freed_count != step.after->freed_count) &&
      step.after->policy.name != claim.policy_name) {
    return false;
  }
  return IsExplained(DecideClaim(step.before, claim, now), *step.after, answer);
}

bool MakesAt(const FinalizeCommand& finalize, const Step& step, absl::Time now,
             const AnswerEvent* answer) {
  return IsExplained(DecideFinalize(step.before, finalize, now), *step.after,
                     answer);
}

bool MakesAt(const ReleaseCommand& release, const Step& step, absl::Time now,
             const AnswerEvent* answer) {
  return IsExplained(DecideRelease(step.before, release, now), *step.after,
                     answer);
}

template <typename OneCommand>
bool MakesWithin(const OneCommand& command, const Step& step, const Span& span,
                 const AnswerEvent* answer) {
  const std::vector<absl::Time> times = TimesOf(step, span);
  return std::any_of(times.begin(), times.end(), [&](absl::Time now) {
    return now >= span.from && now <= span.until &&
           MakesAt(command, step, now, answer);
  });
}

// ---- Answers.

// Between these times what is told of `state` does not change.
std::vector<absl::Time> MomentsOf(const Record* state, const Span& span) {
  std::vector<absl::Time> moments = {span.from, span.until};
  if (state == nullptr) return moments;
  for (const absl::Time edge : {state->lease_expires_at, state->expires_at}) {
    for (const absl::Time moment : {edge - kTick, edge}) {
      if (moment > span.from && moment < span.until) moments.push_back(moment);
    }
  }
  return moments;
}

// What a Replay does not say of itself.
bool ReplaysState(const AnswerEvent& answer, const Record* state) {
  if (answer.outcome != Outcome::kReplay) return true;
  return state != nullptr &&
         HasResponse(answer, state->response, state->response_digest);
}

// Whatever core/transitions says.
bool MayTell(const ClaimCommand& claim, const AnswerEvent& answer,
             const Record* state, absl::Time now) {
  switch (answer.outcome) {
    case Outcome::kReplay:
      return MayReplay(state, claim, now);
    case Outcome::kInProgress:
      return MayTellInProgress(state, claim, now);
    case Outcome::kMismatch:
      return MayTellMismatch(state, claim, now);
    case Outcome::kInDoubt:
      return MayTellInDoubt(state, claim, now);
    default:
      return true;
  }
}

template <typename Holds>
bool HoldsWithin(const Record* state, const Span& span, Holds holds) {
  const std::vector<absl::Time> moments = MomentsOf(state, span);
  return std::any_of(moments.begin(), moments.end(), holds);
}

template <typename Outcome>
bool IsTold(const Decision<Outcome>& decision, const AnswerEvent& answer) {
  return !decision.write.has_value() && Fits(decision.answer, answer);
}

}  // namespace

absl::StatusOr<Command> CommandOf(const CallEvent& call) {
  switch (call.kind) {
    case Kind::kClaim:
      return ClaimOf(call);
    case Kind::kFinalize:
      return FinalizeOf(call);
    case Kind::kLookup:
      return LookupCommand{.id = {call.scope, call.key}};
    case Kind::kRelease:
      return ReleaseOf(call);
    case Kind::kUnset:
      break;
  }
  return absl::InvalidArgumentError("call " + call.op + " has no kind");
}

bool Makes(const Command& command, const Step& step, const Span& span,
           const AnswerEvent* answer) {
  if (step.after == nullptr) return false;
  if (const auto* claim = std::get_if<ClaimCommand>(&command)) {
    if (claim->claim_token != step.after->claim_token) return false;
    ClaimCommand with_policy = *claim;
    with_policy.policy = step.after->policy;
    return MakesWithin(with_policy, step, span, answer);
  }
  if (const auto* finalize = std::get_if<FinalizeCommand>(&command)) {
    if (finalize->claim_token != step.after->claim_token) return false;
    return MakesWithin(AsStored(*finalize, *step.after), step, span, answer);
  }
  const auto* const release = std::get_if<ReleaseCommand>(&command);
  return release != nullptr &&
         release->claim_token == step.after->claim_token &&
         MakesWithin(*release, step, span, answer);
}

bool Answers(const Command& command, const AnswerEvent& answer,
             const Record* state, const Span& span) {
  if (const auto* claim = std::get_if<ClaimCommand>(&command)) {
    ClaimCommand with_policy = *claim;
    with_policy.policy = Policy{};
    return ReplaysState(answer, state) &&
           HoldsWithin(state, span, [&](absl::Time now) {
             return MayTell(*claim, answer, state, now) &&
                    IsTold(DecideClaim(state, with_policy, now), answer);
           });
  }
  if (const auto* finalize = std::get_if<FinalizeCommand>(&command)) {
    return HoldsWithin(state, span, [&](absl::Time now) {
      return IsTold(DecideFinalize(state, *finalize, now), answer);
    });
  }
  if (const auto* release = std::get_if<ReleaseCommand>(&command)) {
    return HoldsWithin(state, span, [&](absl::Time now) {
      return IsTold(DecideRelease(state, *release, now), answer);
    });
  }
  return HoldsWithin(state, span, [&](absl::Time now) {
    return Fits(DecideLookup(state, now), answer);
  });
}

bool TellsOfChange(const AnswerEvent& answer) {
  switch (answer.outcome) {
    case Outcome::kClaimed:
    case Outcome::kRecorded:
    case Outcome::kRecordedWithoutBody:
    case Outcome::kResultReleased:
    case Outcome::kResultInDoubt:
    case Outcome::kReleased:
      return true;
    default:
      return false;
  }
}

bool IsParking(const Step& step, absl::Time at) {
  if (step.before == nullptr || step.after == nullptr) return false;
  if (!step.before->held || step.before->expires_at > at) return false;
  Record parked = *step.before;
  parked.version += 1;
  parked.expires_at = absl::InfiniteFuture();
  return parked.state == RecordState::kUnfinished && parked == *step.after;
}

}  // namespace idempotency::fault
