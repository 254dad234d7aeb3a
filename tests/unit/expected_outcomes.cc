#include "tests/unit/expected_outcomes.h"

#include <algorithm>
#include <cstdlib>

#include "absl/time/time.h"
#include "tests/unit/expected_tables.h"

namespace idempotency {
namespace {

using namespace expected;

template <typename Table, typename... Asked>
const auto& FirstThatFits(const Table& table, const Asked&... asked) {
  const auto row = std::find_if(
      std::begin(table), std::end(table),
      [&](const auto& candidate) { return candidate.fits(asked...); });
  if (row == std::end(table)) std::abort();
  return *row;
}

// ---- What the answers mean for the record.

absl::Time LeaseEndPlusRetention(const Record& record) {
  if (!record.policy.retention.has_value()) return absl::InfiniteFuture();
  return record.lease_expires_at + *record.policy.retention;
}

absl::Duration WithinBounds(absl::Duration lease, const Policy& policy) {
  if (lease < absl::Milliseconds(100)) return absl::Milliseconds(100);
  return lease > policy.max_lease ? policy.max_lease : lease;
}

// The part that every grant has, on a record that already has its policy.
Record Granted(Record record, const ClaimCommand& command) {
  const std::int64_t clock = absl::ToUnixMicros(Now());
  record.state = RecordState::kUnfinished;
  record.attempt = record.attempt + 1;
  record.fencing_token =
      clock > record.fencing_token ? clock : record.fencing_token + 1;
  record.claim_token = command.claim_token;
  record.owner = command.owner;
  record.claimed_at = Now();
  record.lease = WithinBounds(
      command.lease.has_value() ? *command.lease : record.policy.lease,
      record.policy);
  record.lease_expires_at = Now() + record.lease;
  record.expires_at = LeaseEndPlusRetention(record);
  record.checkpoint = command.checkpoint;
  record.checkpoint_number = command.checkpoint_number;
  record.gave_up = GaveUp::kNo;
  if (record.policy.on_abandoned == OnAbandoned::kHold) record.held = true;
  return record;
}

Record FirstGrant(const ClaimCommand& command,
                  const std::optional<Record>& expired) {
  Record record;
  record.request_hash = command.request_hash;
  record.policy = *command.policy;
  record.created_at = Now();
  if (expired.has_value()) record.fencing_token = expired->fencing_token;
  return Granted(record, command);
}

Record GrantAfterRelease(Record record, const ClaimCommand& command) {
  record.request_hash = command.request_hash;
  record.policy = *command.policy;
  return Granted(record, command);
}

Record GrantedAgain(Record record, const ClaimCommand& command,
                    CheckpointSent sent) {
  record.lease =
      WithinBounds(command.lease.value_or(record.lease), record.policy);
  const absl::Time end = Now() + record.lease;
  if (end > record.lease_expires_at) record.lease_expires_at = end;
  if (record.lease_expires_at > record.expires_at) {
    record.expires_at = LeaseEndPlusRetention(record);
  }
  const bool replaces =
      sent == CheckpointSent::kEqual || sent == CheckpointSent::kHigher ||
      (sent == CheckpointSent::kLower && !record.checkpoint.has_value());
  if (replaces) {
    record.checkpoint = command.checkpoint;
    record.checkpoint_number = command.checkpoint_number;
  }
  return record;
}

// What a takeover of this record is told.
Abandoned Told(const Situation& s, const Record& record) {
  if (s.gave_up == GaveUp::kDidNothing) return *record.abandoned;
  Abandoned told;
  told.attempt = record.attempt;
  told.fencing_token = record.fencing_token;
  told.claimed_at = record.claimed_at;
  told.owner = record.owner;
  if (s.checkpoint) {
    told.checkpoint = record.checkpoint;
  } else if (s.took_over) {
    told.checkpoint = record.abandoned->checkpoint;
  }
  told.abandoned_at =
      s.gave_up == GaveUp::kNo ? record.lease_expires_at : record.gave_up_at;
  if (s.gave_up == GaveUp::kOutcomeUnknown) {
    told.reason = AbandonReason::kOutcomeUnknown;
  }
  if (s.gave_up == GaveUp::kServerError) {
    told.reason = AbandonReason::kServerError;
    told.status_code = record.gave_up_status_code;
  }
  return told;
}

Record Takeover(const Situation& s, const Record& record,
                const ClaimCommand& command) {
  Record next = record;
  next.abandoned = Told(s, record);
  return Granted(next, command);
}

absl::Time ExpiryOnceFinal(const Situation& s, const Record& record) {
  switch (s.keep) {
    case Keep::kPermanent:
      return absl::InfiniteFuture();
    case Keep::kPermanentUntilFinal:
      return Now() + *record.policy.retention_after_finalize;
    case Keep::kRetention:
      break;
  }
  return s.expiry == Expiry::kFar ? record.expires_at
                                  : Now() + *record.policy.retention;
}

Record Freed(const Situation& s, Record record) {
  record.state = RecordState::kReleased;
  record.freed_count += 1;
  record.held = false;
  record.gave_up = GaveUp::kNo;
  record.abandoned.reset();
  record.checkpoint.reset();
  record.checkpoint_number = 0;
  record.expires_at =
      Now() +
      (s.keep == Keep::kRetention ? *record.policy.retention : absl::Hours(24));
  return record;
}

// ---- The answers.

void ExpectGrant(Record after, Expected<ClaimOutcome>& expected) {
  expected.outcome = Claimed{.fencing_token = after.fencing_token,
                             .attempt = after.attempt,
                             .lease = after.lease_expires_at - Now(),
                             .lease_expires_at = after.lease_expires_at,
                             .expires_at = after.expires_at,
                             .freed_count = after.freed_count,
                             .abandoned = after.abandoned};
  expected.after = std::move(after);
}

std::optional<Reason> RefusedRenewal(ForRenewal rule, Renewal renewal) {
  if (renewal == Renewal::kNo) return std::nullopt;
  switch (rule) {
    case ForRenewal::kNotFound:
      return Reason::kRecordNotFound;
    case ForRenewal::kSuperseded:
      return Reason::kClaimSuperseded;
    case ForRenewal::kSupersededIfOtherGrant:
      if (renewal == Renewal::kOtherGrant) return Reason::kClaimSuperseded;
      break;
    case ForRenewal::kSame:
      break;
  }
  return std::nullopt;
}

FinalizeResult RecordedAs(const Response& response) {
  return response.body_omitted || response.headers_omitted
             ? FinalizeResult::kRecordedWithoutBody
             : FinalizeResult::kRecorded;
}

}  // namespace

Expected<ClaimOutcome> ExpectedClaim(const Situation& s, const ClaimChoice& c) {
  const Facts facts = FactsOf(s);
  const ClaimRow& row = FirstThatFits(kClaimRows, facts, c);
  Expected<ClaimOutcome> expected{.row = row.record};
  expected.error = RefusedRenewal(row.renewal, c.renewal);
  if (expected.error.has_value()) return expected;

  const std::optional<Record> record = RecordIn(s);
  const ClaimCommand command = ClaimOf(s, c);
  const bool names_are_checked = row.answer == ClaimVerdict::kFirstGrant ||
                                 row.answer == ClaimVerdict::kGrantAfterRelease;
  if (names_are_checked && c.policy == PolicyFound::kRefused) {
    expected.error = Reason::kUnknownPolicy;
    return expected;
  }
  switch (row.answer) {
    case ClaimVerdict::kFirstGrant:
      ExpectGrant(FirstGrant(command, record), expected);
      break;
    case ClaimVerdict::kGrantAfterRelease:
      ExpectGrant(GrantAfterRelease(*record, command), expected);
      break;
    case ClaimVerdict::kGrantedAgain:
      ExpectGrant(GrantedAgain(*record, command, c.checkpoint), expected);
      break;
    case ClaimVerdict::kTakeover:
      ExpectGrant(Takeover(s, *record, command), expected);
      break;
    case ClaimVerdict::kReplay:
      expected.outcome = Replay{.response = record->response,
                                .created_at = record->created_at,
                                .finalized_at = record->finalized_at,
                                .expires_at = record->expires_at};
      break;
    case ClaimVerdict::kMismatch:
      expected.outcome = Mismatch{.created_at = record->created_at};
      break;
    case ClaimVerdict::kInProgress:
      expected.outcome =
          InProgress{.lease_left = record->lease_expires_at - Now(),
                     .lease_expires_at = record->lease_expires_at,
                     .attempt = record->attempt,
                     .owner = record->owner};
      break;
    case ClaimVerdict::kInDoubt:
      expected.outcome = InDoubt{.abandoned = Told(s, *record),
                                 .freed_count = record->freed_count};
      break;
    case ClaimVerdict::kClaimReleased:
      expected.error = Reason::kClaimReleased;
      break;
  }
  return expected;
}

Expected<FinalizeOutcome> ExpectedFinalize(const Situation& s,
                                           const FinalizeChoice& c) {
  const Facts facts = FactsOf(s);
  const FinalizeRow& row =
      FirstThatFits(kFinalizeRows, facts, c, s.on_server_error);
  Expected<FinalizeOutcome> expected{.row = row.record};
  const std::optional<Record> record = RecordIn(s);
  const FinalizeCommand command = FinalizeOf(c);
  FinalizeOutcome outcome;
  switch (row.answer) {
    case FinalizeVerdict::kRefused:
      expected.error = row.reason;
      expected.evidence = true;
      return expected;
    case FinalizeVerdict::kAsTheFirstTime:
      expected.after = record;
      outcome.result = RecordedAs(record->response);
      break;
    case FinalizeVerdict::kRecorded:
      expected.after = record;
      expected.after->state = RecordState::kFinal;
      expected.after->gave_up = GaveUp::kNo;
      expected.after->finalized_at = Now();
      expected.after->expires_at = ExpiryOnceFinal(s, *record);
      expected.after->response = command.response;
      expected.after->response_digest = command.response_digest;
      outcome.result = RecordedAs(command.response);
      break;
    case FinalizeVerdict::kGivenUp:
      expected.after = record;
      expected.after->gave_up = GaveUp::kServerError;
      expected.after->gave_up_status_code = c.status_code;
      if (s.gave_up == GaveUp::kNo) expected.after->gave_up_at = Now();
      if (s.on_abandoned == OnAbandoned::kHold ||
          s.on_server_error == OnServerError::kHold) {
        expected.after->held = true;
      }
      outcome.result = expected.after->held ? FinalizeResult::kInDoubt
                                            : FinalizeResult::kReleased;
      break;
  }
  outcome.expires_at = expected.after->expires_at;
  expected.outcome = outcome;
  return expected;
}

Expected<ReleaseOutcome> ExpectedRelease(const Situation& s,
                                         const ReleaseChoice& c) {
  const Facts facts = FactsOf(s);
  const ReleaseRow& row = FirstThatFits(kReleaseRows, facts, c);
  Expected<ReleaseOutcome> expected{.row = row.record};
  const std::optional<Record> record = RecordIn(s);
  switch (row.answer) {
    case ReleaseVerdict::kFreed:
      expected.after = Freed(s, *record);
      expected.outcome = {.released = true, .state = VisibleState::kReleased};
      break;
    case ReleaseVerdict::kUnknown:
    case ReleaseVerdict::kDidNothing:
      expected.after = record;
      expected.after->gave_up = row.answer == ReleaseVerdict::kUnknown
                                    ? GaveUp::kOutcomeUnknown
                                    : GaveUp::kDidNothing;
      expected.after->gave_up_at = Now();
      expected.outcome = {.released = true, .state = VisibleState::kInDoubt};
      break;
    case ReleaseVerdict::kRepeat:
      expected.after = record;
      expected.outcome = {.released = true, .state = ExpectedLookup(s)};
      break;
    case ReleaseVerdict::kNothing:
      expected.outcome = {.released = false, .state = ExpectedLookup(s)};
      break;
    case ReleaseVerdict::kSuperseded:
      expected.error = Reason::kClaimSuperseded;
      break;
    case ReleaseVerdict::kFinalized:
      expected.error = Reason::kAlreadyFinalized;
      break;
  }
  return expected;
}

std::optional<VisibleState> ExpectedLookup(const Situation& s) {
  const Facts facts = FactsOf(s);
  if (facts.absent) return std::nullopt;
  if (facts.final) return VisibleState::kFinalized;
  if (facts.released) return VisibleState::kReleased;
  return facts.running ? VisibleState::kInProgress : VisibleState::kInDoubt;
}

Record Comparable(Record record) {
  record.version = 0;
  if (record.gave_up == GaveUp::kNo) {
    record.gave_up_at = absl::UnixEpoch();
    record.gave_up_status_code = 0;
  }
  return record;
}

}  // namespace idempotency
