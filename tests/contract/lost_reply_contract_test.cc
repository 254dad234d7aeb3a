// A call whose reply was lost is sent again, to this replica or another one.
#include <gtest/gtest.h>

#include <string>
#include <variant>

#include "tests/contract/store_contract.h"

namespace idempotency {
namespace {

TEST_P(StoreContract, AClaimSentAgainIsTheSameGrant) {
  const Claimed first = MustClaim(ClaimBy(1));
  for (Store* store : {&this->store(), &other_store()}) {
    const auto answer = SendOne(*store, ClaimBy(1)).outcome;
    ASSERT_TRUE(Is<Claimed>(answer));
    const Claimed& again = std::get<Claimed>(*answer);
    EXPECT_EQ(again.fencing_token, first.fencing_token);
    EXPECT_EQ(again.attempt, 1);
    EXPECT_EQ(again.freed_count, first.freed_count);
    EXPECT_FALSE(again.abandoned.has_value());
    EXPECT_GE(again.lease_expires_at, first.lease_expires_at);
  }
}

TEST_P(StoreContract, ATakeoverSentAgainIsToldTheSame) {
  ClaimCommand command = ClaimBy(1);
  command.checkpoint = "charged";
  MustClaim(command);
  LetTheLeaseLapse();
  const Claimed first = MustClaim(ClaimBy(2));
  const auto answer = SendOne(other_store(), ClaimBy(2)).outcome;
  ASSERT_TRUE(Is<Claimed>(answer));
  const Claimed& again = std::get<Claimed>(*answer);
  EXPECT_EQ(again.fencing_token, first.fencing_token);
  EXPECT_EQ(again.attempt, 2);
  EXPECT_EQ(again.abandoned, first.abandoned);
  EXPECT_TRUE(again.abandoned.has_value());
}

TEST_P(StoreContract, AClaimAfterAReleaseSentAgainIsTheSameGrant) {
  MustClaim(ClaimBy(1));
  ASSERT_TRUE(Release(1, Disposition::kNotExecuted).ok());
  const Claimed first = MustClaim(ClaimBy(2));
  const auto answer = SendOne(other_store(), ClaimBy(2)).outcome;
  ASSERT_TRUE(Is<Claimed>(answer));
  EXPECT_EQ(std::get<Claimed>(*answer).fencing_token, first.fencing_token);
  EXPECT_EQ(std::get<Claimed>(*answer).freed_count, 1);
}

TEST_P(StoreContract, AFinalizeSentAgainIsRecordedOnce) {
  MustClaim(ClaimBy(1));
  const FinalizeOutcome first = MustFinalize(1, Answer(200));
  const Record before = MustLookup();
  const auto again = SendOne(other_store(), FinalizeBy(1, Answer(200)));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, first);
  Record after = MustLookup();
  after.version = before.version;
  EXPECT_EQ(after, before);
  EXPECT_TRUE(database().EvidenceOf(Id()).empty());
}

TEST_P(StoreContract, AServerErrorSentAgainIsAnsweredAsAtFirst) {
  MustClaim(ClaimBy(1, HoldServerErrors()));
  const FinalizeOutcome first = MustFinalize(1, Answer(504));
  const absl::Time gave_up_at = MustLookup().gave_up_at;
  const auto again = SendOne(other_store(), FinalizeBy(1, Answer(504)));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, first);
  EXPECT_EQ(MustLookup().gave_up_at, gave_up_at);
  EXPECT_TRUE(database().EvidenceOf(Id()).empty());
}

TEST_P(StoreContract, AReleaseSentAgainFreesOnce) {
  MustClaim(ClaimBy(1));
  const auto first = Release(1, Disposition::kNotExecuted);
  ASSERT_TRUE(first.ok());
  const auto again =
      SendOne(other_store(), ReleaseBy(1, Disposition::kNotExecuted));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *first);
  EXPECT_EQ(MustLookup().freed_count, 1);
}

TEST_P(StoreContract, AReleaseSentAgainAfterTheNextClaimReleasesNothing) {
  MustClaim(ClaimBy(1));
  ASSERT_TRUE(Release(1, Disposition::kNotExecuted).ok());
  MustClaim(ClaimBy(2));
  EXPECT_TRUE(IsRefused(Release(1, Disposition::kNotExecuted),
                        Reason::kClaimSuperseded));
  EXPECT_EQ(MustLookup().claim_token, Token(2));
}

}  // namespace
}  // namespace idempotency
