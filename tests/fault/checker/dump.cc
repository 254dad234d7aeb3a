#include "tests/fault/checker/dump.h"

#include <cstddef>
#include <iterator>
#include <span>
#include <utility>

#include "tests/fault/checker/copy_table.h"

namespace idempotency::fault {
namespace {

using Columns = std::span<const std::string_view>;

// The columns of idempotency_records, and the enumerators to find them by.
enum Column : std::size_t {
  kCreatedAt,
  kClaimedAt,
  kLeaseExpiresAt,
  kExpiresAt,
  kLease,
  kFencingToken,
  kVersion,
  kCheckpointNumber,
  kPolicyLease,
  kPolicyMaxLease,
  kAttempt,
  kFreedCount,
  kOnAbandoned,
  kOnServerError,
  kGaveUp,
  kInFlight,
  kHeld,
  kBodyOmitted,
  kHeadersOmitted,
  kClaimToken,
  kScope,
  kKey,
  kRequestHash,
  kPolicy,
  kOwner,
  kRetention,
  kRetentionAfterFinalize,
  kCheckpoint,
  kGaveUpAt,
  kGaveUpStatusCode,
  kAbandonedAttempt,
  kAbandonedFencingToken,
  kAbandonedClaimedAt,
  kAbandonedAt,
  kAbandonedReason,
  kAbandonedStatusCode,
  kAbandonedOwner,
  kAbandonedCheckpoint,
  kFinalizedAt,
  kStatusCode,
  kResponseDigest,
  kHeaders,
  kBody,
  // Beside them, in both dumps.
  kAt,
  kStoredDigest,
  // Of the log alone.
  kSeq,
  kChange,
  kOldVersion,
};
constexpr std::string_view kLogColumns[] = {
    "created_at",
    "claimed_at",
    "lease_expires_at",
    "expires_at",
    "lease_us",
    "fencing_token",
    "version",
    "checkpoint_number",
    "policy_lease_us",
    "policy_max_lease_us",
    "attempt",
    "freed_count",
    "on_abandoned",
    "on_server_error",
    "gave_up",
    "in_flight",
    "held",
    "body_omitted",
    "headers_omitted",
    "claim_token",
    "scope",
    "key",
    "request_hash",
    "policy",
    "owner",
    "policy_retention_us",
    "policy_retention_after_finalize_us",
    "checkpoint",
    "gave_up_at",
    "gave_up_status_code",
    "abandoned_attempt",
    "abandoned_fencing_token",
    "abandoned_claimed_at",
    "abandoned_at",
    "abandoned_reason",
    "abandoned_status_code",
    "abandoned_owner",
    "abandoned_checkpoint",
    "finalized_at",
    "status_code",
    "response_digest",
    "headers",
    "body",
    "at",
    "stored_digest",
    "seq",
    "change",
    "old_version",
};
static_assert(std::size(kLogColumns) == kOldVersion + 1);
constexpr Columns kRecordColumns = Columns(kLogColumns).first(kSeq);

enum ConflictColumn : std::size_t {
  kConflictScope,
  kConflictKey,
  kConflictToken,
  kConflictDigest,
  kConflictStatus,
};
constexpr std::string_view kConflictColumns[] = {
    "scope",       "key",           "claim_token",  "response_digest",
    "status_code", "first_seen_at", "last_seen_at", "count"};

template <typename Enum>
Enum ReadEnum(CopyRow& row, std::size_t column, Enum last) {
  const std::int64_t number = row.Int(column);
  if (number < 0 || number > static_cast<std::int64_t>(last))
    row.Refuse(column);
  return static_cast<Enum>(number);
}

std::optional<absl::Duration> ReadDuration(CopyRow& row, std::size_t column) {
  if (row.IsNull(column)) return std::nullopt;
  return absl::Microseconds(row.Int(column));
}

std::optional<std::string> ReadOptional(CopyRow& row, std::size_t column) {
  if (row.IsNull(column)) return std::nullopt;
  return row.Bytes(column);
}

std::int32_t ReadInt4(CopyRow& row, std::size_t column) {
  return static_cast<std::int32_t>(row.Int(column));
}

Policy ReadPolicy(CopyRow& row) {
  return {
      .name = row.Text(kPolicy),
      .lease = absl::Microseconds(row.Int(kPolicyLease)),
      .max_lease = absl::Microseconds(row.Int(kPolicyMaxLease)),
      .retention = ReadDuration(row, kRetention),
      .retention_after_finalize = ReadDuration(row, kRetentionAfterFinalize),
      .on_abandoned = ReadEnum(row, kOnAbandoned, OnAbandoned::kHold),
      .on_server_error = ReadEnum(row, kOnServerError, OnServerError::kHold)};
}

Abandoned ReadAbandoned(CopyRow& row) {
  return {
      .attempt = ReadInt4(row, kAbandonedAttempt),
      .fencing_token = row.Int(kAbandonedFencingToken),
      .claimed_at = row.Time(kAbandonedClaimedAt),
      .abandoned_at = row.Time(kAbandonedAt),
      .checkpoint = ReadOptional(row, kAbandonedCheckpoint),
      .reason = ReadEnum(row, kAbandonedReason, AbandonReason::kServerError),
      .status_code = ReadInt4(row, kAbandonedStatusCode),
      .owner = row.Text(kAbandonedOwner)};
}

void ReadEnd(CopyRow& row, Record& record) {
  record.gave_up = ReadEnum(row, kGaveUp, GaveUp::kDidNothing);
  if (record.gave_up != GaveUp::kNo) {
    record.gave_up_at = row.Time(kGaveUpAt);
    record.gave_up_status_code = ReadInt4(row, kGaveUpStatusCode);
  }
  if (row.Bool(kInFlight)) return;
  if (row.IsNull(kStatusCode)) {
    record.state = RecordState::kReleased;
    return;
  }
  record.state = RecordState::kFinal;
  record.finalized_at = row.Time(kFinalizedAt);
  record.response.status_code = ReadInt4(row, kStatusCode);
  record.response.body = row.Bytes(kStoredDigest);
  record.response.body_omitted = row.Bool(kBodyOmitted);
  record.response.headers_omitted = row.Bool(kHeadersOmitted);
  record.response_digest = row.Bytes(kResponseDigest);
}

StoredRow ReadStoredRow(CopyRow& row) {
  StoredRow stored;
  stored.id = {.scope = row.Text(kScope), .key = row.Text(kKey)};
  stored.at = row.Time(kAt);
  Record& record = stored.record;
  record.request_hash = row.Bytes(kRequestHash);
  record.claim_token = row.Id(kClaimToken);
  record.fencing_token = row.Int(kFencingToken);
  record.attempt = ReadInt4(row, kAttempt);
  record.version = row.Int(kVersion);
  record.policy = ReadPolicy(row);
  record.held = row.Bool(kHeld);
  record.freed_count = ReadInt4(row, kFreedCount);
  record.created_at = row.Time(kCreatedAt);
  record.claimed_at = row.Time(kClaimedAt);
  record.lease = absl::Microseconds(row.Int(kLease));
  record.lease_expires_at = row.Time(kLeaseExpiresAt);
  record.expires_at = row.Time(kExpiresAt);
  record.owner = row.Text(kOwner);
  record.checkpoint = ReadOptional(row, kCheckpoint);
  record.checkpoint_number = row.Int(kCheckpointNumber);
  if (!row.IsNull(kAbandonedAttempt)) record.abandoned = ReadAbandoned(row);
  ReadEnd(row, record);
  return stored;
}

ChangeKind ReadKind(CopyRow& row) {
  const std::string text = row.Text(kChange);
  if (text == "insert") return ChangeKind::kInsert;
  if (text == "update") return ChangeKind::kUpdate;
  if (text != "delete") row.Refuse(kChange);
  return ChangeKind::kDelete;
}

}  // namespace

absl::Status ReadTransitions(const std::string& path,
                             absl::FunctionRef<void(Change)> use) {
  return ReadCopy(path, kLogColumns, [&](CopyRow& row) {
    Change change;
    change.seq = row.Int(kSeq);
    change.kind = ReadKind(row);
    if (!row.IsNull(kOldVersion)) change.old_version = row.Int(kOldVersion);
    change.row = ReadStoredRow(row);
    if (row.ok()) use(std::move(change));
  });
}

absl::Status ReadRecords(const std::string& path,
                         absl::FunctionRef<void(StoredRow)> use) {
  return ReadCopy(path, kRecordColumns, [&](CopyRow& row) {
    StoredRow stored = ReadStoredRow(row);
    if (row.ok()) use(std::move(stored));
  });
}

absl::Status ReadConflicts(const std::string& path,
                           absl::FunctionRef<void(Conflict)> use) {
  return ReadCopy(path, kConflictColumns, [&](CopyRow& row) {
    Conflict conflict{.id = {.scope = row.Text(kConflictScope),
                             .key = row.Text(kConflictKey)},
                      .claim_token = row.Id(kConflictToken),
                      .response_digest = row.Bytes(kConflictDigest),
                      .status_code = ReadInt4(row, kConflictStatus)};
    if (row.ok()) use(std::move(conflict));
  });
}

}  // namespace idempotency::fault
