#include <gtest/gtest.h>

#include <string>
#include <variant>

#include "tests/contract/store_contract.h"

namespace idempotency {
namespace {

const ReleaseOutcome kFreed{.released = true, .state = VisibleState::kReleased};
const ReleaseOutcome kGivenUp{.released = true,
                              .state = VisibleState::kInDoubt};

TEST_P(StoreContract, WhatWasNotExecutedIsFreed) {
  ClaimCommand command = ClaimBy(1);
  command.checkpoint = "begun";
  const Claimed first = MustClaim(command);
  EXPECT_EQ(*Release(1, Disposition::kNotExecuted), kFreed);
  EXPECT_EQ(Lookup()->state, VisibleState::kReleased);
  ClaimCommand next = ClaimBy(2, Hold());
  next.request_hash = std::string(20, 'n');
  const Claimed second = MustClaim(next);
  EXPECT_EQ(second.attempt, 2);
  EXPECT_GT(second.fencing_token, first.fencing_token);
  EXPECT_EQ(second.freed_count, 1);
  EXPECT_FALSE(second.abandoned.has_value());
  const Record record = MustLookup();
  EXPECT_EQ(record.policy, Hold());
  EXPECT_EQ(record.request_hash, next.request_hash);
  EXPECT_EQ(record.checkpoint, std::nullopt);
  EXPECT_TRUE(record.held);
}

TEST_P(StoreContract, AReleasedClaimIsNotRevivedByALateDuplicate) {
  MustClaim(ClaimBy(1));
  ASSERT_TRUE(Release(1, Disposition::kNotExecuted).ok());
  EXPECT_TRUE(IsRefused(Claim(ClaimBy(1)), Reason::kClaimReleased));
  EXPECT_EQ(*Release(1, Disposition::kNotExecuted), kFreed) << "a repeat";
  EXPECT_EQ(*Release(1, Disposition::kOutcomeUnknown), kFreed) << "a repeat";
  EXPECT_EQ(MustLookup().freed_count, 1);
}

TEST_P(StoreContract, AnUnknownOutcomeIsGivenUp) {
  MustClaim(ClaimBy(1));
  EXPECT_EQ(*Release(1, Disposition::kOutcomeUnknown), kGivenUp);
  EXPECT_EQ(*Release(1, Disposition::kNotExecuted), kGivenUp) << "a repeat";
  EXPECT_TRUE(IsRefused(Claim(ClaimBy(1)), Reason::kClaimReleased));
  const Record before = MustLookup();
  const Claimed second = MustClaim(ClaimBy(2));
  EXPECT_EQ(second.abandoned->reason, AbandonReason::kOutcomeUnknown);
  EXPECT_EQ(second.abandoned->abandoned_at, before.gave_up_at);
  EXPECT_EQ(second.freed_count, 0);
}

TEST_P(StoreContract, AnUnknownOutcomeMayBeFinalizedAfterAll) {
  MustClaim(ClaimBy(1));
  ASSERT_TRUE(Release(1, Disposition::kOutcomeUnknown).ok());
  EXPECT_EQ(MustFinalize(1, Answer(200)).result, FinalizeResult::kRecorded);
}

TEST_P(StoreContract, ASecondAttemptThatDidNothingKeepsTheFirstOnesDoubt) {
  ClaimCommand command = ClaimBy(1, Hold());
  command.checkpoint = "charged";
  MustClaim(command);
  LetTheLeaseLapse();
  ClaimCommand resolving = ClaimBy(2);
  resolving.resolve_in_doubt = true;
  resolving.checkpoint = "looked";
  const Claimed second = MustClaim(resolving);
  EXPECT_EQ(*Release(2, Disposition::kNotExecuted), kGivenUp);
  const auto doubt = Claim(ClaimBy(3));
  ASSERT_TRUE(Is<InDoubt>(doubt));
  EXPECT_EQ(std::get<InDoubt>(*doubt).abandoned, second.abandoned);
  resolving.claim_token = Token(3);
  const Claimed third = MustClaim(resolving);
  EXPECT_EQ(third.abandoned, second.abandoned);
  EXPECT_EQ(third.attempt, 3);
  EXPECT_EQ(third.freed_count, 0);
}

TEST_P(StoreContract, WhatWasNeverExecutedIsFreedWhateverCameBefore) {
  MustClaim(ClaimBy(1, Hold()));
  LetTheLeaseLapse();
  ClaimCommand resolving = ClaimBy(2);
  resolving.resolve_in_doubt = true;
  MustClaim(resolving);
  ASSERT_TRUE(Release(2, Disposition::kOutcomeUnknown).ok());
  EXPECT_EQ(*Release(2, Disposition::kNeverExecuted), kFreed);
  const Claimed third = MustClaim(ClaimBy(3));
  EXPECT_FALSE(third.abandoned.has_value());
  EXPECT_EQ(third.freed_count, 1);
  EXPECT_FALSE(MustLookup().held);
}

TEST_P(StoreContract, NothingOfAnothersIsReleased) {
  EXPECT_EQ(*Release(1, Disposition::kNotExecuted), ReleaseOutcome{});
  MustClaim(ClaimBy(1));
  for (const Disposition how :
       {Disposition::kNotExecuted, Disposition::kOutcomeUnknown,
        Disposition::kNeverExecuted}) {
    EXPECT_TRUE(IsRefused(Release(2, how), Reason::kClaimSuperseded));
  }
  LetTheLeaseLapse();
  EXPECT_TRUE(IsRefused(Release(2, Disposition::kNeverExecuted),
                        Reason::kClaimSuperseded));
  ASSERT_TRUE(Release(1, Disposition::kNotExecuted).ok());
  EXPECT_EQ(
      *Release(2, Disposition::kNotExecuted),
      (ReleaseOutcome{.released = false, .state = VisibleState::kReleased}));
}

TEST_P(StoreContract, AFinalRecordIsNeverUndone) {
  MustClaim(ClaimBy(1));
  MustFinalize(1, Answer(200));
  const Record before = MustLookup();
  for (const std::uint32_t token : {1u, 2u}) {
    EXPECT_TRUE(IsRefused(Release(token, Disposition::kNeverExecuted),
                          Reason::kAlreadyFinalized));
  }
  EXPECT_EQ(MustLookup(), before);
}

TEST_P(StoreContract, AnExpiredRecordHasNothingToRelease) {
  MustClaim(ClaimBy(1));
  Age(Id(), kLease + kRetention + absl::Seconds(1));
  EXPECT_EQ(*Release(1, Disposition::kNotExecuted), ReleaseOutcome{});
}

TEST_P(StoreContract, AFreedKeyIsKeptForItsRetention) {
  MustClaim(ClaimBy(1));
  Age(Id(), absl::Hours(24));
  ASSERT_TRUE(Release(1, Disposition::kNotExecuted).ok());
  Age(Id(), kRetention - absl::Minutes(1));
  EXPECT_TRUE(IsRefused(Claim(ClaimBy(1)), Reason::kClaimReleased));
  Age(Id(), absl::Minutes(2));
  EXPECT_EQ(MustClaim(ClaimBy(1)).attempt, 1);
}

TEST_P(StoreContract, AFreedPermanentKeyIsKeptForADay) {
  MustClaim(ClaimBy(1, Permanent()));
  ASSERT_TRUE(Release(1, Disposition::kNotExecuted).ok());
  Age(Id(), absl::Hours(23));
  EXPECT_EQ(Lookup()->state, VisibleState::kReleased);
  Age(Id(), absl::Hours(2));
  EXPECT_TRUE(IsRefused(Lookup(), Reason::kRecordNotFound));
}

}  // namespace
}  // namespace idempotency
