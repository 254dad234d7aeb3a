#include "server/store/postgres/record_row.h"

#include <string>
#include <string_view>
#include <utility>

#include "server/core/errors.h"

namespace idempotency {
namespace {

using Element = ArrayWriter::Element;

// In the order of kReadRecords.
enum Column : int {
  kNow,
  kScope,
  kKey,
  kInFlight,
  kRequestHash,
  kClaimToken,
  kFencingToken,
  kAttempt,
  kVersion,
  kPolicy,
  kPolicyLease,
  kPolicyMaxLease,
  kRetention,
  kRetentionAfterFinalize,
  kOnAbandoned,
  kOnServerError,
  kHeld,
  kFreedCount,
  kCreatedAt,
  kClaimedAt,
  kLease,
  kLeaseExpiresAt,
  kExpiresAt,
  kOwner,
  kCheckpoint,
  kCheckpointNumber,
  kGaveUp,
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
  kBodyOmitted,
  kHeadersOmitted,
  kHeaders,
  kBody,
  kBodyBytes,
  kColumnCount,
};
static_assert(kColumnCount == kReadColumns);

// Fails closed: a number without a meaning makes the whole row unreadable.
template <typename Enum>
Enum ReadEnum(PgRow& row, int column, Enum last, bool& known) {
  const std::int32_t number = row.Int4(column);
  if (number >= 0 && number <= static_cast<std::int32_t>(last)) {
    return static_cast<Enum>(number);
  }
  known = false;
  return Enum{};
}

std::optional<absl::Duration> ReadDuration(PgRow& row, int column) {
  const std::optional<std::int64_t> micros = row.OptionalInt8(column);
  if (!micros.has_value()) return std::nullopt;
  return absl::Microseconds(*micros);
}

Policy ReadPolicy(PgRow& row, bool& known) {
  Policy policy;
  policy.name = row.Text(kPolicy);
  policy.lease = absl::Microseconds(row.Int8(kPolicyLease));
  policy.max_lease = absl::Microseconds(row.Int8(kPolicyMaxLease));
  policy.retention = ReadDuration(row, kRetention);
  policy.retention_after_finalize = ReadDuration(row, kRetentionAfterFinalize);
  policy.on_abandoned = ReadEnum(row, kOnAbandoned, OnAbandoned::kHold, known);
  policy.on_server_error =
      ReadEnum(row, kOnServerError, OnServerError::kHold, known);
  return policy;
}

Abandoned ReadAbandoned(PgRow& row, bool& known) {
  Abandoned abandoned;
  abandoned.attempt = row.Int4(kAbandonedAttempt);
  abandoned.fencing_token = row.Int8(kAbandonedFencingToken);
  abandoned.claimed_at = row.Time(kAbandonedClaimedAt);
  abandoned.abandoned_at = row.Time(kAbandonedAt);
  abandoned.checkpoint = row.OptionalBytes(kAbandonedCheckpoint);
  abandoned.reason =
      ReadEnum(row, kAbandonedReason, AbandonReason::kServerError, known);
  abandoned.status_code = row.Int4(kAbandonedStatusCode);
  abandoned.owner = row.Text(kAbandonedOwner);
  return abandoned;
}

// The columns of a final record. `left_out` becomes the size of a body that is
// too long to come with its row.
void ReadResponse(PgRow& row, bool with_bodies, Record& record,
                  std::size_t& left_out) {
  record.finalized_at = row.Time(kFinalizedAt);
  record.response.status_code = row.Int4(kStatusCode);
  record.response.body_omitted = row.Bool(kBodyOmitted);
  record.response.headers_omitted = row.Bool(kHeadersOmitted);
  record.response_digest = row.Bytes(kResponseDigest);
  const std::int64_t body_bytes = row.Int8(kBodyBytes);
  if (!with_bodies) return;
  record.response.headers = row.Bytes(kHeaders);
  if (row.IsNull(kBody)) {
    left_out = static_cast<std::size_t>(body_bytes);
  } else {
    record.response.body = row.Bytes(kBody);
  }
}

RecordState ReadState(PgRow& row, bool& known) {
  const bool has_response = !row.IsNull(kStatusCode);
  if (!row.Bool(kInFlight)) {
    return has_response ? RecordState::kFinal : RecordState::kReleased;
  }
  if (has_response) known = false;
  return RecordState::kUnfinished;
}

// What no transition makes.
bool Contradicts(const Record& record) {
  const bool unfinished = record.state == RecordState::kUnfinished;
  return (unfinished && record.lease <= absl::ZeroDuration()) ||
         (unfinished && record.lease_expires_at <= record.claimed_at) ||
         (!unfinished && record.gave_up != GaveUp::kNo) || record.attempt < 1 ||
         record.fencing_token < 1 || record.version < 1 ||
         record.freed_count < 0 || record.request_hash.empty() ||
         record.claim_token.is_nil();
}

// The columns of kReplace from in_flight to gave_up_status_code.
void WriteAttempt(const Record& record, BatchWriter& out) {
  out.Bool(record.state == RecordState::kUnfinished);
  out.Bytes(record.request_hash);
  out.Id(record.claim_token);
  out.Int8(record.fencing_token);
  out.Int4(record.attempt);
  out.Int8(record.version);
  out.Text(record.policy.name);
  out.Micros(record.policy.lease);
  out.Micros(record.policy.max_lease);
  out.OptionalMicros(record.policy.retention);
  out.OptionalMicros(record.policy.retention_after_finalize);
  out.Int2(StoredEnum(record.policy.on_abandoned));
  out.Int2(StoredEnum(record.policy.on_server_error));
  out.Bool(record.held);
  out.Int4(record.freed_count);
  out.Time(record.created_at);
  out.Time(record.claimed_at);
  out.Micros(record.lease);
  out.Time(record.lease_expires_at);
  out.Time(record.expires_at);
  out.Text(record.owner);
  out.OptionalBytes(record.checkpoint);
  out.Int8(record.checkpoint_number);
  out.Int2(StoredEnum(record.gave_up));
  if (record.gave_up == GaveUp::kNo) {
    out.Null(Element::kTimestampTz);
    out.Null(Element::kInt4);
  } else {
    out.Time(record.gave_up_at);
    out.Int4(record.gave_up_status_code);
  }
}

void WriteAbandoned(const std::optional<Abandoned>& abandoned,
                    BatchWriter& out) {
  if (!abandoned.has_value()) {
    for (const Element element :
         {Element::kInt4, Element::kInt8, Element::kTimestampTz,
          Element::kTimestampTz, Element::kInt2, Element::kInt4, Element::kText,
          Element::kBytea}) {
      out.Null(element);
    }
    return;
  }
  out.Int4(abandoned->attempt);
  out.Int8(abandoned->fencing_token);
  out.Time(abandoned->claimed_at);
  out.Time(abandoned->abandoned_at);
  out.Int2(StoredEnum(abandoned->reason));
  out.Int4(abandoned->status_code);
  out.Text(abandoned->owner);
  out.OptionalBytes(abandoned->checkpoint);
}

void WriteResponse(const Record& record, bool same_response, BatchWriter& out) {
  const bool final = record.state == RecordState::kFinal;
  if (final) {
    out.Time(record.finalized_at);
  } else {
    out.Null(Element::kTimestampTz);
  }
  const bool written = final && !same_response;
  if (written) {
    out.Int4(record.response.status_code);
    out.Bytes(record.response_digest);
  } else {
    out.Null(Element::kInt4);
    out.Null(Element::kBytea);
  }
  out.Bool(written && record.response.body_omitted);
  out.Bool(written && record.response.headers_omitted);
  if (written) {
    out.Bytes(record.response.headers);
    out.Bytes(record.response.body);
  } else {
    out.Null(Element::kBytea);
    out.Null(Element::kBytea);
  }
}

bool KeepsResponse(const Replacement& replacement) {
  return replacement.before->state == RecordState::kFinal &&
         replacement.after->state == RecordState::kFinal;
}

}  // namespace

RecordId ReadStoredId(const pqxx::row& row) {
  PgRow fields(row);
  return {.scope = std::string(fields.Text(kScope)),
          .key = std::string(fields.Text(kKey))};
}

absl::StatusOr<StoredRecord> ReadStoredRecord(pqxx::row row, bool with_bodies) {
  PgRow fields(row);
  bool known = true;
  StoredRecord stored;
  stored.now = fields.Time(kNow);
  stored.id = ReadStoredId(row);
  Record& record = stored.record;
  record.state = ReadState(fields, known);
  record.request_hash = fields.Bytes(kRequestHash);
  record.claim_token = fields.Id(kClaimToken);
  record.fencing_token = fields.Int8(kFencingToken);
  record.attempt = fields.Int4(kAttempt);
  record.version = fields.Int8(kVersion);
  record.policy = ReadPolicy(fields, known);
  record.held = fields.Bool(kHeld);
  record.freed_count = fields.Int4(kFreedCount);
  record.created_at = fields.Time(kCreatedAt);
  record.claimed_at = fields.Time(kClaimedAt);
  record.lease = absl::Microseconds(fields.Int8(kLease));
  record.lease_expires_at = fields.Time(kLeaseExpiresAt);
  record.expires_at = fields.Time(kExpiresAt);
  record.owner = fields.Text(kOwner);
  record.checkpoint = fields.OptionalBytes(kCheckpoint);
  record.checkpoint_number = fields.Int8(kCheckpointNumber);
  record.gave_up = ReadEnum(fields, kGaveUp, GaveUp::kDidNothing, known);
  if (record.gave_up != GaveUp::kNo) {
    record.gave_up_at = fields.Time(kGaveUpAt);
    record.gave_up_status_code = fields.Int4(kGaveUpStatusCode);
  }
  if (!fields.IsNull(kAbandonedAttempt)) {
    record.abandoned = ReadAbandoned(fields, known);
  }
  if (record.state == RecordState::kFinal) {
    ReadResponse(fields, with_bodies, record, stored.left_out_body_bytes);
  }
  if (!fields.ok() || !known || Contradicts(record)) {
    return MakeError(Reason::kRecordCorrupt,
                     "the stored record cannot be understood; an operator has "
                     "to look at it");
  }
  return stored;
}

Parameters ReplaceParameters(Batch<Replacement> replacements) {
  BatchWriter out;
  for (const Replacement* replacement : replacements) {
    out.Text(replacement->id->scope);
    out.Text(replacement->id->key);
    out.Id(replacement->before->claim_token);
    out.Int8(replacement->before->fencing_token);
    out.Int8(replacement->before->version);
    const bool same_response = KeepsResponse(*replacement);
    out.Bool(same_response);
    WriteAttempt(*replacement->after, out);
    WriteAbandoned(replacement->after->abandoned, out);
    WriteResponse(*replacement->after, same_response, out);
    out.EndRow();
  }
  return std::move(out).Finish();
}

}  // namespace idempotency
