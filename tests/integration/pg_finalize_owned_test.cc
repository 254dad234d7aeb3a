// FinalizeOwned against a real database does what DecideFinalize() decides.
#include <gtest/gtest.h>

#include <string>

#include "server/core/transitions.h"
#include "tests/integration/pg_table_fixture.h"

namespace idempotency {
namespace {

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

}  // namespace
}  // namespace idempotency
