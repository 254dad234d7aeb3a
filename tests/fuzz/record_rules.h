// What no decision may do to a record, whatever was asked.
#ifndef IDEMPOTENCY_TESTS_FUZZ_RECORD_RULES_H_
#define IDEMPOTENCY_TESTS_FUZZ_RECORD_RULES_H_

#include <optional>
#include <variant>

#include "absl/time/time.h"
#include "server/core/transitions.h"
#include "server/core/types.h"
#include "tests/fuzz/check.h"

namespace idempotency::fuzz {

// Does somebody's attempt run, other than that of `claim_token`?
inline bool IsOwnedByAnother(const Record* record, const Uuid& claim_token,
                             absl::Time now) {
  return record != nullptr && record->state == RecordState::kUnfinished &&
         record->gave_up == GaveUp::kNo && record->lease_expires_at > now &&
         !IsAbsent(*record, now) && record->claim_token != claim_token;
}

// `before`: null where there was no row.
inline void CheckClaimed(const Record* before, const ClaimCommand& command,
                         const absl::StatusOr<ClaimOutcome>& answer,
                         absl::Time now) {
  const bool claimed = answer.ok() && std::holds_alternative<Claimed>(*answer);
  Require(!claimed || !IsOwnedByAnother(before, command.claim_token, now),
          "a key has one owner at a time");
}

inline void CheckWrite(const Record* before, const Record& next,
                       absl::Time now) {
  if (before == nullptr) return;
  Require(next.version > before->version, "a write raises the version");
  Require(next.fencing_token >= before->fencing_token,
          "fencing tokens never go back");
  if (next.claim_token != before->claim_token) {
    Require(next.fencing_token > before->fencing_token,
            "another grant has a greater fencing token");
  }
  if (before->state == RecordState::kFinal && !IsAbsent(*before, now)) {
    Require(next.state == RecordState::kFinal &&
                next.response == before->response &&
                next.response_digest == before->response_digest,
            "a recorded response never changes");
  }
}

}  // namespace idempotency::fuzz

#endif  // IDEMPOTENCY_TESTS_FUZZ_RECORD_RULES_H_
