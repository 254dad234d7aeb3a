// A table in a new database, and what the tests do with single records.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_PG_TABLE_FIXTURE_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_PG_TABLE_FIXTURE_H_

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "server/store/postgres/record_table.h"
#include "tests/integration/pg_samples.h"

namespace idempotency {

class PgRecordTableTest : public testing::Test {
 protected:
  std::optional<absl::Time> Insert(const ClaimCommand& claim) {
    const ClaimCommand* const claims[] = {&claim};
    const auto granted = table_.InsertNew(claims);
    EXPECT_TRUE(granted.ok()) << granted.status();
    return granted.ok() ? granted->front() : std::nullopt;
  }

  ReadRow ReadOne(const RecordId& id, ReadBodies bodies = ReadBodies::kYes) {
    const RecordId* const ids[] = {&id};
    absl::StatusOr<Snapshot> snapshot = table_.Read(ids, bodies);
    EXPECT_TRUE(snapshot.ok()) << snapshot.status();
    return snapshot.ok() ? snapshot->rows.front() : ReadRow();
  }

  Record MustRead(const RecordId& id) {
    const ReadRow row = ReadOne(id);
    EXPECT_TRUE(row.read) << row.status;
    EXPECT_TRUE(row.record.has_value());
    return row.record.value_or(Record());
  }

  bool ReplaceOne(const RecordId& id, const Record& before,
                  const Record& after) {
    const Replacement replacement{
        .id = &id, .before = &before, .after = &after};
    const Replacement* const replacements[] = {&replacement};
    const auto replaced = table_.Replace(replacements);
    EXPECT_TRUE(replaced.ok()) << replaced.status();
    return replaced.ok() && replaced->front();
  }

  // Puts `record` into the table, as it is but for the guard.
  Record Put(const RecordId& id, Record record) {
    EXPECT_TRUE(Insert(Claim(id)).has_value());
    const Record before = MustRead(id);
    record.version = before.version + 1;
    EXPECT_TRUE(ReplaceOne(id, before, record));
    return record;
  }

  const ConnectionOptions options_ = MigratedDatabase();
  PgRecordTable table_{options_, SampleClock()};
};

// A record with something in every field that can be.
inline Record FullRecord(RecordState state) {
  Record record;
  record.state = state;
  record.request_hash = std::string("\0\xff\\x'", 5) + std::string(27, 'h');
  record.claim_token = Token(7);
  record.fencing_token = 1'700'000'000'000'009;
  record.attempt = 3;
  record.policy = {.name = "odd \"name\"",
                   .lease = absl::Milliseconds(1500),
                   .max_lease = absl::Hours(24 * 366 * 100),
                   .retention = absl::Hours(24 * 366 * 100),
                   .on_abandoned = OnAbandoned::kHold,
                   .on_server_error = OnServerError::kRecord};
  record.held = true;
  record.freed_count = 2;
  record.created_at = absl::FromUnixMicros(1'700'000'000'000'001);
  record.claimed_at = absl::FromUnixMicros(1'700'000'000'000'002);
  record.lease = absl::Microseconds(123'456'789);
  record.lease_expires_at = absl::FromUnixMicros(1'700'000'123'456'791);
  record.expires_at = absl::FromUnixMicros(4'000'000'000'000'003);
  record.owner = "worker-\xc3\xa9 {1,2}";
  record.checkpoint = std::string("\0step\xff", 6);
  record.checkpoint_number = 1'234'567'890'123;
  record.abandoned =
      Abandoned{.attempt = 2,
                .fencing_token = 1'700'000'000'000'000,
                .claimed_at = absl::FromUnixMicros(1'690'000'000'000'001),
                .abandoned_at = absl::FromUnixMicros(1'690'000'000'000'002),
                .checkpoint = std::string("\0", 1),
                .reason = AbandonReason::kServerError,
                .status_code = 503,
                .owner = ""};
  if (state == RecordState::kUnfinished) {
    record.gave_up = GaveUp::kServerError;
    record.gave_up_at = absl::FromUnixMicros(1'700'000'000'000'004);
    record.gave_up_status_code = 599;
  }
  if (state == RecordState::kFinal) {
    record.finalized_at = absl::FromUnixMicros(1'700'000'000'000'005);
    record.response = {.status_code = 0,
                       .headers = std::string("\0h", 2),
                       .body = std::string("\0\xff\\x", 4),
                       .headers_omitted = true};
    record.response_digest = std::string(32, '\xfe');
  }
  return record;
}

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_PG_TABLE_FIXTURE_H_
