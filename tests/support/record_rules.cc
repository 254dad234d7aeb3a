#include "tests/support/record_rules.h"

#include <algorithm>
#include <optional>

namespace idempotency {
namespace {

constexpr int kServerErrorMin = 500;
constexpr absl::Duration kLeaseMin = absl::Milliseconds(100);
// Of a key that was freed and has a permanent policy.
constexpr absl::Duration kFreedRetention = absl::Hours(24);
// A call reads the clock before the record, and no call lasts longer.
constexpr absl::Duration kCallMax = absl::Seconds(30);

bool Holds(const Policy& policy) {
  return policy.on_abandoned == OnAbandoned::kHold;
}

// Doubt comes of the policy alone: at a grant, or with a server error.
void CheckDoubt(const Record& before, const Record& after,
                BrokenPromise broken) {
  if (before.held && !after.held) broken("S16", "a doubt was dropped");
  const bool failed = after.gave_up == GaveUp::kServerError;
  const bool holds =
      Holds(after.policy) ||
      (failed && after.policy.on_server_error == OnServerError::kHold);
  if (!before.held && after.held && !(failed && holds)) {
    broken("S16", "a doubt that the policy does not ask for");
  }
  if (failed && holds && !after.held) {
    broken("S16", "a server error left no doubt");
  }
}

void CheckServerError(const Record& after, BrokenPromise broken) {
  const bool records = after.policy.on_server_error == OnServerError::kRecord;
  if (after.state == RecordState::kFinal && !records &&
      after.response.status_code >= kServerErrorMin) {
    broken("S7", "a server error was recorded");
  }
  if (after.gave_up == GaveUp::kServerError && records) {
    broken("S7", "a server error that is to be recorded was not");
  }
}

// Only who knows that nobody acted frees a key that somebody may have acted
// for.
void CheckFreed(const Record& before, const Record& after, const Asked& asked,
                BrokenPromise broken) {
  if (after.freed_count != before.freed_count + 1) {
    broken("S12", "a release kept the downstream key");
  }
  if (after.held || after.abandoned.has_value() || IsGivenUp(after) ||
      after.checkpoint.has_value()) {
    broken("S12", "a key that was freed tells of attempts");
  }
  const bool somebody_acted = before.abandoned.has_value() || IsGivenUp(before);
  if (somebody_acted && !asked.never_executed) {
    broken("S12", "freed though an attempt may have acted");
  }
}

void CheckSameGrant(const Record& before, const Record& after,
                    const Asked& asked, BrokenPromise broken) {
  if (after.claim_token != before.claim_token ||
      after.attempt != before.attempt) {
    broken(IsUnfinished(after) ? "S1" : "S7", "another owner without a grant");
  }
  if (after.request_hash != before.request_hash) {
    broken("S11", "another request hash without a grant");
  }
  if (before.state == RecordState::kReleased &&
      after.state != RecordState::kReleased) {
    broken("S12", "a released claim came back");
  }
  if (IsUnfinished(before)) CheckServerError(after, broken);
  const bool freed =
      IsUnfinished(before) && after.state == RecordState::kReleased;
  if (freed) {
    CheckFreed(before, after, asked, broken);
  } else if (after.freed_count != before.freed_count) {
    broken("S12", "another downstream key without a release");
  }
  if (!IsUnfinished(before) || !IsUnfinished(after)) return;
  if (IsGivenUp(before) && !IsGivenUp(after)) {
    broken("S12", "a claim that was given up came back");
  }
  if (after.lease_expires_at < before.lease_expires_at) {
    broken("S3", "a lease was shortened");
  }
  CheckDoubt(before, after, broken);
  if (after.abandoned != before.abandoned) {
    broken("S16", "what was abandoned changed");
  }
}

void CheckTold(const Record& before, const Record& after,
               BrokenPromise broken) {
  if (!after.abandoned.has_value()) {
    broken("S16", "a takeover was not told");
    return;
  }
  const Abandoned& told = *after.abandoned;
  if (before.gave_up == GaveUp::kDidNothing) {
    if (before.abandoned != told) {
      broken("S16", "an attempt that did nothing hid an earlier one");
    }
    return;
  }
  const std::optional<std::string>& checkpoint =
      before.checkpoint.has_value() || !before.abandoned.has_value()
          ? before.checkpoint
          : before.abandoned->checkpoint;
  if (told.attempt != before.attempt ||
      told.fencing_token != before.fencing_token ||
      told.checkpoint != checkpoint) {
    broken("S16", "a takeover was told of something else");
  }
}

void CheckNewGrant(const Record& before, const Record& after, absl::Time now,
                   const Asked& asked, BrokenPromise broken) {
  if (after.fencing_token < before.fencing_token ||
      after.attempt != before.attempt + 1) {
    broken("S2", "a grant does not count on");
  }
  if (!IsUnfinished(after)) broken("S7", "a grant that is already over");
  if (after.freed_count != before.freed_count) {
    broken("S12", "a grant changed the downstream key");
  }
  if (before.claim_token == after.claim_token) {
    broken(IsUnfinished(before) ? "S4" : "S12",
           "a claim was granted anew to its own claim token");
  }
  const bool was_released = before.state == RecordState::kReleased;
  if (after.held != ((before.held && !was_released) || Holds(after.policy))) {
    broken("S16", "a grant is held otherwise than its policy says");
  }
  if (was_released) return;
  if (after.policy != before.policy) {
    broken("S16", "a takeover under another policy");
  }
  if (!IsOver(before, now)) broken("S3", "granted while another's lease ran");
  if (before.held && !asked.resolves) {
    broken("S16", "a held record was granted to one who can't resolve it");
  }
  if (after.request_hash != before.request_hash) {
    broken("S11", "taken over by another request");
  }
  CheckTold(before, after, broken);
}

// The end of a life that begins at `start`.
absl::Time Until(const Policy& policy, absl::Time start) {
  return policy.retention.has_value() ? start + *policy.retention
                                      : absl::InfiniteFuture();
}

void CheckGrantTimes(const Record& after, BrokenPromise broken) {
  const absl::Duration most = std::max(after.policy.max_lease, kLeaseMin);
  if (after.lease < kLeaseMin || after.lease > most) {
    broken("S3", "a lease beyond the bounds of its policy");
  }
  if (after.lease_expires_at != after.claimed_at + after.lease) {
    broken("S3", "a lease that is not counted from its grant");
  }
  if (after.expires_at != Until(after.policy, after.lease_expires_at)) {
    broken("S18", "granted with another retention than its policy's");
  }
}

// A held record that expired is kept for ever, until it is ended.
bool IsParked(const Record& record) {
  return record.policy.retention.has_value() &&
         record.expires_at == absl::InfiniteFuture();
}

absl::Time ExpiryOfFinal(const Record& before, const Record& after) {
  const Policy& policy = after.policy;
  if (policy.retention.has_value()) {
    const absl::Time least = after.finalized_at + *policy.retention;
    return IsParked(before) ? least : std::max(before.expires_at, least);
  }
  return policy.retention_after_finalize.has_value()
             ? after.finalized_at + *policy.retention_after_finalize
             : absl::InfiniteFuture();
}

void CheckUnfinishedTimes(const Record& before, const Record& after,
                          absl::Time now, BrokenPromise broken) {
  if (after.lease_expires_at > before.lease_expires_at &&
      after.lease_expires_at > now + after.lease) {
    broken("S3", "a renewal gave more than its lease");
  }
  if (after.expires_at == before.expires_at) {
    if (after.lease_expires_at > before.lease_expires_at &&
        after.lease_expires_at > after.expires_at) {
      broken("S18", "a record expires before its lease");
    }
    return;
  }
  const bool extended =
      after.lease_expires_at > before.expires_at &&
      after.expires_at == Until(after.policy, after.lease_expires_at);
  const bool parked =
      before.held && before.expires_at <= now && IsParked(after);
  if (!extended && !parked) broken("S18", "another expiry without a reason");
}

void CheckSameGrantTimes(const Record& before, const Record& after,
                         absl::Time now, BrokenPromise broken) {
  if (IsUnfinished(after)) {
    if (IsUnfinished(before)) CheckUnfinishedTimes(before, after, now, broken);
    return;
  }
  if (!IsUnfinished(before)) {
    if (after.expires_at != before.expires_at) {
      broken("S18", "an ended record got another expiry");
    }
    return;
  }
  if (after.state == RecordState::kFinal) {
    if (after.expires_at != ExpiryOfFinal(before, after)) {
      broken("S18", "recorded with another retention than its policy's");
    }
    return;
  }
  const absl::Time freed_at =
      after.expires_at - after.policy.retention.value_or(kFreedRetention);
  if (freed_at > now || freed_at < after.claimed_at - kCallMax) {
    broken("S18", "freed with another retention than its policy's");
  }
}

bool IsOfRequest(const Record& row, const ClaimCommand& claim) {
  return row.request_hash == claim.request_hash;
}

}  // namespace

void CheckChange(const Record* before, const Record* after, absl::Time now,
                 const Asked& asked, BrokenPromise broken) {
  if (after == nullptr) {
    if (!CountsAsNone(before, now)) broken("S18", "deleted before its time");
    return;
  }
  const bool new_life =
      before == nullptr || after->created_at != before->created_at;
  if (new_life) {
    if (!CountsAsNone(before, now)) {
      broken("S18", "made anew before its time");
    }
    if (after->attempt != 1 || !IsUnfinished(*after)) {
      broken("S2", "a new record does not begin with attempt 1");
    }
  } else if (after->version <= before->version) {
    broken("S2", "a write did not raise the version");
  }
  if (new_life) {
    if (after->held != Holds(after->policy)) {
      broken("S16", "a new record is held otherwise than its policy says");
    }
    return;
  }
  if (before->state == RecordState::kFinal &&
      (after->state != RecordState::kFinal ||
       after->response != before->response ||
       after->response_digest != before->response_digest ||
       after->claim_token != before->claim_token)) {
    broken("S6", "a recorded response changed");
    return;
  }
  if (after->fencing_token == before->fencing_token) {
    CheckSameGrant(*before, *after, asked, broken);
  } else {
    CheckNewGrant(*before, *after, now, asked, broken);
  }
}

void CheckTimes(const Record* before, const Record* after, absl::Time now,
                BrokenPromise broken) {
  if (after == nullptr) return;
  if (before == nullptr || after->created_at != before->created_at ||
      after->fencing_token != before->fencing_token) {
    CheckGrantTimes(*after, broken);
  } else {
    CheckSameGrantTimes(*before, *after, now, broken);
  }
}

bool MayTellInProgress(const Record* row, const ClaimCommand& claim,
                       absl::Time now) {
  return !CountsAsNone(row, now) && IsUnfinished(*row) && !IsOver(*row, now) &&
         row->claim_token != claim.claim_token && IsOfRequest(*row, claim);
}

bool MayTellMismatch(const Record* row, const ClaimCommand& claim,
                     absl::Time now) {
  return !CountsAsNone(row, now) && row->state != RecordState::kReleased &&
         !IsOfRequest(*row, claim);
}

bool MayTellInDoubt(const Record* row, const ClaimCommand& claim,
                    absl::Time now) {
  return !CountsAsNone(row, now) && IsUnfinished(*row) && IsOver(*row, now) &&
         row->held && row->claim_token != claim.claim_token &&
         !claim.resolve_in_doubt && IsOfRequest(*row, claim);
}

bool MayReplay(const Record* row, const ClaimCommand& claim, absl::Time now) {
  return !CountsAsNone(row, now) && row->state == RecordState::kFinal &&
         IsOfRequest(*row, claim);
}

}  // namespace idempotency
