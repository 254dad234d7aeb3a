// The statements against a real database: they store and answer exactly what
// the transition functions say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/core/errors.h"
#include "server/core/limits.h"
#include "server/core/optimistic_store.h"
#include "server/core/transitions.h"
#include "server/store/postgres/record_table.h"
#include "tests/integration/pg_samples.h"

namespace idempotency {
namespace {

using testing::HasSubstr;

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
Record FullRecord(RecordState state) {
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

// What FinalizeOwned does to a stored record is what DecideFinalize() decides.
class FinalizeOwnedTest : public PgRecordTableTest {
 protected:
  // Nothing where the decision is not to record.
  void ExpectAsDecided(const std::string& name, const Record& start,
                       int status_code = 200) {
    SCOPED_TRACE(name);
    const RecordId id{"finalize", name};
    const Record before = Put(id, start);
    FinalizeCommand finalize = Finalize(id, 7);
    finalize.response.status_code = status_code;
    const FinalizeCommand* const finalizes[] = {&finalize};
    const auto expiries = table_.FinalizeOwned(finalizes);
    ASSERT_TRUE(expiries.ok()) << expiries.status();
    const Record after = MustRead(id);
    if (!expiries->front().has_value()) {
      EXPECT_EQ(after, before);
      const auto decided = DecideFinalize(&before, finalize, Now());
      EXPECT_TRUE(!decided.write.has_value() ||
                  decided.write->state != RecordState::kFinal ||
                  before.state == RecordState::kFinal);
      return;
    }
    const auto decided = DecideFinalize(&before, finalize, after.finalized_at);
    ASSERT_TRUE(decided.write.has_value());
    EXPECT_EQ(after, *decided.write);
    EXPECT_EQ(*expiries->front(), decided.answer->expires_at);
  }

  // Unfinished, of token 7, with its lease over and its expiry as given.
  static Record Owned(absl::Time expires_at) {
    Record record = FullRecord(RecordState::kUnfinished);
    record.policy.retention = absl::Hours(24);
    record.expires_at = expires_at;
    record.held = false;
    return record;
  }
};

TEST_F(FinalizeOwnedTest, KeepsTheExpiryWhereTheRetentionIsLeft) {
  ExpectAsDecided("kept", Owned(Now() + absl::Hours(25)));
  ExpectAsDecided("moved", Owned(Now() + absl::Hours(23)));
}

TEST_F(FinalizeOwnedTest, TakesTheRetentionForAParkedRecord) {
  Record parked = Owned(absl::InfiniteFuture());
  parked.held = true;
  ExpectAsDecided("parked", parked);
}

TEST_F(FinalizeOwnedTest, FollowsAPermanentPolicy) {
  Record permanent = Owned(absl::InfiniteFuture());
  permanent.policy.retention = std::nullopt;
  ExpectAsDecided("for ever", permanent);
  permanent.policy.retention_after_finalize = absl::Hours(2);
  ExpectAsDecided("a while", permanent);
}

TEST_F(FinalizeOwnedTest, TellsAnExpiredRecordFromAHeldOne) {
  Record expired = Owned(Now() - absl::Seconds(1));
  ExpectAsDecided("expired", expired);
  expired.held = true;
  ExpectAsDecided("held", expired);
}

TEST_F(FinalizeOwnedTest, RecordsServerErrorsOnlyWhereThePolicyDoes) {
  for (const OnServerError rule :
       {OnServerError::kRelease, OnServerError::kRecord,
        OnServerError::kHold}) {
    Record record = Owned(Now() + absl::Hours(25));
    record.policy.on_server_error = rule;
    const std::string name = std::to_string(static_cast<int>(rule));
    ExpectAsDecided("499 " + name, record, 499);
    ExpectAsDecided("500 " + name, record, 500);
  }
}

TEST_F(FinalizeOwnedTest, LeavesOthersRecordsAlone) {
  Record others = Owned(Now() + absl::Hours(25));
  others.claim_token = Token(8);
  ExpectAsDecided("another token", others);
  Record final = FullRecord(RecordState::kFinal);
  ExpectAsDecided("final", final);
  Record released = FullRecord(RecordState::kReleased);
  ExpectAsDecided("released", released);
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

class ConflictsTest : public PgRecordTableTest {
 protected:
  bool Keep(const RecordId& id, int token, char digest) {
    const Conflict conflict{.id = id,
                            .claim_token = Token(token),
                            .response_digest = std::string(32, digest),
                            .status_code = 200};
    const Conflict* const conflicts[] = {&conflict};
    const auto kept = table_.KeepConflicts(conflicts);
    EXPECT_TRUE(kept.ok()) << kept.status();
    return kept.ok() && kept->front();
  }

  int Count(const RecordId& id) {
    const RecordId* const ids[] = {&id};
    const auto counts = table_.CountConflicts(ids);
    EXPECT_TRUE(counts.ok()) << counts.status();
    return counts.ok() ? counts->front() : -1;
  }

  const RecordId id_{"orders", "twice"};
};

TEST_F(ConflictsTest, OneRowForEachTokenAndResponse) {
  ASSERT_TRUE(Insert(Claim(id_)).has_value());
  EXPECT_TRUE(Keep(id_, 2, 'a'));
  EXPECT_TRUE(Keep(id_, 2, 'a'));
  EXPECT_TRUE(Keep(id_, 2, 'b'));
  EXPECT_TRUE(Keep(id_, 3, 'b'));
  EXPECT_EQ(Sql(options_,
                "SELECT count, first_seen_at < last_seen_at FROM "
                "idempotency_conflicts ORDER BY count DESC"),
            "2\tt\n1\tf\n1\tf");
  EXPECT_EQ(Count(id_), 2);  // different responses
}

TEST_F(ConflictsTest, AreBoundedAndKnownOnesAreStillCounted) {
  for (int i = 0; i < limits::kConflictsPerRecordMax; ++i) {
    EXPECT_TRUE(Keep(id_, i, 'a'));
  }
  EXPECT_FALSE(Keep(id_, 100, 'a'));
  EXPECT_TRUE(Keep(id_, 0, 'a'));
  EXPECT_EQ(
      Sql(options_, "SELECT count(*), max(count) FROM idempotency_conflicts"),
      "16\t2");
}

TEST_F(ConflictsTest, OfAnEarlierLifeAreNotCounted) {
  EXPECT_TRUE(Keep(id_, 2, 'a'));
  EXPECT_EQ(Count(id_), 0);  // no record
  ASSERT_TRUE(Insert(Claim(id_)).has_value());
  EXPECT_EQ(Count(id_), 0);
  EXPECT_TRUE(Keep(id_, 3, 'b'));
  EXPECT_EQ(Count(id_), 1);
}

TEST_F(PgRecordTableTest, RulesAreThoseOfTheFirstMigration) {
  Sql(options_,
      "INSERT INTO scope_policies VALUES ('pay/cards', 'payment', true)");
  const absl::StatusOr<FleetRules> rules = table_.ReadRules();
  ASSERT_TRUE(rules.ok()) << rules.status();
  EXPECT_EQ(rules->policies.size(), 5u);
  EXPECT_EQ(rules->policies.at("default"), SamplePolicy());
  const Policy& payment = rules->policies.at("payment");
  EXPECT_EQ(payment.on_abandoned, OnAbandoned::kHold);
  EXPECT_EQ(payment.on_server_error, OnServerError::kHold);
  EXPECT_EQ(rules->policies.at("order").retention, absl::Hours(7 * 24));
  EXPECT_EQ(rules->policies.at("form").lease, absl::Seconds(10));
  const Policy& task = rules->policies.at("task");
  EXPECT_EQ(task.max_lease, absl::Hours(24));
  EXPECT_EQ(task.retention, std::nullopt);
  EXPECT_TRUE(rules->scopes.at("pay/cards").enforced);
  EXPECT_FALSE(rules->downstream_namespace.is_nil());
}

TEST_F(PgRecordTableTest, RulesThatCannotBeFollowedAreRefusedByName) {
  Sql(options_,
      "ALTER TABLE ttl_policies DROP CONSTRAINT "
      "ttl_policies_lease_within_bounds;"
      "UPDATE ttl_policies SET lease = '2 hours' WHERE name = 'form'");
  const absl::StatusOr<FleetRules> rules = table_.ReadRules();
  EXPECT_EQ(rules.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(rules.status().message()), HasSubstr("\"form\""));
}

}  // namespace
}  // namespace idempotency
