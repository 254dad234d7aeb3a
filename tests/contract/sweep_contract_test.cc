#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <variant>

#include "tests/contract/store_contract.h"

namespace idempotency {
namespace {

constexpr absl::Duration kPastAll = absl::Hours(24 * 10);

TEST_P(StoreContract, OnlyExpiredRecordsAreSwept) {
  MustClaim(ClaimBy(1, Id("kept")));
  MustClaim(ClaimBy(1, Id("expired")));
  Age(Id("expired"), kPastAll);
  EXPECT_EQ(Sweep().deleted, 1);
  EXPECT_TRUE(Lookup(Id("kept")).ok());
  EXPECT_TRUE(IsRefused(Lookup(Id("expired")), Reason::kRecordNotFound));
  EXPECT_EQ(Sweep().deleted, 0);
}

TEST_P(StoreContract, UnfinishedRecordsThatAreSweptAreCountedByPolicy) {
  MustClaim(ClaimBy(1, Id("unfinished")));
  Policy other = HoldServerErrors();
  ClaimCommand claim = ClaimBy(1, other);
  claim.id = Id("other policy");
  MustClaim(claim);
  MustClaim(ClaimBy(1));
  MustFinalize(1, Answer(200));
  for (const char* key : {"unfinished", "other policy", "key"}) {
    Age(Id(key), kPastAll);
  }
  const SweepReport report = Sweep();
  EXPECT_EQ(report.deleted, 3);
  EXPECT_EQ(report.parked, 0);
  EXPECT_EQ(report.unfinished, (std::map<std::string, std::int64_t>{
                                   {TakeOver().name, 1}, {other.name, 1}}));
}

TEST_P(StoreContract, ASweepIsBoundedAndTakesTheOldestFirst) {
  for (int i = 0; i < 6; ++i) {
    ClaimCommand claim = ClaimBy(1, i < 2 ? Hold() : TakeOver());
    claim.id = Id(std::to_string(i));
    MustClaim(claim);
    Age(claim.id, kPastAll - absl::Hours(i));
  }
  SweepReport report = Sweep(2);
  EXPECT_EQ(report.parked, 2) << "the two oldest are held";
  EXPECT_EQ(report.deleted, 0);
  EXPECT_EQ(Sweep(3).deleted, 3);
  EXPECT_EQ(Sweep(3).deleted, 1);
}

TEST_P(StoreContract, HeldDoubtNeverExpiresAndIsParked) {
  MustClaim(ClaimBy(1, Hold()));
  Age(Id(), kPastAll);
  EXPECT_TRUE(Is<InDoubt>(Claim(ClaimBy(2))));
  const SweepReport report = Sweep();
  EXPECT_EQ(report.deleted, 0);
  EXPECT_EQ(report.parked, 1);
  const Record parked = MustLookup();
  EXPECT_EQ(parked.expires_at, absl::InfiniteFuture());
  EXPECT_EQ(Sweep().parked, 0) << "once";
  EXPECT_TRUE(Is<InDoubt>(Claim(ClaimBy(2))));
}

TEST_P(StoreContract, AHeldServerErrorIsParkedToo) {
  MustClaim(ClaimBy(1, HoldServerErrors()));
  MustFinalize(1, Answer(500));
  Age(Id(), kPastAll);
  EXPECT_EQ(Sweep().parked, 1);
  EXPECT_EQ(Lookup()->state, VisibleState::kInDoubt);
}

TEST_P(StoreContract, ParkingChangesTheVersion) {
  MustClaim(ClaimBy(1, Hold()));
  Age(Id(), kPastAll);
  const std::int64_t before = MustLookup().version;
  EXPECT_EQ(Sweep().parked, 1);
  EXPECT_GT(MustLookup().version, before);
}

TEST_P(StoreContract, AParkedRecordExpiresAgainOnceItIsFinalized) {
  MustClaim(ClaimBy(1, Hold()));
  Age(Id(), kPastAll);
  EXPECT_EQ(Sweep().parked, 1);
  MustFinalize(1, Answer(200));
  const Record record = MustLookup();
  EXPECT_EQ(record.expires_at, record.finalized_at + kRetention);
  Age(Id(), kPastAll);
  EXPECT_EQ(Sweep().deleted, 1);
}

TEST_P(StoreContract, AParkedRecordExpiresAgainOnceItIsFreed) {
  MustClaim(ClaimBy(1, Hold()));
  Age(Id(), kPastAll);
  EXPECT_EQ(Sweep().parked, 1);
  ASSERT_TRUE(Release(1, Disposition::kNeverExecuted).ok());
  EXPECT_LT(MustLookup().expires_at, absl::InfiniteFuture());
  Age(Id(), kPastAll);
  EXPECT_EQ(Sweep().deleted, 1);
}

TEST_P(StoreContract, AParkedRecordExpiresAgainOnceItIsTakenOver) {
  MustClaim(ClaimBy(1, Hold()));
  Age(Id(), kPastAll);
  EXPECT_EQ(Sweep().parked, 1);
  ClaimCommand resolving = ClaimBy(2);
  resolving.resolve_in_doubt = true;
  const Claimed claimed = MustClaim(resolving);
  EXPECT_EQ(claimed.expires_at, claimed.lease_expires_at + kRetention);
}

TEST_P(StoreContract, AHeldRecordThatIsFinalIsSweptLikeAnyOther) {
  MustClaim(ClaimBy(1, Hold()));
  MustFinalize(1, Answer(200));
  Age(Id(), kPastAll);
  const SweepReport report = Sweep();
  EXPECT_EQ(report.deleted, 1);
  EXPECT_EQ(report.parked, 0);
  EXPECT_TRUE(report.unfinished.empty());
}

TEST_P(StoreContract, ReleasedRecordsAreSwept) {
  MustClaim(ClaimBy(1));
  ASSERT_TRUE(Release(1, Disposition::kNotExecuted).ok());
  Age(Id(), kPastAll);
  const SweepReport report = Sweep();
  EXPECT_EQ(report.deleted, 1);
  EXPECT_TRUE(report.unfinished.empty());
}

TEST_P(StoreContract, ARecordThatWasClaimedAgainIsNotSwept) {
  MustClaim(ClaimBy(1));
  MustFinalize(1, Answer(200));
  Age(Id(), kPastAll);
  MustClaim(ClaimBy(2));
  EXPECT_EQ(Sweep().deleted, 0);
  EXPECT_EQ(MustLookup().claim_token, Token(2));
}

TEST_P(StoreContract, PermanentRecordsAreNeverSwept) {
  MustClaim(ClaimBy(1, Permanent()));
  Age(Id(), absl::Hours(24 * 3650));
  EXPECT_EQ(Sweep().deleted, 0);
  MustFinalize(1, Answer(200));
  Age(Id(), absl::Hours(24 * 3650));
  EXPECT_EQ(Sweep().deleted, 0);
  EXPECT_TRUE(Is<Replay>(Claim(ClaimBy(2))));
}

TEST_P(StoreContract, APermanentRecordIsSweptItsTimeAfterFinalize) {
  Policy policy = Permanent();
  policy.retention_after_finalize = absl::Hours(1);
  MustClaim(ClaimBy(1, policy));
  Age(Id(), absl::Hours(24 * 365));
  EXPECT_EQ(Sweep().deleted, 0) << "not before it is final";
  MustFinalize(1, Answer(200));
  Age(Id(), absl::Minutes(59));
  EXPECT_EQ(Sweep().deleted, 0);
  Age(Id(), absl::Minutes(2));
  EXPECT_EQ(Sweep().deleted, 1);
}

}  // namespace
}  // namespace idempotency
