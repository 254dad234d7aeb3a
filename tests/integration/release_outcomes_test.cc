// The table of Release, row by row, and what Lookup shows, against a real
// server and PostgreSQL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "tests/integration/wire_fixture.h"

namespace idempotency {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using Release = v1::ReleaseRequest;

constexpr milliseconds kShortLease{150};
constexpr Release::Disposition kAll[] = {Release::DISPOSITION_NOT_EXECUTED,
                                         Release::DISPOSITION_OUTCOME_UNKNOWN,
                                         Release::DISPOSITION_NEVER_EXECUTED};

class ReleaseTest : public WireTest {
 protected:
  static v1::ClaimRequest Running() {
    const v1::ClaimRequest claim = ClaimFor(NewKey());
    Granted(claim);
    return claim;
  }
  // An attempt that took over one which had stored the checkpoint "half".
  static v1::ClaimRequest TakenOver() {
    v1::ClaimRequest claim = WithLease(ClaimFor(NewKey()), kShortLease);
    claim.set_checkpoint("half");
    Granted(claim);
    WaitForLeaseEnd(claim);
    const v1::ClaimRequest second = ClaimFor(claim.key());
    Granted(second);
    return second;
  }
  static v1::ClaimRequest GivenUp() {
    const v1::ClaimRequest claim = Running();
    ExpectReleased(claim, Release::DISPOSITION_OUTCOME_UNKNOWN,
                   v1::Record::STATE_IN_DOUBT);
    return claim;
  }
  static void ExpectReleased(const v1::ClaimRequest& claim,
                             Release::Disposition disposition,
                             v1::Record::State state) {
    const ReleaseReply reply = Send(ReleaseOf(claim, disposition));
    ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
    EXPECT_TRUE(reply->released());
    EXPECT_EQ(reply->state(), state);
    EXPECT_EQ(RecordOf(claim).state(), state);
  }
  static void ExpectNothingReleased(const v1::ClaimRequest& claim,
                                    v1::Record::State state) {
    for (const Release::Disposition disposition : kAll) {
      const ReleaseReply reply = Send(ReleaseOf(claim, disposition));
      ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
      EXPECT_FALSE(reply->released());
      EXPECT_EQ(reply->state(), state);
    }
  }
};

TEST_F(ReleaseTest, NeverExecutedFreesTheKeyWhateverWentBefore) {
  v1::ClaimRequest lapsed = WithLease(ClaimFor(NewKey()), kShortLease);
  Granted(lapsed);
  WaitForLeaseEnd(lapsed);
  for (const v1::ClaimRequest& claim :
       {Running(), TakenOver(), GivenUp(), lapsed}) {
    const v1::Record before = RecordOf(claim);
    ExpectReleased(claim, Release::DISPOSITION_NEVER_EXECUTED,
                   v1::Record::STATE_RELEASED);
    const v1::Claimed next = Granted(ByAnother(ClaimFor(claim.key())));
    EXPECT_EQ(next.attempt(), before.attempt() + 1);
    EXPECT_NE(next.downstream_key(), before.downstream_key());
    EXPECT_FALSE(next.has_abandoned());
  }
}

TEST_F(ReleaseTest, NotExecutedFreesTheKeyOfAnAttemptThatTookNothingOver) {
  const v1::ClaimRequest claim = Running();
  const v1::Record before = RecordOf(claim);
  ExpectReleased(claim, Release::DISPOSITION_NOT_EXECUTED,
                 v1::Record::STATE_RELEASED);
  const v1::Claimed next = Granted(ByAnother(claim));
  EXPECT_NE(next.downstream_key(), before.downstream_key());
  EXPECT_FALSE(next.has_abandoned());
}

TEST_F(ReleaseTest, NotExecutedSpeaksForItselfOnly) {
  const v1::ClaimRequest second = TakenOver();
  const v1::Record before = RecordOf(second);
  ExpectReleased(second, Release::DISPOSITION_NOT_EXECUTED,
                 v1::Record::STATE_IN_DOUBT);
  const v1::Claimed third = Granted(ByAnother(second));
  EXPECT_EQ(third.attempt(), 3);
  EXPECT_EQ(third.downstream_key(), before.downstream_key());
  EXPECT_EQ(third.abandoned().SerializeAsString(),
            before.abandoned().SerializeAsString());
  EXPECT_EQ(third.abandoned().attempt(), 1);
  EXPECT_EQ(third.abandoned().checkpoint(), "half");
}

TEST_F(ReleaseTest, NotExecutedDoesNotEraseTheDoubtOfAHeldRecord) {
  v1::ClaimRequest first = WithLease(ClaimFor(NewKey()), kShortLease);
  first.set_policy("payment");
  Granted(first);
  WaitForLeaseEnd(first);
  v1::ClaimRequest second = ClaimFor(first.key());
  second.set_resolve_in_doubt(true);
  Granted(second);
  ExpectReleased(second, Release::DISPOSITION_NOT_EXECUTED,
                 v1::Record::STATE_IN_DOUBT);
  EXPECT_EQ(InDoubtOf(ClaimFor(first.key())).abandoned().attempt(), 1);
}

TEST_F(ReleaseTest, OutcomeUnknownGivesTheClaimUp) {
  const v1::ClaimRequest claim = Running();
  const v1::Record before = RecordOf(claim);
  ExpectReleased(claim, Release::DISPOSITION_OUTCOME_UNKNOWN,
                 v1::Record::STATE_IN_DOUBT);
  const v1::Claimed next = Granted(ByAnother(claim));
  EXPECT_EQ(next.downstream_key(), before.downstream_key());
  EXPECT_EQ(next.abandoned().reason(), v1::Abandoned::REASON_OUTCOME_UNKNOWN);
}

TEST_F(ReleaseTest, AGivenUpClaimStaysGivenUp) {
  const v1::ClaimRequest failed = Running();
  Finalized(FinalizeOf(failed, 503));
  for (const v1::ClaimRequest& claim : {GivenUp(), failed}) {
    const v1::Record before = RecordOf(claim);
    ExpectReleased(claim, Release::DISPOSITION_OUTCOME_UNKNOWN,
                   v1::Record::STATE_IN_DOUBT);
    ExpectReleased(claim, Release::DISPOSITION_NOT_EXECUTED,
                   v1::Record::STATE_IN_DOUBT);
    EXPECT_EQ(RecordOf(claim).SerializeAsString(), before.SerializeAsString());
  }
  EXPECT_EQ(Granted(ByAnother(failed)).abandoned().reason(),
            v1::Abandoned::REASON_SERVER_ERROR);
}

TEST_F(ReleaseTest, ARepeatOfAReleaseIsAnsweredAsTheFirst) {
  const v1::ClaimRequest claim = Running();
  ExpectReleased(claim, Release::DISPOSITION_NOT_EXECUTED,
                 v1::Record::STATE_RELEASED);
  const v1::Record before = RecordOf(claim);
  for (const Release::Disposition disposition : kAll) {
    ExpectReleased(claim, disposition, v1::Record::STATE_RELEASED);
  }
  EXPECT_EQ(RecordOf(claim).SerializeAsString(), before.SerializeAsString());
}

TEST_F(ReleaseTest, ThereIsNothingToReleaseOfAnAbsentRecord) {
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  ExpectNothingReleased(claim, v1::Record::STATE_UNSPECIFIED);
  EXPECT_TRUE(IsRefusedAs(Send(LookupOf(claim)), "RECORD_NOT_FOUND"));
}

TEST_F(ReleaseTest, ThereIsNothingToReleaseOfAnothersReleasedRecord) {
  const v1::ClaimRequest claim = Running();
  ExpectReleased(claim, Release::DISPOSITION_NOT_EXECUTED,
                 v1::Record::STATE_RELEASED);
  ExpectNothingReleased(ByAnother(claim), v1::Record::STATE_RELEASED);
}

TEST_F(ReleaseTest, AnothersUnfinishedClaimIsNotReleased) {
  v1::ClaimRequest lapsed = WithLease(ClaimFor(NewKey()), kShortLease);
  Granted(lapsed);
  WaitForLeaseEnd(lapsed);
  for (const v1::ClaimRequest& claim : {Running(), GivenUp(), lapsed}) {
    const v1::Record before = RecordOf(claim);
    for (const Release::Disposition disposition : kAll) {
      EXPECT_TRUE(IsRefusedAs(Send(ReleaseOf(ByAnother(claim), disposition)),
                              "CLAIM_SUPERSEDED"));
    }
    EXPECT_EQ(RecordOf(claim).SerializeAsString(), before.SerializeAsString());
  }
}

TEST_F(ReleaseTest, AFinalRecordIsNeverUndone) {
  const v1::ClaimRequest claim = Running();
  Finalized(FinalizeOf(claim, 200, "kept"));
  for (const Release::Disposition disposition : kAll) {
    EXPECT_TRUE(
        IsRefusedAs(Send(ReleaseOf(claim, disposition)), "ALREADY_FINALIZED"));
    EXPECT_TRUE(IsRefusedAs(Send(ReleaseOf(ByAnother(claim), disposition)),
                            "ALREADY_FINALIZED"));
  }
  EXPECT_EQ(Replayed(claim).response().body(), "kept");
}

TEST_F(ReleaseTest, AFreedKeyIsKeptForItsRetention) {
  const v1::ClaimRequest usual = Running();
  v1::ClaimRequest permanent = ClaimFor(NewKey());
  permanent.set_policy("task");
  EXPECT_FALSE(Granted(permanent).has_expires_at());
  for (const v1::ClaimRequest& claim : {usual, permanent}) {
    const auto before = ToNanos(RecordOf(claim).claimed_at());
    ExpectReleased(claim, Release::DISPOSITION_NOT_EXECUTED,
                   v1::Record::STATE_RELEASED);
    const auto kept = ToNanos(RecordOf(claim).expires_at()) - before;
    EXPECT_GE(kept, hours(24));
    EXPECT_LT(kept, hours(25));
  }
}

class LookupTest : public ReleaseTest {};

TEST_F(LookupTest, ARunningRecordIsShownWhole) {
  v1::ClaimRequest claim = ClaimFor(NewKey());
  claim.set_checkpoint(std::string("\0half", 5));
  claim.set_owner("pod-1 é");
  claim.set_policy("order");
  const v1::Claimed claimed = Granted(claim);
  const v1::Record record = RecordOf(claim);
  EXPECT_EQ(record.scope(), claim.scope());
  EXPECT_EQ(record.key(), claim.key());
  EXPECT_EQ(record.state(), v1::Record::STATE_IN_PROGRESS);
  EXPECT_EQ(record.request_hash(), claim.request_hash());
  EXPECT_EQ(record.policy(), "order");
  EXPECT_EQ(record.fencing_token(), claimed.fencing_token());
  EXPECT_EQ(record.attempt(), 1);
  EXPECT_EQ(ToNanos(record.created_at()), ToNanos(record.claimed_at()));
  EXPECT_EQ(ToNanos(record.lease_expires_at()),
            ToNanos(claimed.lease_expires_at()));
  EXPECT_EQ(ToNanos(record.expires_at()), ToNanos(claimed.expires_at()));
  EXPECT_FALSE(record.has_finalized_at());
  EXPECT_FALSE(record.has_response());
  EXPECT_FALSE(record.has_abandoned());
  EXPECT_EQ(record.checkpoint(), claim.checkpoint());
  EXPECT_EQ(record.downstream_key(), claimed.downstream_key());
  EXPECT_EQ(record.conflict_count(), 0);
  EXPECT_EQ(record.owner(), claim.owner());
}

TEST_F(LookupTest, AFinalRecordIsShownWithItsResponse) {
  const v1::ClaimRequest claim = TakenOver();
  Finalized(FinalizeOf(claim, 201, "created"));
  const v1::Record record = RecordOf(claim);
  EXPECT_EQ(record.state(), v1::Record::STATE_FINALIZED);
  EXPECT_EQ(record.attempt(), 2);
  EXPECT_EQ(record.response().status_code(), 201);
  EXPECT_EQ(record.response().body(), "created");
  EXPECT_GE(ToNanos(record.finalized_at()), ToNanos(record.claimed_at()));
  EXPECT_GT(ToNanos(record.claimed_at()), ToNanos(record.created_at()));
  EXPECT_EQ(record.abandoned().attempt(), 1);
  EXPECT_EQ(record.abandoned().checkpoint(), "half");
}

TEST_F(LookupTest, ALookupChangesNothing) {
  const v1::ClaimRequest claim = Running();
  const std::string version =
      "SELECT version, xmin FROM idempotency_records WHERE key = '" +
      claim.key() + "'";
  const std::string before = Sql(version);
  for (int i = 0; i < 5; ++i) RecordOf(claim);
  EXPECT_EQ(Sql(version), before);
}

TEST_F(LookupTest, AnExpiredRecordIsNotFoundSweptOrNot) {
  AddPolicy("brief", "'100 ms', '1 hour', '100 ms', 'take_over', 'release'");
  v1::ClaimRequest claim = ClaimFor(NewKey());
  claim.set_policy("brief");
  Granted(claim);
  WaitForAbsence(claim);
  EXPECT_TRUE(IsRefusedAs(Send(LookupOf(claim)), "RECORD_NOT_FOUND"));
}

}  // namespace
}  // namespace idempotency
