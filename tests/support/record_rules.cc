#include "tests/support/record_rules.h"

#include <optional>

namespace idempotency {
namespace {

void CheckSameGrant(const Record& before, const Record& after,
                    BrokenPromise broken) {
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
  if (!IsUnfinished(before) || !IsUnfinished(after)) return;
  if (IsGivenUp(before) && !IsGivenUp(after)) {
    broken("S12", "a claim that was given up came back");
  }
  if (after.lease_expires_at < before.lease_expires_at) {
    broken("S3", "a lease was shortened");
  }
  if (before.held && !after.held) broken("S16", "a doubt was dropped");
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
                   bool resolves, BrokenPromise broken) {
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
  if (before.state == RecordState::kReleased) return;
  if (!IsOver(before, now)) broken("S3", "granted while another's lease ran");
  if (before.held && !resolves) {
    broken("S16", "a held record was granted to one who can't resolve it");
  }
  if (after.request_hash != before.request_hash) {
    broken("S11", "taken over by another request");
  }
  CheckTold(before, after, broken);
}

}  // namespace

void CheckChange(const Record* before, const Record* after, absl::Time now,
                 bool resolves, BrokenPromise broken) {
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
  if (new_life) return;
  if (before->state == RecordState::kFinal &&
      (after->state != RecordState::kFinal ||
       after->response != before->response ||
       after->response_digest != before->response_digest ||
       after->claim_token != before->claim_token)) {
    broken("S6", "a recorded response changed");
    return;
  }
  if (after->fencing_token == before->fencing_token) {
    CheckSameGrant(*before, *after, broken);
  } else {
    CheckNewGrant(*before, *after, now, resolves, broken);
  }
}

}  // namespace idempotency
