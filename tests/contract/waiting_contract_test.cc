// What a lane asks of a store for the sake of those who wait for another
// owner's end.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/contract/store_contract.h"

namespace idempotency {
namespace {

std::vector<bool> ChangedOf(Store& store, const std::vector<Watched>& watched) {
  const auto changed = store.FindChanged(PointersTo(watched));
  EXPECT_TRUE(changed.ok()) << changed.status();
  return changed.value_or(std::vector<bool>());
}

TEST_P(StoreContract, LookAtNothingFindsNothing) {
  const auto changed = store().FindChanged({});
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_TRUE(changed->empty());
}

// Each way in which a claim can end, and a renewal.
TEST_P(StoreContract, WhateverBecomesOfARunningRecordIsFound) {
  const std::vector<std::function<void()>> changes = {
      [&] { MustFinalize(1, Answer(200)); },
      [&] { MustFinalize(1, Answer(500)); },
      [&] { ASSERT_TRUE(Release(1, Disposition::kNeverExecuted).ok()); },
      [&] { ASSERT_TRUE(Release(1, Disposition::kOutcomeUnknown).ok()); },
      [&] { MustClaim(ClaimBy(1)); },
      [&] { LetTheLeaseLapse(); },
      [&] {
        LetTheLeaseLapse();
        MustClaim(ClaimBy(2));
      },
      [&] {
        Age(Id(), absl::Hours(240));
        ASSERT_EQ(Sweep().deleted, 1);
      },
      [&] {
        Age(Id(), absl::Hours(240));
        ASSERT_EQ(Sweep().deleted, 1);
        MustClaim(ClaimBy(3));
      },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    SetUp();
    MustClaim(ClaimBy(1));
    const std::vector<Watched> watched = {{Id(), MustLookup().version}};
    EXPECT_EQ(ChangedOf(other_store(), watched), std::vector<bool>{false});
    changes[i]();
    EXPECT_EQ(ChangedOf(other_store(), watched), std::vector<bool>{true});
  }
}

TEST_P(StoreContract, EveryChangeStandsAtItsPlaceInOneLook) {
  std::vector<Watched> watched;
  std::vector<bool> expected;
  for (std::uint32_t i = 0; i < 40; ++i) {
    const RecordId id = Id(std::to_string(100 + i));
    if (i % 4 == 3) {
      watched.push_back({id, 1});  // none such
    } else {
      MustClaim(ClaimBy(1, id));
      watched.push_back({id, MustLookup(id).version});
      if (i % 4 == 1) watched.back().version -= 1;
      if (i % 4 == 2) Age(id, kLease * 2);
    }
    expected.push_back(i % 4 != 0);
  }
  EXPECT_EQ(ChangedOf(store(), watched), expected);
}

TEST_P(StoreContract, HintThatARecordIsThereDecidesNothing) {
  ClaimCommand first = ClaimBy(1);
  first.seen_present = true;
  EXPECT_TRUE(Is<Claimed>(Claim(first))) << "there was none";
  ClaimCommand second = ClaimBy(2);
  second.seen_present = true;
  EXPECT_TRUE(Is<InProgress>(Claim(second)));
  LetTheLeaseLapse();
  EXPECT_TRUE(Is<Claimed>(Claim(second)));
  Age(Id(), absl::Hours(240));
  ClaimCommand third = ClaimBy(3);
  third.seen_present = true;
  EXPECT_TRUE(Is<Claimed>(Claim(third))) << "it had expired";
  third.renew_fencing_token = 1;
  third.id = Id("none");
  EXPECT_TRUE(IsRefused(Claim(third), Reason::kRecordNotFound));
}

}  // namespace
}  // namespace idempotency
