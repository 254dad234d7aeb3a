// The statements against a real database: they store and answer exactly what
// the transition functions say.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "server/core/errors.h"
#include "server/core/limits.h"
#include "server/core/optimistic_store.h"
#include "server/core/transitions.h"
#include "server/store/postgres/record_table.h"
#include "tests/integration/pg_table_fixture.h"

namespace idempotency {
namespace {

// Grants under every kind of policy and of request.
std::vector<ClaimCommand> AllKindsOfClaims() {
  std::vector<ClaimCommand> claims(5);
  for (int i = 0; i < 5; ++i) {
    claims[i] = Claim({"orders", "kind-" + std::to_string(i)}, i + 1);
  }
  claims[1].lease = absl::Milliseconds(1);  // raised to the least
  claims[1].owner = "host-1";
  claims[2].policy->on_abandoned = OnAbandoned::kHold;
  claims[2].policy->on_server_error = OnServerError::kHold;
  claims[2].checkpoint = "";
  claims[2].checkpoint_number = 4;
  claims[3].policy->retention = std::nullopt;
  claims[3].lease = absl::Hours(24 * 365);  // capped
  claims[4].policy->retention = std::nullopt;
  claims[4].policy->retention_after_finalize = absl::Hours(1);
  claims[4].policy->on_server_error = OnServerError::kRecord;
  return claims;
}

TEST_F(PgRecordTableTest, InsertNewStoresTheRecordOfAFirstGrant) {
  const std::vector<ClaimCommand> claims = AllKindsOfClaims();
  const auto granted = table_.InsertNew(Pointers(claims));
  ASSERT_TRUE(granted.ok()) << granted.status();
  for (std::size_t i = 0; i < claims.size(); ++i) {
    ASSERT_TRUE((*granted)[i].has_value());
    EXPECT_EQ(MustRead(claims[i].id), NewRecord(claims[i], *(*granted)[i]));
  }
}

TEST_F(PgRecordTableTest, InsertAndFinalizeDoesWhatTheTwoStatementsDo) {
  ASSERT_TRUE(Insert(Claim({"orders", "mine"}, 1)).has_value());
  ASSERT_TRUE(Insert(Claim({"orders", "others"}, 2)).has_value());
  ASSERT_TRUE(Insert(Claim({"orders", "taken"}, 2)).has_value());
  std::vector<ClaimCommand> claims = AllKindsOfClaims();
  claims.push_back(Claim({"orders", "taken"}, 3));
  std::vector<FinalizeCommand> finalizes = {Finalize({"orders", "absent"}, 1),
                                            Finalize({"orders", "mine"}, 1),
                                            Finalize({"orders", "others"}, 1)};
  finalizes[1].response.body = "done";
  const InsertedAndFinalized both =
      table_.InsertAndFinalize(Pointers(claims), Pointers(finalizes));
  ASSERT_TRUE(both.granted.ok()) << both.granted.status();
  ASSERT_TRUE(both.expiries.ok()) << both.expiries.status();
  ASSERT_EQ(both.granted->size(), claims.size());
  for (std::size_t i = 0; i + 1 < claims.size(); ++i) {
    ASSERT_TRUE((*both.granted)[i].has_value());
    EXPECT_EQ(MustRead(claims[i].id),
              NewRecord(claims[i], *(*both.granted)[i]));
  }
  EXPECT_FALSE(both.granted->back().has_value());
  EXPECT_EQ(MustRead({"orders", "taken"}).claim_token, Token(2));
  ASSERT_EQ(both.expiries->size(), finalizes.size());
  EXPECT_FALSE((*both.expiries)[0].has_value());
  EXPECT_FALSE((*both.expiries)[2].has_value());
  const Record mine = MustRead({"orders", "mine"});
  EXPECT_EQ(mine.state, RecordState::kFinal);
  EXPECT_EQ(mine.response.body, "done");
  EXPECT_EQ((*both.expiries)[1], mine.expires_at);
  EXPECT_EQ(MustRead({"orders", "others"}).state, RecordState::kUnfinished);
}

TEST_F(PgRecordTableTest, InsertNewAnswersNothingWhereARowIs) {
  ASSERT_TRUE(Insert(Claim({"orders", "b"}, 1)).has_value());
  const std::vector<ClaimCommand> claims = {Claim({"orders", "a"}, 2),
                                            Claim({"orders", "b"}, 2),
                                            Claim({"orders", "c"}, 2)};
  const auto granted = table_.InsertNew(Pointers(claims));
  ASSERT_TRUE(granted.ok()) << granted.status();
  EXPECT_TRUE((*granted)[0].has_value());
  EXPECT_FALSE((*granted)[1].has_value());
  EXPECT_TRUE((*granted)[2].has_value());
  EXPECT_EQ(MustRead({"orders", "b"}).claim_token, Token(1));
}

TEST_F(PgRecordTableTest, ReplaceStoresEveryField) {
  for (const RecordState state : {RecordState::kUnfinished, RecordState::kFinal,
                                  RecordState::kReleased}) {
    const RecordId id{"full", std::to_string(static_cast<int>(state))};
    Record record = Put(id, FullRecord(state));
    EXPECT_EQ(MustRead(id), record);

    Record permanent = record;
    permanent.version += 1;
    permanent.policy.retention = std::nullopt;
    permanent.policy.retention_after_finalize = absl::Seconds(1);
    permanent.expires_at = absl::InfiniteFuture();
    permanent.abandoned->checkpoint = std::nullopt;
    permanent.checkpoint = std::nullopt;
    EXPECT_TRUE(ReplaceOne(id, record, permanent));
    EXPECT_EQ(MustRead(id), permanent);
  }
}

TEST_F(PgRecordTableTest, ReplaceIsGuardedByTokenFenceAndVersion) {
  const RecordId id{"orders", "guarded"};
  ASSERT_TRUE(Insert(Claim(id)).has_value());
  const Record stored = MustRead(id);
  Record other_token = stored;
  other_token.claim_token = Token(99);
  Record other_fence = stored;
  other_fence.fencing_token += 1;
  Record other_version = stored;
  other_version.version -= 1;
  for (const Record& before : {other_token, other_fence, other_version}) {
    EXPECT_FALSE(ReplaceOne(id, before, FullRecord(RecordState::kReleased)));
  }
  EXPECT_EQ(MustRead(id), stored);
  EXPECT_FALSE(ReplaceOne({"orders", "none"}, stored, stored));
}

TEST_F(PgRecordTableTest, ReplaceLeavesARecordedResponseAlone) {
  const RecordId id{"orders", "final"};
  const Record final = Put(id, FullRecord(RecordState::kFinal));
  // As it is read without bodies, and so without the response's bytes.
  const ReadRow row = ReadOne(id, ReadBodies::kNo);
  ASSERT_TRUE(row.record.has_value());
  EXPECT_EQ(row.record->response.body, "");
  Record confirmed = *row.record;
  confirmed.version += 1;
  EXPECT_TRUE(ReplaceOne(id, *row.record, confirmed));
  Record expected = final;
  expected.version += 1;
  EXPECT_EQ(MustRead(id), expected);
}

TEST_F(PgRecordTableTest, ReadTellsTheTimeWithAndWithoutRows) {
  const RecordId none{"orders", "none"};
  const RecordId* const ids[] = {&none};
  const auto empty = table_.Read(ids, ReadBodies::kYes);
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_TRUE(empty->rows[0].read);
  EXPECT_FALSE(empty->rows[0].record.has_value());
  const std::optional<absl::Time> granted = Insert(Claim(none));
  ASSERT_TRUE(granted.has_value());
  EXPECT_LE(empty->now, *granted);
  const auto found = table_.Read(ids, ReadBodies::kYes);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_GE(found->now, *granted);
  EXPECT_LT(found->now - empty->now, absl::Minutes(1));
}

TEST_F(PgRecordTableTest, NamesAreComparedByteByByte) {
  // Whatever an array literal, LIKE, a collation or a normalisation minds.
  std::vector<std::string> keys = {"{",
                                   "}",
                                   "{}",
                                   "{a,b}",
                                   "\"",
                                   "\"\"",
                                   "\\",
                                   "\\\\",
                                   "\\x00",
                                   ",",
                                   "NULL",
                                   "null",
                                   "'",
                                   "''",
                                   "$1",
                                   "%",
                                   "_",
                                   " ",
                                   "  ",
                                   "a",
                                   "A",
                                   "a ",
                                   " a",
                                   "\xc3\xa9",
                                   "e\xcc\x81",
                                   "\xf0\x9f\x92\xb3",
                                   std::string(255, 'k'),
                                   std::string(254, 'k')};
  std::sort(keys.begin(), keys.end());
  std::vector<ClaimCommand> claims;
  std::vector<RecordId> ids;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    ids.push_back({"orders", keys[i]});
    claims.push_back(Claim(ids.back(), static_cast<int>(i)));
    claims.back().claim_token.bytes[1] = 1;
  }
  const auto granted = table_.InsertNew(Pointers(claims));
  ASSERT_TRUE(granted.ok()) << granted.status();
  const auto snapshot = table_.Read(Pointers(ids), ReadBodies::kYes);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    EXPECT_TRUE((*granted)[i].has_value()) << keys[i];
    ASSERT_TRUE(snapshot->rows[i].record.has_value()) << keys[i];
    EXPECT_EQ(snapshot->rows[i].record->claim_token, claims[i].claim_token)
        << keys[i];
  }
  // The order of the index is the order in which batches take their locks.
  std::string sorted;
  for (const std::string& key : keys) {
    sorted += (sorted.empty() ? "" : "\n") + key;
  }
  EXPECT_EQ(Sql(options_, "SELECT key FROM idempotency_records ORDER BY key"),
            sorted);
}

// Body sizes around the bounds, in one batch.
TEST_F(PgRecordTableTest, LongBodiesComeInBoundedGroups) {
  const std::vector<std::size_t> sizes = {0,
                                          limits::kInlineBodyBytesMax,
                                          limits::kInlineBodyBytesMax + 1,
                                          limits::kBodyBytesMax,
                                          limits::kBodyBytesMax,
                                          limits::kBodyBytesMax,
                                          20'000};
  std::vector<RecordId> ids;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    ids.push_back({"bodies", std::to_string(i)});
    Record record = FullRecord(RecordState::kFinal);
    record.response.body.assign(sizes[i], static_cast<char>(i));
    Put(ids.back(), record);
  }
  const auto snapshot = table_.Read(Pointers(ids), ReadBodies::kYes);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    SCOPED_TRACE(i);
    // Three of the longest are beyond one group.
    EXPECT_EQ(snapshot->rows[i].read, i != 5);
    EXPECT_EQ(snapshot->rows[i].record.has_value(), i != 5);
    EXPECT_EQ(MustRead(ids[i]).response.body,
              std::string(sizes[i], static_cast<char>(i)));
  }
}

// Each change makes a row that no transition makes.
TEST_F(PgRecordTableTest, RowsThatNobodyWroteAreRefusedOneByOne) {
  const std::vector<RecordId> ids = {
      {"rows", "a"}, {"rows", "b"}, {"rows", "c"}};
  for (const RecordId& id : ids) ASSERT_TRUE(Insert(Claim(id)).has_value());
  for (const char* change :
       {"on_abandoned = 2", "on_server_error = -1", "gave_up = 4",
        "gave_up = 1", "status_code = 200", "attempt = 0", "version = 0",
        "abandoned_attempt = 1", "in_flight = false, status_code = 200",
        "in_flight = false, gave_up = 1, gave_up_at = now(), "
        "gave_up_status_code = 0",
        "request_hash = ''"}) {
    SCOPED_TRACE(change);
    Sql(options_,
        "DELETE FROM idempotency_records WHERE key = 'b';"
        "INSERT INTO idempotency_records SELECT (r).* FROM (SELECT "
        "jsonb_populate_record(r, '{\"key\": \"b\"}') AS r FROM "
        "idempotency_records AS r WHERE key = 'a') AS copy;"
        "UPDATE idempotency_records SET " +
            std::string(change) + " WHERE key = 'b'");
    const auto snapshot = table_.Read(Pointers(ids), ReadBodies::kYes);
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    EXPECT_TRUE(snapshot->rows[0].record.has_value());
    EXPECT_FALSE(snapshot->rows[1].read);
    EXPECT_EQ(ReasonOf(snapshot->rows[1].status), Reason::kRecordCorrupt);
    EXPECT_TRUE(snapshot->rows[2].record.has_value());
  }
}

TEST_F(PgRecordTableTest, AStoreRefusesToDecideOnSuchARow) {
  const RecordId id{"rows", "a"};
  ASSERT_TRUE(Insert(Claim(id)).has_value());
  Sql(options_, "UPDATE idempotency_records SET on_abandoned = 2");
  Metrics metrics;
  OptimisticStore store(
      std::make_unique<PgRecordTable>(options_, SampleClock()), SampleClock(),
      metrics);
  const ClaimCommand claim = Claim(id, 2);
  const ClaimCommand* const claims[] = {&claim};
  EXPECT_EQ(ReasonOf(store.ClaimBatch(claims)[0].outcome.status()),
            Reason::kRecordCorrupt);
}

}  // namespace
}  // namespace idempotency
