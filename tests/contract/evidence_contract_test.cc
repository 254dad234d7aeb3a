#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "server/core/limits.h"
#include "tests/contract/store_contract.h"

namespace idempotency {
namespace {

TEST_P(StoreContract, EveryRefusedFinalizeIsEvidence) {
  EXPECT_FALSE(Finalize(1, Answer(200)).ok());  // absent
  EXPECT_EQ(database().EvidenceOf(Id()).size(), 1u);
  MustClaim(ClaimBy(2));
  EXPECT_FALSE(Finalize(3, Answer(200)).ok());  // another's
  EXPECT_EQ(database().EvidenceOf(Id()).size(), 2u);
  MustFinalize(2, Answer(200));
  EXPECT_FALSE(Finalize(2, Answer(201)).ok());  // another response
  EXPECT_EQ(database().EvidenceOf(Id()).size(), 3u);
  MustClaim(ClaimBy(1, Id("released")));
  ReleaseCommand release = ReleaseBy(1, Disposition::kNotExecuted);
  release.id = Id("released");
  ASSERT_TRUE(SendOne(store(), release).ok());
  FinalizeCommand finalize = FinalizeBy(1, Answer(200));
  finalize.id = Id("released");
  EXPECT_FALSE(SendOne(store(), finalize).ok());
  EXPECT_EQ(database().EvidenceOf(Id("released")).size(), 1u);
}

TEST_P(StoreContract, TheSameRefusedResponseIsCountedUp) {
  MustClaim(ClaimBy(1));
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(
        SendOne(i == 1 ? other_store() : store(), FinalizeBy(2, Answer(418)))
            .ok());
  }
  const std::vector<Evidence> kept = database().EvidenceOf(Id());
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].count, 3);
  EXPECT_EQ(kept[0].status_code, 418);
}

TEST_P(StoreContract, ALookupCountsTheDifferentRefusedResponses) {
  MustClaim(ClaimBy(1));
  EXPECT_EQ(Lookup()->conflict_count, 0);
  EXPECT_FALSE(Finalize(2, Answer(200)).ok());
  EXPECT_FALSE(Finalize(3, Answer(200)).ok());
  EXPECT_EQ(Lookup()->conflict_count, 1) << "by two, the same response";
  EXPECT_FALSE(Finalize(3, Answer(201)).ok());
  EXPECT_EQ(Lookup()->conflict_count, 2);
}

TEST_P(StoreContract, EvidenceIsBoundedAndWhatIsKeptIsStillCounted) {
  MustClaim(ClaimBy(1));
  const std::uint32_t bound = limits::kConflictsPerRecordMax;
  for (std::uint32_t i = 0; i < bound + 4; ++i) {
    EXPECT_TRUE(
        IsRefused(Finalize(100 + i, Answer(200)), Reason::kClaimSuperseded));
  }
  EXPECT_EQ(database().EvidenceOf(Id()).size(), bound);
  EXPECT_FALSE(Finalize(100, Answer(200)).ok());
  const std::vector<Evidence> kept = database().EvidenceOf(Id());
  std::int64_t count = 0;
  for (const Evidence& row : kept) count += row.count;
  EXPECT_EQ(kept.size(), bound);
  EXPECT_EQ(count, bound + 1);
}

TEST_P(StoreContract, EvidenceOfAnEarlierLifeIsNotCounted) {
  MustClaim(ClaimBy(1));
  EXPECT_FALSE(Finalize(2, Answer(200)).ok());
  Age(Id(), absl::Hours(48));
  database().AgeEvidence(absl::Hours(48));
  MustClaim(ClaimBy(3));
  EXPECT_EQ(Lookup()->conflict_count, 0);
  EXPECT_EQ(database().EvidenceOf(Id()).size(), 1u);
}

TEST_P(StoreContract, EvidenceOfAnEarlierLifeLeavesRoomForThatOfThisOne) {
  MustClaim(ClaimBy(1));
  const std::uint32_t bound = limits::kConflictsPerRecordMax;
  for (std::uint32_t i = 0; i < bound; ++i) {
    EXPECT_FALSE(Finalize(100 + i, Answer(200)).ok());
  }
  Age(Id(), absl::Hours(48));
  database().AgeEvidence(absl::Hours(48));
  MustClaim(ClaimBy(2));
  EXPECT_FALSE(Finalize(3, Answer(200)).ok());
  EXPECT_EQ(database().EvidenceOf(Id()).size(), bound + 1);
  EXPECT_EQ(Lookup()->conflict_count, 1);
}

TEST_P(StoreContract, EvidenceIsSweptAfterItsTimeOnly) {
  MustClaim(ClaimBy(1));
  EXPECT_FALSE(Finalize(2, Answer(200)).ok());
  EXPECT_FALSE(Finalize(3, Answer(200)).ok());
  const auto sweeper = database().MakeSweeper();
  EXPECT_EQ(sweeper->SweepConflicts(10, absl::Hours(24)).value(), 0);
  database().AgeEvidence(absl::Hours(25));
  EXPECT_FALSE(Finalize(3, Answer(200)).ok()) << "seen again";
  EXPECT_EQ(sweeper->SweepConflicts(10, absl::Hours(24)).value(), 1);
  EXPECT_EQ(database().EvidenceOf(Id()).size(), 1u);
}

TEST_P(StoreContract, ASweepOfEvidenceIsBounded) {
  MustClaim(ClaimBy(1));
  for (std::uint32_t i = 0; i < 5; ++i) {
    EXPECT_FALSE(Finalize(100 + i, Answer(200)).ok());
  }
  database().AgeEvidence(absl::Hours(25));
  const auto sweeper = database().MakeSweeper();
  EXPECT_EQ(sweeper->SweepConflicts(3, absl::Hours(24)).value(), 3);
  EXPECT_EQ(sweeper->SweepConflicts(3, absl::Hours(24)).value(), 2);
}

}  // namespace
}  // namespace idempotency
