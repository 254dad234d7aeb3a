// The table of Claim, row by row, against a real server and PostgreSQL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "client/environment.h"
#include "tests/integration/wire_fixture.h"

namespace idempotency {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

// Long enough for a few calls, short enough to be waited for.
constexpr milliseconds kShortLease{150};

class ClaimTest : public WireTest {
 protected:
  static v1::ClaimRequest WithCheckpoint(v1::ClaimRequest claim,
                                         const std::string& checkpoint,
                                         std::int64_t number) {
    claim.set_checkpoint(checkpoint);
    claim.set_checkpoint_number(number);
    return claim;
  }
  static v1::ClaimRequest Renewing(v1::ClaimRequest claim,
                                   std::int64_t fencing_token) {
    claim.set_renew_fencing_token(fencing_token);
    return claim;
  }
  static v1::ClaimRequest WithOtherHash(v1::ClaimRequest claim) {
    claim.set_request_hash(std::string(32, 'o'));
    return claim;
  }
  static v1::ClaimRequest Resolving(v1::ClaimRequest claim) {
    claim.set_resolve_in_doubt(true);
    return claim;
  }
  // A claim whose lease has ended.
  static v1::ClaimRequest Abandoned(const std::string& policy = "") {
    v1::ClaimRequest claim = WithLease(ClaimFor(NewKey()), kShortLease);
    claim.set_policy(policy);
    Granted(claim);
    WaitForLeaseEnd(claim);
    return claim;
  }
  static v1::ClaimRequest Released() {
    const v1::ClaimRequest claim = ClaimFor(NewKey());
    Granted(claim);
    EXPECT_TRUE(
        Send(ReleaseOf(claim, v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED))
            ->released());
    return claim;
  }
};

TEST_F(ClaimTest, FirstClaimOfAnAbsentRecordIsGranted) {
  v1::ClaimRequest claim = ClaimFor(NewKey());
  const v1::Claimed claimed = Granted(claim);
  EXPECT_EQ(claimed.attempt(), 1);
  EXPECT_GT(claimed.fencing_token(), 1'600'000'000'000'000);
  EXPECT_LE(ToNanos(claimed.lease()), seconds(30));
  EXPECT_GT(ToNanos(claimed.lease()), seconds(15));
  EXPECT_EQ(ToNanos(claimed.expires_at()) - ToNanos(claimed.lease_expires_at()),
            hours(24));
  EXPECT_FALSE(claimed.has_abandoned());
}

TEST_F(ClaimTest, AnExpiredRecordIsAbsentAndItsFencingTokenStillGrows) {
  AddPolicy("brief", "'200 ms', '1 hour', '100 ms', 'take_over', 'release'");
  v1::ClaimRequest claim = ClaimFor(NewKey());
  claim.set_policy("brief");
  const v1::Claimed first = Granted(claim);
  WaitForAbsence(claim);
  const v1::Claimed second = Granted(WithOtherHash(ByAnother(claim)));
  EXPECT_EQ(second.attempt(), 1);
  EXPECT_GT(second.fencing_token(), first.fencing_token());
  EXPECT_EQ(second.downstream_key(), first.downstream_key());
  EXPECT_FALSE(second.has_abandoned());
}

TEST_F(ClaimTest, ARenewalOfAnAbsentRecordAcquiresNothing) {
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  EXPECT_TRUE(IsRefusedAs(Send(Renewing(claim, 7)), "RECORD_NOT_FOUND"));
  EXPECT_TRUE(IsRefusedAs(Send(LookupOf(claim)), "RECORD_NOT_FOUND"));
}

TEST_F(ClaimTest, ALateDuplicateDoesNotReviveAReleasedClaim) {
  const v1::ClaimRequest claim = Released();
  EXPECT_TRUE(IsRefusedAs(Send(claim), "CLAIM_RELEASED"));
  EXPECT_TRUE(IsRefusedAs(Send(WithOtherHash(claim)), "CLAIM_RELEASED"));
  EXPECT_TRUE(IsRefusedAs(Send(Renewing(claim, 7)), "CLAIM_RELEASED"));
  EXPECT_EQ(RecordOf(claim).state(), v1::Record::STATE_RELEASED);
}

TEST_F(ClaimTest, AReleasedKeyIsGrantedAnewWithAnyHashAndPolicy) {
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  const v1::Claimed first = Granted(claim);
  ASSERT_TRUE(
      Send(ReleaseOf(claim, v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED))
          ->released());
  const v1::Record released = RecordOf(claim);

  v1::ClaimRequest next = WithOtherHash(ByAnother(claim));
  next.set_policy("order");
  const v1::Claimed second = Granted(next);
  EXPECT_EQ(second.attempt(), 2);
  EXPECT_GT(second.fencing_token(), first.fencing_token());
  EXPECT_NE(second.downstream_key(), first.downstream_key());
  EXPECT_FALSE(second.has_abandoned());
  const v1::Record record = RecordOf(next);
  EXPECT_EQ(record.policy(), "order");
  EXPECT_EQ(record.request_hash(), next.request_hash());
  EXPECT_EQ(ToNanos(record.created_at()), ToNanos(released.created_at()));
  EXPECT_TRUE(Send(ByAnother(claim))->has_mismatch());
}

TEST_F(ClaimTest, ARenewalOfAReleasedRecordIsSuperseded) {
  const v1::ClaimRequest claim = Released();
  EXPECT_TRUE(
      IsRefusedAs(Send(Renewing(ByAnother(claim), 7)), "CLAIM_SUPERSEDED"));
  EXPECT_EQ(RecordOf(claim).state(), v1::Record::STATE_RELEASED);
}

TEST_F(ClaimTest, AnotherHashIsAMismatchInEveryState) {
  const v1::ClaimRequest running = ClaimFor(NewKey());
  Granted(running);
  const v1::ClaimRequest abandoned = Abandoned();
  const v1::ClaimRequest held = Abandoned("payment");
  const v1::ClaimRequest final = ClaimFor(NewKey());
  Granted(final);
  Finalized(FinalizeOf(final, 200));
  for (const v1::ClaimRequest& claim : {running, abandoned, held, final}) {
    const v1::Record before = RecordOf(claim);
    for (const v1::ClaimRequest& other :
         {WithOtherHash(claim), WithOtherHash(ByAnother(claim)),
          WithOtherHash(Renewing(claim, before.fencing_token())),
          WithOtherHash(Resolving(ByAnother(claim)))}) {
      const ClaimReply reply = Send(other);
      ASSERT_TRUE(reply->has_mismatch()) << reply->ShortDebugString();
      EXPECT_EQ(ToNanos(reply->mismatch().created_at()),
                ToNanos(before.created_at()));
    }
    EXPECT_EQ(RecordOf(claim).SerializeAsString(), before.SerializeAsString());
  }
}

TEST_F(ClaimTest, AllBytesOfTheHashAreCompared) {
  v1::ClaimRequest claim = ClaimFor(NewKey());
  claim.set_request_hash(std::string(64, '\0'));
  Granted(claim);
  for (const std::size_t at : {std::size_t{0}, std::size_t{63}}) {
    v1::ClaimRequest other = ByAnother(claim);
    (*other.mutable_request_hash())[at] = '\1';
    EXPECT_TRUE(Send(other)->has_mismatch()) << at;
  }
  v1::ClaimRequest shorter = ByAnother(claim);
  shorter.mutable_request_hash()->resize(63);
  EXPECT_TRUE(Send(shorter)->has_mismatch());
  EXPECT_TRUE(Send(ByAnother(claim))->has_in_progress());
}

TEST_F(ClaimTest, AFinalRecordIsReplayedToEverybody) {
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  const v1::Claimed claimed = Granted(claim);
  Finalized(FinalizeOf(claim, 201, "created"));
  const v1::Record record = RecordOf(claim);
  for (const v1::ClaimRequest& repeat :
       {claim, ByAnother(claim), Renewing(claim, claimed.fencing_token()),
        Renewing(ByAnother(claim), 7), Resolving(ByAnother(claim))}) {
    const v1::Replay replay = Replayed(repeat);
    EXPECT_EQ(replay.response().status_code(), 201);
    EXPECT_EQ(replay.response().body(), "created");
    EXPECT_EQ(ToNanos(replay.created_at()), ToNanos(record.created_at()));
    EXPECT_EQ(ToNanos(replay.finalized_at()), ToNanos(record.finalized_at()));
    EXPECT_EQ(ToNanos(replay.expires_at()), ToNanos(record.expires_at()));
  }
}

TEST_F(ClaimTest, ATokenThatGaveUpNeedsANewOne) {
  const v1::ClaimRequest unknown = ClaimFor(NewKey());
  Granted(unknown);
  Send(ReleaseOf(unknown, v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN));
  const v1::ClaimRequest failed = ClaimFor(NewKey());
  Granted(failed);
  Finalized(FinalizeOf(failed, 503));
  for (const v1::ClaimRequest& claim : {unknown, failed}) {
    EXPECT_TRUE(IsRefusedAs(Send(claim), "CLAIM_RELEASED"));
    EXPECT_TRUE(IsRefusedAs(Send(Resolving(claim)), "CLAIM_RELEASED"));
    EXPECT_EQ(Granted(ByAnother(claim)).attempt(), 2);
  }
}

TEST_F(ClaimTest, ARepeatIsGrantedAsAtFirst) {
  const v1::ClaimRequest abandoned = Abandoned();
  for (const v1::ClaimRequest& claim :
       {ClaimFor(NewKey()), ByAnother(abandoned)}) {
    const v1::Claimed first = Granted(claim);
    const v1::Claimed again = Granted(claim);
    EXPECT_EQ(again.attempt(), first.attempt());
    EXPECT_EQ(again.fencing_token(), first.fencing_token());
    EXPECT_EQ(again.downstream_key(), first.downstream_key());
    EXPECT_EQ(again.abandoned().SerializeAsString(),
              first.abandoned().SerializeAsString());
    EXPECT_GE(ToNanos(again.lease_expires_at()),
              ToNanos(first.lease_expires_at()));
  }
}

TEST_F(ClaimTest, ARepeatAfterTheLeaseIsGrantedAsLongAsNobodyTookOver) {
  const v1::ClaimRequest claim = Abandoned();
  const v1::Record before = RecordOf(claim);
  const v1::Claimed again = Granted(claim);
  EXPECT_EQ(again.attempt(), 1);
  EXPECT_EQ(again.fencing_token(), before.fencing_token());
  EXPECT_FALSE(again.has_abandoned());
  EXPECT_GT(ToNanos(again.lease()), nanoseconds(0));
  EXPECT_GT(ToNanos(again.lease_expires_at()),
            ToNanos(before.lease_expires_at()));
}

TEST_F(ClaimTest, ALeaseIsExtendedAndNeverShortened) {
  const v1::ClaimRequest claim = WithLease(ClaimFor(NewKey()), seconds(20));
  const v1::Claimed first = Granted(claim);
  const v1::Claimed shorter = Granted(WithLease(claim, seconds(1)));
  EXPECT_EQ(ToNanos(shorter.lease_expires_at()),
            ToNanos(first.lease_expires_at()));
  const v1::Claimed longer = Granted(WithLease(claim, seconds(60)));
  EXPECT_GT(ToNanos(longer.lease_expires_at()),
            ToNanos(first.lease_expires_at()) + seconds(30));
}

TEST_F(ClaimTest, ARenewalWithoutALeaseTakesTheLastGranted) {
  v1::ClaimRequest claim = WithLease(ClaimFor(NewKey()), seconds(300));
  const v1::Claimed first = Granted(claim);
  claim.clear_lease();
  const v1::Claimed renewed = Granted(Renewing(claim, first.fencing_token()));
  EXPECT_GE(ToNanos(renewed.lease_expires_at()),
            ToNanos(first.lease_expires_at()));
  EXPECT_GT(ToNanos(renewed.lease()), seconds(299));
}

TEST_F(ClaimTest, ARenewalExtendsItsGrantAndNoOther) {
  const v1::ClaimRequest claim = Abandoned();
  const v1::Record record = RecordOf(claim);
  EXPECT_TRUE(IsRefusedAs(Send(Renewing(claim, record.fencing_token() + 1)),
                          "CLAIM_SUPERSEDED"));
  EXPECT_EQ(RecordOf(claim).SerializeAsString(), record.SerializeAsString());
  const v1::Claimed renewed =
      Granted(Renewing(WithLease(claim, seconds(30)), record.fencing_token()));
  EXPECT_EQ(renewed.attempt(), 1);
  EXPECT_EQ(RecordOf(claim).state(), v1::Record::STATE_IN_PROGRESS);
}

TEST_F(ClaimTest, ACheckpointIsReplacedByOneOfEqualOrHigherNumber) {
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  Granted(WithCheckpoint(claim, "five", 5));
  EXPECT_EQ(RecordOf(claim).checkpoint(), "five");
  Granted(WithCheckpoint(claim, "four", 4));
  EXPECT_EQ(RecordOf(claim).checkpoint(), "five");
  Granted(WithCheckpoint(claim, "five again", 5));
  EXPECT_EQ(RecordOf(claim).checkpoint(), "five again");
  Granted(WithCheckpoint(claim, "six", 6));
  Granted(claim);
  EXPECT_EQ(RecordOf(claim).checkpoint(), "six");
}

TEST_F(ClaimTest, SecondOwnerIsToldWhenTheLeaseEnds) {
  v1::ClaimRequest claim = WithLease(ClaimFor(NewKey()), seconds(20));
  claim.set_owner("pod-1");
  const v1::Claimed claimed = Granted(claim);
  for (const v1::ClaimRequest& other :
       {ByAnother(claim), Resolving(ByAnother(claim))}) {
    const ClaimReply reply = Send(other);
    ASSERT_TRUE(reply->has_in_progress()) << reply->ShortDebugString();
    const v1::InProgress& in_progress = reply->in_progress();
    EXPECT_GE(ToNanos(in_progress.retry_after()), milliseconds(800));
    EXPECT_LE(ToNanos(in_progress.retry_after()), milliseconds(1200));
    EXPECT_EQ(ToNanos(in_progress.lease_expires_at()),
              ToNanos(claimed.lease_expires_at()));
    EXPECT_EQ(in_progress.attempt(), 1);
    EXPECT_EQ(in_progress.owner(), "pod-1");
  }
}

TEST_F(ClaimTest, RetryAfterEndsWithTheLease) {
  constexpr milliseconds kLease{700};
  const v1::ClaimRequest claim = WithLease(ClaimFor(NewKey()), kLease);
  Granted(claim);
  const ClaimReply reply = Send(ByAnother(claim));
  ASSERT_TRUE(reply->has_in_progress()) << reply->ShortDebugString();
  EXPECT_GT(ToNanos(reply->in_progress().retry_after()), nanoseconds(0));
  EXPECT_LE(ToNanos(reply->in_progress().retry_after()), kLease);
}

TEST_F(ClaimTest, ARenewalOfSomebodyElsesClaimIsSuperseded) {
  const v1::ClaimRequest running = ClaimFor(NewKey());
  Granted(running);
  for (const v1::ClaimRequest& claim :
       {running, Abandoned(), Abandoned("payment")}) {
    const v1::Record before = RecordOf(claim);
    EXPECT_TRUE(
        IsRefusedAs(Send(Renewing(ByAnother(claim), before.fencing_token())),
                    "CLAIM_SUPERSEDED"));
    EXPECT_TRUE(IsRefusedAs(
        Send(Resolving(Renewing(ByAnother(claim), before.fencing_token()))),
        "CLAIM_SUPERSEDED"));
    EXPECT_EQ(RecordOf(claim).SerializeAsString(), before.SerializeAsString());
  }
}

TEST_F(ClaimTest, AWaitEndsWithInProgressWithinItsTime) {
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  Granted(claim);
  v1::ClaimRequest waiting = ByAnother(claim);
  *waiting.mutable_wait() = ToProto(milliseconds(300));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(Send(waiting)->has_in_progress());
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(5));
}

TEST_F(ClaimTest, AHeldRecordWaitsForSomebodyWhoCanResolveIt) {
  v1::ClaimRequest claim = WithLease(ClaimFor(NewKey()), kShortLease);
  claim.set_policy("payment");
  claim.set_owner("pod-1");
  claim.set_checkpoint("sent");
  const v1::Claimed first = Granted(claim);
  WaitForLeaseEnd(claim);

  v1::ClaimRequest next = ByAnother(claim);
  next.clear_checkpoint();
  const v1::Record before = RecordOf(claim);
  const v1::Abandoned told = InDoubtOf(next).abandoned();
  EXPECT_EQ(told.attempt(), 1);
  EXPECT_EQ(told.reason(), v1::Abandoned::REASON_LEASE_LAPSED);
  EXPECT_EQ(told.checkpoint(), "sent");
  EXPECT_EQ(told.downstream_key(), first.downstream_key());
  EXPECT_EQ(told.fencing_token(), first.fencing_token());
  EXPECT_EQ(told.owner(), "pod-1");
  EXPECT_EQ(told.status_code(), 0);
  EXPECT_EQ(ToNanos(told.claimed_at()), ToNanos(before.claimed_at()));
  EXPECT_EQ(ToNanos(told.abandoned_at()), ToNanos(first.lease_expires_at()));
  EXPECT_EQ(RecordOf(claim).SerializeAsString(), before.SerializeAsString());

  const v1::Claimed second = Granted(Resolving(next));
  EXPECT_EQ(second.attempt(), 2);
  EXPECT_EQ(second.abandoned().SerializeAsString(), told.SerializeAsString());
}

TEST_F(ClaimTest, AHeldAbandonedRecordNeverExpires) {
  AddPolicy("brief-hold", "'100 ms', '1 hour', '1 ms', 'hold', 'hold'");
  v1::ClaimRequest claim = ClaimFor(NewKey());
  claim.set_policy("brief-hold");
  Granted(claim);
  WaitUntil([&] {
    return Sql("SELECT clock_timestamp() > claimed_at + interval '102 ms' "
               "FROM idempotency_records WHERE key = '" +
               claim.key() + "'") == "t";
  });
  EXPECT_EQ(InDoubtOf(ByAnother(claim)).abandoned().attempt(), 1);
  EXPECT_EQ(RecordOf(claim).state(), v1::Record::STATE_IN_DOUBT);
  EXPECT_EQ(Granted(Resolving(ByAnother(claim))).attempt(), 2);
}

TEST_F(ClaimTest, ATakeoverIsToldWhatWasAbandoned) {
  v1::ClaimRequest claim = WithLease(ClaimFor(NewKey()), kShortLease);
  claim.set_policy("order");
  claim.set_checkpoint("half");
  claim.set_owner("pod-1");
  const v1::Claimed first = Granted(claim);
  WaitForLeaseEnd(claim);
  const v1::Record before = RecordOf(claim);

  v1::ClaimRequest next = ClaimFor(claim.key());
  next.set_policy("form");
  next.set_owner("pod-2");
  const v1::Claimed second = Granted(next);
  EXPECT_EQ(second.attempt(), 2);
  EXPECT_GT(second.fencing_token(), first.fencing_token());
  EXPECT_EQ(second.downstream_key(), first.downstream_key());
  const v1::Abandoned& told = second.abandoned();
  EXPECT_EQ(told.attempt(), 1);
  EXPECT_EQ(told.reason(), v1::Abandoned::REASON_LEASE_LAPSED);
  EXPECT_EQ(told.checkpoint(), "half");
  EXPECT_EQ(told.owner(), "pod-1");
  EXPECT_EQ(told.fencing_token(), first.fencing_token());
  EXPECT_EQ(told.downstream_key(), first.downstream_key());
  EXPECT_EQ(ToNanos(told.claimed_at()), ToNanos(before.claimed_at()));
  EXPECT_EQ(ToNanos(told.abandoned_at()), ToNanos(first.lease_expires_at()));

  const v1::Record record = RecordOf(next);
  EXPECT_EQ(record.policy(), "order");
  EXPECT_EQ(ToNanos(record.created_at()), ToNanos(before.created_at()));
  EXPECT_EQ(record.owner(), "pod-2");
  EXPECT_EQ(record.abandoned().SerializeAsString(), told.SerializeAsString());
}

TEST_F(ClaimTest, ATakeoverIsToldWhyTheAttemptWasAbandoned) {
  const v1::ClaimRequest unknown = ClaimFor(NewKey());
  Granted(unknown);
  Send(ReleaseOf(unknown, v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN));
  const v1::Abandoned gave_up = Granted(ByAnother(unknown)).abandoned();
  EXPECT_EQ(gave_up.reason(), v1::Abandoned::REASON_OUTCOME_UNKNOWN);
  EXPECT_EQ(gave_up.status_code(), 0);
  EXPECT_GE(ToNanos(gave_up.abandoned_at()), ToNanos(gave_up.claimed_at()));

  const v1::ClaimRequest failed = ClaimFor(NewKey());
  Granted(failed);
  Finalized(FinalizeOf(failed, 504));
  const v1::Abandoned error = Granted(ByAnother(failed)).abandoned();
  EXPECT_EQ(error.reason(), v1::Abandoned::REASON_SERVER_ERROR);
  EXPECT_EQ(error.status_code(), 504);
}

TEST_F(ClaimTest, AnOlderClaimTokenIsANewCaller) {
  const v1::ClaimRequest first = Abandoned();
  v1::ClaimRequest second = WithLease(ByAnother(first), seconds(1));
  Granted(second);
  EXPECT_TRUE(Send(first)->has_in_progress());
  WaitForLeaseEnd(second);
  const v1::Claimed again = Granted(first);
  EXPECT_EQ(again.attempt(), 3);
  EXPECT_EQ(again.abandoned().attempt(), 2);
}

TEST_F(ClaimTest, CheckpointNumbersStartAnewWithEachGrant) {
  const v1::ClaimRequest claim = WithLease(ClaimFor(NewKey()), kShortLease);
  Granted(WithCheckpoint(claim, "nine", 9));
  WaitForLeaseEnd(claim);
  const v1::ClaimRequest next = ByAnother(ClaimFor(claim.key()));
  EXPECT_EQ(Granted(next).abandoned().checkpoint(), "nine");
  Granted(WithCheckpoint(next, "one", 1));
  EXPECT_EQ(RecordOf(next).checkpoint(), "one");
}

TEST_F(ClaimTest, AnAttemptWithoutACheckpointHandsOnWhatItWasTold) {
  const v1::ClaimRequest claim = WithLease(ClaimFor(NewKey()), kShortLease);
  Granted(WithCheckpoint(claim, "half", 1));
  WaitForLeaseEnd(claim);
  const v1::ClaimRequest second = ByAnother(claim);
  Granted(second);
  WaitForLeaseEnd(second);
  const v1::Claimed third = Granted(ByAnother(claim));
  EXPECT_EQ(third.attempt(), 3);
  EXPECT_EQ(third.abandoned().attempt(), 2);
  EXPECT_EQ(third.abandoned().checkpoint(), "half");
}

TEST_F(ClaimTest, TwoScopesAreTwoRecords) {
  const v1::ClaimRequest one = ClaimFor(NewKey());
  v1::ClaimRequest other = WithOtherHash(ByAnother(one));
  other.set_scope("tests/other");
  EXPECT_NE(Granted(one).downstream_key(), Granted(other).downstream_key());
}

TEST_F(ClaimTest, TheDownstreamKeyIsTheUuidOfItsRecord) {
  const std::string name_space =
      Sql("SELECT value FROM idempotency_settings WHERE name = "
          "'downstream_namespace'");
  v1::ClaimRequest claim = WithLease(ClaimFor(NewKey()), kShortLease);
  const auto expected = [&](int freed_count) {
    return ExpectedDownstreamKey(name_space, claim.scope(), claim.key(),
                                 freed_count);
  };
  EXPECT_EQ(Granted(claim).downstream_key(), expected(0));
  WaitForLeaseEnd(claim);
  const v1::ClaimRequest second = ByAnother(ClaimFor(claim.key()));
  EXPECT_EQ(Granted(second).downstream_key(), expected(0));
  EXPECT_TRUE(
      Send(ReleaseOf(second, v1::ReleaseRequest::DISPOSITION_NEVER_EXECUTED))
          ->released());
  EXPECT_EQ(RecordOf(second).downstream_key(), expected(1));
  const v1::ClaimRequest third = ByAnother(second);
  EXPECT_EQ(Granted(third).downstream_key(), expected(1));
  EXPECT_TRUE(
      Send(ReleaseOf(third, v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED))
          ->released());
  EXPECT_EQ(Granted(ByAnother(third)).downstream_key(), expected(2));
}

}  // namespace
}  // namespace idempotency
