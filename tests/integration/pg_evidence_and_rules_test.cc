// Refused responses are kept and counted; the fleet's rules are read whole or
// not at all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/core/limits.h"
#include "tests/integration/pg_table_fixture.h"

namespace idempotency {
namespace {

using testing::HasSubstr;

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

using RulesTest = PgRecordTableTest;

TEST_F(RulesTest, AreThoseOfTheFirstMigration) {
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

TEST_F(RulesTest, ThatCannotBeFollowedAreRefusedByName) {
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
