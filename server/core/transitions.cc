#include "server/core/transitions.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "server/core/errors.h"
#include "server/core/limits.h"

namespace idempotency {
namespace {

bool IsAbandoned(const Record& record, absl::Time now) {
  return record.state == RecordState::kUnfinished &&
         (record.gave_up != GaveUp::kNo || record.lease_expires_at <= now);
}

// The part of expires_at that a policy's retention decides, from `start` on.
absl::Time KeptUntil(const Policy& policy, absl::Time start) {
  return policy.retention.has_value() ? start + *policy.retention
                                      : absl::InfiniteFuture();
}

// The reaper sets a held record's expiry to "never" so that it is not looked
// at again; a permanent one has it by its policy.
bool IsParked(const Record& record) {
  return record.expires_at == absl::InfiniteFuture() &&
         record.policy.retention.has_value();
}

absl::Duration GrantedLease(const std::optional<absl::Duration>& asked,
                            absl::Duration otherwise, const Policy& policy) {
  const absl::Duration lease = asked.value_or(otherwise);
  return std::clamp(
      lease, absl::FromChrono(limits::kLeaseMin),
      std::max(policy.max_lease, absl::FromChrono(limits::kLeaseMin)));
}

// Begins a new attempt on `record`, whose policy is already the right one.
void Grant(Record& record, const ClaimCommand& command, absl::Time now) {
  record.state = RecordState::kUnfinished;
  record.claim_token = command.claim_token;
  record.fencing_token =
      std::max(absl::ToUnixMicros(now), record.fencing_token + 1);
  record.attempt += 1;
  record.held |= record.policy.on_abandoned == OnAbandoned::kHold;
  record.claimed_at = now;
  record.lease =
      GrantedLease(command.lease, record.policy.lease, record.policy);
  record.lease_expires_at = now + record.lease;
  record.expires_at = KeptUntil(record.policy, record.lease_expires_at);
  record.owner = command.owner;
  record.checkpoint = command.checkpoint;
  record.checkpoint_number = command.checkpoint_number;
  record.gave_up = GaveUp::kNo;
  record.gave_up_at = absl::UnixEpoch();
  record.gave_up_status_code = 0;
}

// The write that changes nothing but the version. It confirms an answer whose
// first sending may have been lost: unlike a read it waits until everything
// before it is as durable as the database makes any write.
Record Confirmed(const Record& record) {
  Record next = record;
  next.version += 1;
  return next;
}

Decision<ClaimOutcome> Create(const Record* expired,
                              const ClaimCommand& command, absl::Time now) {
  if (command.renew_fencing_token != 0) {
    return {.answer = MakeError(Reason::kRecordNotFound,
                                "there is no claim to renew: the record does "
                                "not exist or has expired")};
  }
  if (!command.policy.ok()) return {.answer = command.policy.status()};
  Record next = NewRecord(command, now);
  if (expired != nullptr) {
    next.fencing_token =
        std::max(next.fencing_token, expired->fencing_token + 1);
    next.version = std::max(next.fencing_token, expired->version + 1);
  }
  return {.answer = GrantOf(next, now), .write = std::move(next)};
}

Decision<ClaimOutcome> ClaimReleased(const Record& record,
                                     const ClaimCommand& command,
                                     absl::Time now) {
  if (record.claim_token == command.claim_token) {
    return {.answer = MakeError(Reason::kClaimReleased,
                                "this claim was released; draw a new claim "
                                "token for a new attempt")};
  }
  if (command.renew_fencing_token != 0) {
    return {.answer = MakeError(Reason::kClaimSuperseded,
                                "this claim is no longer the current one")};
  }
  if (!command.policy.ok()) return {.answer = command.policy.status()};
  Record next = record;
  next.request_hash = command.request_hash;
  next.policy = *command.policy;
  next.held = false;
  next.abandoned.reset();
  next.version += 1;
  Grant(next, command, now);
  return {.answer = GrantOf(next, now), .write = std::move(next)};
}

// The claim's own record: the retry of a lost reply, or a renewal.
Decision<ClaimOutcome> ClaimAgain(const Record& record,
                                  const ClaimCommand& command, absl::Time now) {
  if (command.renew_fencing_token != 0 &&
      command.renew_fencing_token != record.fencing_token) {
    return {.answer = MakeError(Reason::kClaimSuperseded,
                                "this grant is no longer the current one")};
  }
  Record next = record;
  next.version += 1;
  next.lease = GrantedLease(command.lease, record.lease, record.policy);
  next.lease_expires_at = std::max(record.lease_expires_at, now + next.lease);
  if (next.lease_expires_at > next.expires_at) {
    next.expires_at = KeptUntil(next.policy, next.lease_expires_at);
  }
  if (command.checkpoint.has_value() &&
      (!record.checkpoint.has_value() ||
       command.checkpoint_number >= record.checkpoint_number)) {
    next.checkpoint = command.checkpoint;
    next.checkpoint_number = command.checkpoint_number;
  }
  return {.answer = GrantOf(next, now), .write = std::move(next)};
}

Decision<ClaimOutcome> TakeOver(const Record& record,
                                const ClaimCommand& command, absl::Time now) {
  Record next = record;
  next.version += 1;
  next.abandoned = AbandonedAttempt(record);
  Grant(next, command, now);
  return {.answer = GrantOf(next, now), .write = std::move(next)};
}

Decision<ClaimOutcome> ClaimUnfinished(const Record& record,
                                       const ClaimCommand& command,
                                       absl::Time now) {
  if (record.claim_token == command.claim_token) {
    if (record.gave_up != GaveUp::kNo) {
      return {.answer = MakeError(Reason::kClaimReleased,
                                  "this claim was given up; draw a new claim "
                                  "token for a new attempt")};
    }
    return ClaimAgain(record, command, now);
  }
  if (command.renew_fencing_token != 0) {
    return {.answer = MakeError(Reason::kClaimSuperseded,
                                "another attempt has claimed the key")};
  }
  if (!IsAbandoned(record, now)) {
    return {.answer = InProgress{.lease_left = record.lease_expires_at - now,
                                 .lease_expires_at = record.lease_expires_at,
                                 .attempt = record.attempt,
                                 .owner = record.owner}};
  }
  if (record.held && !command.resolve_in_doubt) {
    return {.answer = InDoubt{.abandoned = AbandonedAttempt(record),
                              .freed_count = record.freed_count}};
  }
  return TakeOver(record, command, now);
}

Decision<FinalizeOutcome> RefusedFinalize(Reason reason,
                                          std::string_view message) {
  return {.answer = MakeError(reason, message), .evidence = true};
}

// Left alone when at least the retention is left: the index on expires_at
// then needs no new entry.
absl::Time ExpiryAfterFinalize(const Record& record, absl::Time now) {
  const Policy& policy = record.policy;
  if (!policy.retention.has_value()) {
    return policy.retention_after_finalize.has_value()
               ? now + *policy.retention_after_finalize
               : absl::InfiniteFuture();
  }
  const absl::Time least = now + *policy.retention;
  if (IsParked(record)) return least;
  return std::max(record.expires_at, least);
}

Decision<FinalizeOutcome> RecordResponse(const Record& record,
                                         const FinalizeCommand& command,
                                         absl::Time now) {
  Record next = record;
  next.version += 1;
  next.state = RecordState::kFinal;
  next.finalized_at = now;
  next.expires_at = ExpiryAfterFinalize(record, now);
  next.response = command.response;
  next.response_digest = command.response_digest;
  next.gave_up = GaveUp::kNo;
  next.gave_up_at = absl::UnixEpoch();
  next.gave_up_status_code = 0;
  FinalizeOutcome outcome{.result = ResultOf(next.response),
                          .expires_at = next.expires_at};
  return {.answer = outcome, .write = std::move(next)};
}

Decision<FinalizeOutcome> GiveUpOnServerError(const Record& record,
                                              const FinalizeCommand& command,
                                              absl::Time now) {
  Record next = record;
  next.version += 1;
  if (record.gave_up == GaveUp::kNo) next.gave_up_at = now;
  next.gave_up = GaveUp::kServerError;
  next.gave_up_status_code = command.response.status_code;
  next.held |= record.policy.on_server_error == OnServerError::kHold ||
               record.policy.on_abandoned == OnAbandoned::kHold;
  FinalizeOutcome outcome{.result = next.held ? FinalizeResult::kInDoubt
                                              : FinalizeResult::kReleased,
                          .expires_at = next.expires_at};
  return {.answer = outcome, .write = std::move(next)};
}

Decision<ReleaseOutcome> Freed(const Record& record, absl::Time now) {
  Record next = record;
  next.version += 1;
  next.state = RecordState::kReleased;
  next.held = false;
  next.freed_count += 1;
  next.expires_at = now + record.policy.retention.value_or(absl::FromChrono(
                              limits::kFreedPermanentRetention));
  next.checkpoint.reset();
  next.checkpoint_number = 0;
  next.abandoned.reset();
  next.gave_up = GaveUp::kNo;
  next.gave_up_at = absl::UnixEpoch();
  next.gave_up_status_code = 0;
  return {.answer = ReleaseOutcome{.released = true,
                                   .state = VisibleState::kReleased},
          .write = std::move(next)};
}

Decision<ReleaseOutcome> GivenUp(const Record& record, GaveUp how,
                                 absl::Time now) {
  Record next = record;
  next.version += 1;
  next.gave_up = how;
  next.gave_up_at = now;
  return {.answer =
              ReleaseOutcome{.released = true, .state = VisibleState::kInDoubt},
          .write = std::move(next)};
}

Decision<ReleaseOutcome> ReleaseUnfinished(const Record& record,
                                           const ReleaseCommand& command,
                                           absl::Time now) {
  if (record.claim_token != command.claim_token) {
    return {.answer = MakeError(Reason::kClaimSuperseded,
                                "another attempt has claimed the key; this "
                                "claim has nothing to release")};
  }
  if (command.disposition == Disposition::kNeverExecuted) {
    return Freed(record, now);
  }
  if (record.gave_up != GaveUp::kNo) {
    return {.answer = ReleaseOutcome{.released = true,
                                     .state = VisibleState::kInDoubt},
            .write = Confirmed(record)};
  }
  if (command.disposition == Disposition::kOutcomeUnknown) {
    return GivenUp(record, GaveUp::kOutcomeUnknown, now);
  }
  if (record.abandoned.has_value()) {
    return GivenUp(record, GaveUp::kDidNothing, now);
  }
  return Freed(record, now);
}

}  // namespace

bool IsAbsent(const Record& record, absl::Time now) {
  if (record.expires_at > now) return false;
  return !(record.held && record.state == RecordState::kUnfinished);
}

VisibleState StateAt(const Record& record, absl::Time now) {
  switch (record.state) {
    case RecordState::kFinal:
      return VisibleState::kFinalized;
    case RecordState::kReleased:
      return VisibleState::kReleased;
    case RecordState::kUnfinished:
      break;
  }
  return IsAbandoned(record, now) ? VisibleState::kInDoubt
                                  : VisibleState::kInProgress;
}

Abandoned AbandonedAttempt(const Record& record) {
  if (record.gave_up == GaveUp::kDidNothing && record.abandoned.has_value()) {
    return *record.abandoned;
  }
  Abandoned attempt{.attempt = record.attempt,
                    .fencing_token = record.fencing_token,
                    .claimed_at = record.claimed_at,
                    .abandoned_at = record.lease_expires_at,
                    .checkpoint = record.checkpoint,
                    .reason = AbandonReason::kLeaseLapsed,
                    .status_code = 0,
                    .owner = record.owner};
  if (!attempt.checkpoint.has_value() && record.abandoned.has_value()) {
    attempt.checkpoint = record.abandoned->checkpoint;
  }
  if (record.gave_up != GaveUp::kNo) {
    attempt.abandoned_at = record.gave_up_at;
    attempt.reason = AbandonReason::kOutcomeUnknown;
  }
  if (record.gave_up == GaveUp::kServerError) {
    attempt.reason = AbandonReason::kServerError;
    attempt.status_code = record.gave_up_status_code;
  }
  return attempt;
}

Record NewRecord(const ClaimCommand& command, absl::Time now) {
  Record record;
  record.request_hash = command.request_hash;
  record.policy = *command.policy;
  record.created_at = now;
  Grant(record, command, now);
  record.version = record.fencing_token;
  return record;
}

Claimed GrantOf(const Record& record, absl::Time now) {
  return {.fencing_token = record.fencing_token,
          .attempt = record.attempt,
          .lease = record.lease_expires_at - now,
          .lease_expires_at = record.lease_expires_at,
          .expires_at = record.expires_at,
          .freed_count = record.freed_count,
          .abandoned = record.abandoned};
}

FinalizeResult ResultOf(const Response& response) {
  return response.body_omitted || response.headers_omitted
             ? FinalizeResult::kRecordedWithoutBody
             : FinalizeResult::kRecorded;
}

absl::Duration FirstLease(const ClaimCommand& command) {
  return GrantedLease(command.lease, command.policy->lease, *command.policy);
}

bool MayCreate(const ClaimCommand& command) {
  return command.renew_fencing_token == 0 && command.policy.ok();
}

Decision<ClaimOutcome> DecideClaim(const Record* record,
                                   const ClaimCommand& command,
                                   absl::Time now) {
  if (record == nullptr || IsAbsent(*record, now)) {
    return Create(record, command, now);
  }
  if (record->state == RecordState::kReleased) {
    return ClaimReleased(*record, command, now);
  }
  if (record->request_hash != command.request_hash) {
    return {.answer = Mismatch{.created_at = record->created_at}};
  }
  if (record->state == RecordState::kFinal) {
    return {.answer = Replay{.response = record->response,
                             .created_at = record->created_at,
                             .finalized_at = record->finalized_at,
                             .expires_at = record->expires_at}};
  }
  return ClaimUnfinished(*record, command, now);
}

Decision<FinalizeOutcome> DecideFinalize(const Record* record,
                                         const FinalizeCommand& command,
                                         absl::Time now) {
  if (record == nullptr || IsAbsent(*record, now)) {
    return RefusedFinalize(Reason::kRecordNotFound,
                           "there is no claim to finalize: the record does "
                           "not exist or has expired");
  }
  if (record->claim_token != command.claim_token) {
    return RefusedFinalize(Reason::kClaimSuperseded,
                           "another attempt has claimed the key; look the "
                           "record up and answer with what it holds");
  }
  if (record->state == RecordState::kReleased) {
    return RefusedFinalize(Reason::kClaimReleased,
                           "this claim was released before it was finalized");
  }
  if (record->state == RecordState::kFinal) {
    if (record->response_digest != command.response_digest) {
      return RefusedFinalize(Reason::kAlreadyFinalized,
                             "another response is already recorded; look the "
                             "record up and answer with what it holds");
    }
    return {.answer = FinalizeOutcome{.result = ResultOf(record->response),
                                      .expires_at = record->expires_at},
            .write = Confirmed(*record)};
  }
  if (command.response.status_code < limits::kServerErrorMin ||
      record->policy.on_server_error == OnServerError::kRecord) {
    return RecordResponse(*record, command, now);
  }
  return GiveUpOnServerError(*record, command, now);
}

Decision<ReleaseOutcome> DecideRelease(const Record* record,
                                       const ReleaseCommand& command,
                                       absl::Time now) {
  if (record == nullptr || IsAbsent(*record, now)) {
    return {.answer = ReleaseOutcome{.released = false}};
  }
  switch (record->state) {
    case RecordState::kReleased:
      if (record->claim_token != command.claim_token) {
        return {.answer = ReleaseOutcome{.released = false,
                                         .state = VisibleState::kReleased}};
      }
      return {.answer = ReleaseOutcome{.released = true,
                                       .state = VisibleState::kReleased},
              .write = Confirmed(*record)};
    case RecordState::kFinal:
      return {.answer = MakeError(Reason::kAlreadyFinalized,
                                  "the response is recorded and is never "
                                  "undone")};
    case RecordState::kUnfinished:
      break;
  }
  return ReleaseUnfinished(*record, command, now);
}

absl::StatusOr<LookupOutcome> DecideLookup(const Record* record,
                                           absl::Time now) {
  if (record == nullptr || IsAbsent(*record, now)) {
    return MakeError(Reason::kRecordNotFound,
                     "there is no record of this key, or it has expired");
  }
  return LookupOutcome{.record = *record, .state = StateAt(*record, now)};
}

}  // namespace idempotency
