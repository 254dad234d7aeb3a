// The words of the coordinator as plain values: what is asked, what is stored,
// what is answered. No behaviour lives here.
//
// absl::Time values are readings of the database's clock unless a comment says
// otherwise; absl::InfiniteFuture() as an expiry means "never".
#ifndef IDEMPOTENCY_SERVER_CORE_TYPES_H_
#define IDEMPOTENCY_SERVER_CORE_TYPES_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/uuid.h"

namespace idempotency {

// A record's name. Bytes are compared, never folded or normalised.
struct RecordId {
  std::string scope{};
  std::string key{};

  auto operator<=>(const RecordId&) const = default;

  template <typename H>
  friend H AbslHashValue(H hash, const RecordId& id) {
    return H::combine(std::move(hash), id.scope, id.key);
  }
};

// What to do with an attempt whose owner went away without an answer.
enum class OnAbandoned { kTakeOver, kHold };
// What to do with a Finalize of status 500 or above.
enum class OnServerError { kRelease, kRecord, kHold };

// A named row of the fleet's rules; a copy of it is kept in every record that
// was granted under it, so that a later change touches only later grants.
struct Policy {
  std::string name{};
  absl::Duration lease{};
  absl::Duration max_lease{};
  std::optional<absl::Duration> retention{};  // nullopt: permanent
  // Only with a permanent retention: how long after Finalize the record may
  // be cleaned up; nullopt: never.
  std::optional<absl::Duration> retention_after_finalize{};
  OnAbandoned on_abandoned = OnAbandoned::kTakeOver;
  OnServerError on_server_error = OnServerError::kRelease;

  bool operator==(const Policy&) const = default;
};

struct Response {
  std::int32_t status_code = 0;
  std::string headers{};  // in the encoding of header_codec.h
  std::string body{};
  bool body_omitted = false;
  bool headers_omitted = false;

  bool operator==(const Response&) const = default;
};

enum class AbandonReason { kLeaseLapsed, kOutcomeUnknown, kServerError };

// The latest attempt that may have acted before its owner went away.
struct Abandoned {
  std::int32_t attempt = 0;
  std::int64_t fencing_token = 0;
  absl::Time claimed_at{};
  absl::Time abandoned_at{};
  std::optional<std::string> checkpoint{};
  AbandonReason reason = AbandonReason::kLeaseLapsed;
  std::int32_t status_code = 0;  // with kServerError
  std::string owner{};

  bool operator==(const Abandoned&) const = default;
};

// How the latest attempt's owner gave it up before its lease was over.
enum class GaveUp {
  kNo,
  kOutcomeUnknown,
  kServerError,
  kDidNothing,  // it had taken over and speaks for itself only
};

enum class RecordState { kUnfinished, kFinal, kReleased };

// A record as it is stored, but for its name.
struct Record {
  RecordState state = RecordState::kUnfinished;
  std::string request_hash{};
  Uuid claim_token{};  // of the latest attempt; kept when it ends
  std::int64_t fencing_token = 0;
  std::int32_t attempt = 0;
  // Raised by every write, and never the same in two lives of one key.
  std::int64_t version = 0;
  Policy policy{};  // as it was when the record was created or claimed again
  bool held = false;
  std::int32_t freed_count = 0;  // how often a Release freed the key
  absl::Time created_at{};
  absl::Time claimed_at{};
  absl::Duration lease{};  // as last granted
  absl::Time lease_expires_at{};
  absl::Time expires_at{};
  std::string owner{};
  std::optional<std::string> checkpoint{};
  std::int64_t checkpoint_number = 0;  // of `checkpoint`

  // With RecordState::kUnfinished.
  GaveUp gave_up = GaveUp::kNo;
  absl::Time gave_up_at{};
  std::int32_t gave_up_status_code = 0;  // with GaveUp::kServerError

  // What the latest attempt was told when it took over.
  std::optional<Abandoned> abandoned{};

  // With RecordState::kFinal.
  absl::Time finalized_at{};
  Response response{};
  std::string response_digest{};  // of the response as it was sent

  bool operator==(const Record&) const = default;
};

// ---- What is asked. Every field has passed validation.

struct ClaimCommand {
  RecordId id{};
  std::string request_hash{};
  Uuid claim_token{};
  std::string policy_name{};              // empty: the scope's
  std::optional<absl::Duration> lease{};  // nullopt: the policy's, or as before
  bool resolve_in_doubt = false;
  std::int64_t renew_fencing_token = 0;  // 0: not a renewal
  std::optional<std::string> checkpoint{};
  std::int64_t checkpoint_number = 0;
  std::string owner{};
  // What `policy_name` means for this scope at the time of the decision. An
  // error counts only where the claim would create or re-create the record.
  absl::StatusOr<Policy> policy = absl::InternalError("policy not resolved");
  // The answer is to show the record it was made on, so that others who asked
  // for the same key before can be answered from it.
  bool wants_record = false;
  // The key had a record a moment ago: reading it first spares the INSERT.
  // Nothing is decided by this.
  bool seen_present = false;
  // InProgress is not its last answer, and is not to be counted as one.
  bool waits = false;
};

struct FinalizeCommand {
  RecordId id{};
  Uuid claim_token{};
  Response response{};            // what is too long is already left out
  std::string response_digest{};  // over the response as it was sent
};

struct LookupCommand {
  RecordId id{};
};

enum class Disposition { kNotExecuted, kOutcomeUnknown, kNeverExecuted };

struct ReleaseCommand {
  RecordId id{};
  Uuid claim_token{};
  Disposition disposition = Disposition::kOutcomeUnknown;
};

// ---- What is answered. `freed_count` gives the downstream key, which is
// derived (digest.h) where the answer is written.

struct Claimed {
  std::int64_t fencing_token = 0;
  std::int32_t attempt = 0;
  absl::Duration lease{};  // what is left of it
  absl::Time lease_expires_at{};
  absl::Time expires_at{};
  std::int32_t freed_count = 0;
  std::optional<Abandoned> abandoned{};

  bool operator==(const Claimed&) const = default;
};

struct Replay {
  Response response{};
  absl::Time created_at{};
  absl::Time finalized_at{};
  absl::Time expires_at{};

  bool operator==(const Replay&) const = default;
};

struct InProgress {
  absl::Duration lease_left{};
  absl::Time lease_expires_at{};
  std::int32_t attempt = 0;
  std::string owner{};

  bool operator==(const InProgress&) const = default;
};

struct Mismatch {
  absl::Time created_at{};

  bool operator==(const Mismatch&) const = default;
};

struct InDoubt {
  Abandoned abandoned{};
  std::int32_t freed_count = 0;

  bool operator==(const InDoubt&) const = default;
};

using ClaimOutcome =
    std::variant<Claimed, Replay, InProgress, Mismatch, InDoubt>;

enum class FinalizeResult {
  kRecorded,
  kRecordedWithoutBody,  // the body, the headers or both were left out
  kReleased,
  kInDoubt,
};

struct FinalizeOutcome {
  FinalizeResult result = FinalizeResult::kRecorded;
  absl::Time expires_at{};

  bool operator==(const FinalizeOutcome&) const = default;
};

enum class VisibleState { kInProgress, kFinalized, kReleased, kInDoubt };

struct LookupOutcome {
  Record record{};
  VisibleState state = VisibleState::kInProgress;
  std::int32_t conflict_count = 0;
};

// A response that was refused: the proof that work was done twice.
struct Conflict {
  RecordId id{};
  Uuid claim_token{};
  std::string response_digest{};
  std::int32_t status_code = 0;
};

struct ReleaseOutcome {
  bool released = false;
  std::optional<VisibleState> state{};  // afterwards; nullopt: no record

  bool operator==(const ReleaseOutcome&) const = default;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_TYPES_H_
