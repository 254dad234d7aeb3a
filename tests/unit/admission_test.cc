// What is taken in and what is turned away: the calculation by itself, and in
// a lane.
#include "server/core/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "tests/unit/lane_fixture.h"

namespace idempotency {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr QueueLoad Items(std::size_t items) { return {.items = items}; }

class AdmissionTest : public ::testing::Test {
 protected:
  static SteadyTime At(milliseconds time) {
    return SteadyTime(std::chrono::hours(1)) + time;
  }
  void Round(milliseconds begin, milliseconds end, bool carried = true) {
    admission_.BeginRound(At(begin));
    admission_.EndRound(At(end), carried);
  }
  bool Refuses(milliseconds now, const QueueLoad& load,
               Work work = Work::kNew) const {
    return admission_.Refuse(work, At(now), SteadyTime::max(), load)
        .has_value();
  }

  Admission admission_{{.batch_items_max = 10,
                        .batch_bytes_max = 1000,
                        .wait_max = milliseconds(500)}};
};

TEST_F(AdmissionTest, TheWaitIsTheRestOfThisRoundThoseAheadAndTheCallsOwn) {
  EXPECT_EQ(admission_.ExpectedTime(At({}), Items(100)), milliseconds(0));
  Round(milliseconds(0), milliseconds(100));
  const milliseconds now(200);
  EXPECT_EQ(admission_.ExpectedTime(At(now), {}), milliseconds(100));
  EXPECT_EQ(admission_.ExpectedTime(At(now), Items(9)), milliseconds(100));
  EXPECT_EQ(admission_.ExpectedTime(At(now), Items(10)), milliseconds(200));
  EXPECT_EQ(admission_.ExpectedTime(At(now), {.items = 10, .bytes = 3000}),
            milliseconds(400));
  admission_.BeginRound(At(now));
  EXPECT_EQ(admission_.ExpectedTime(At(milliseconds(230)), Items(10)),
            milliseconds(70 + 200));
}

TEST_F(AdmissionTest, ARoundThatTakesLongSaysSoBeforeItEnds) {
  Round(milliseconds(0), milliseconds(10));
  admission_.BeginRound(At(milliseconds(100)));
  const milliseconds now(100 + 410);
  const SteadyTime::duration expected =
      admission_.ExpectedTime(At(now), Items(10));
  EXPECT_EQ(expected, 2 * milliseconds(110));
  admission_.EndRound(At(now), true);
  EXPECT_EQ(admission_.ExpectedTime(At(now), Items(10)), expected)
      << "the end of it brings no other news";
}

TEST_F(AdmissionTest, ASingleSlowRoundTurnsNobodyAway) {
  Round(milliseconds(0), milliseconds(10));
  admission_.BeginRound(At(milliseconds(100)));
  EXPECT_FALSE(Refuses(milliseconds(360), Items(39)));
  EXPECT_TRUE(Refuses(milliseconds(2360), Items(39)));
}

TEST_F(AdmissionTest, TheFirstRoundIsAllThatIsKnown) {
  admission_.BeginRound(At(milliseconds(100)));
  EXPECT_EQ(admission_.ExpectedTime(At(milliseconds(300)), Items(10)),
            milliseconds(400));
}

TEST_F(AdmissionTest, ALongCallIsOneBatchAndNotSeveral) {
  Round(milliseconds(0), milliseconds(100));
  const SteadyTime now = At(milliseconds(200));
  EXPECT_EQ(admission_.ExpectedTime(now, {.items = 1, .bytes = 3000}),
            milliseconds(200));
  EXPECT_EQ(admission_.ExpectedTime(now, {.items = 2, .bytes = 2500}),
            milliseconds(300));
}

TEST_F(AdmissionTest, TheTimeOfARoundIsAMovingAverageOfThoseThatCarried) {
  Round(milliseconds(0), milliseconds(100));
  Round(milliseconds(100), milliseconds(300));
  EXPECT_EQ(admission_.ExpectedTime(At(milliseconds(300)), {}),
            milliseconds(125));
  Round(milliseconds(300), milliseconds(9000), false);
  EXPECT_EQ(admission_.ExpectedTime(At(milliseconds(9000)), {}),
            milliseconds(125));
  for (int i = 0; i < 20; ++i) Round(milliseconds(0), milliseconds(4));
  EXPECT_LT(admission_.ExpectedTime(At({}), {}), milliseconds(5));
}

TEST_F(AdmissionTest, NothingIsRefusedWhileTheNextRoundTakesEverything) {
  Round(milliseconds(0), milliseconds(60'000));
  EXPECT_FALSE(Refuses(milliseconds(60'000), {.items = 9, .bytes = 999}));
  EXPECT_TRUE(Refuses(milliseconds(60'000), Items(10)));
  EXPECT_TRUE(Refuses(milliseconds(60'000), {.items = 1, .bytes = 1000}));
}

TEST_F(AdmissionTest, WorkThatWasBegunIsGivenMoreTime) {
  Round(milliseconds(0), milliseconds(100));
  const milliseconds now(100);
  EXPECT_FALSE(Refuses(now, Items(49)));
  EXPECT_TRUE(Refuses(now, Items(50)));
  EXPECT_FALSE(Refuses(now, Items(50), Work::kBegun));
  EXPECT_FALSE(Refuses(now, Items(199), Work::kBegun));
  EXPECT_TRUE(Refuses(now, Items(200), Work::kBegun));
  EXPECT_EQ(
      admission_.Refuse(Work::kNew, At(now), SteadyTime::max(), Items(70)),
      milliseconds(800));
}

TEST_F(AdmissionTest, NewWorkWaitsForHalfOfItsCallersTimeAndBegunWorkForAll) {
  Round(milliseconds(0), milliseconds(100));
  const auto refused = [&](Work work, milliseconds left) {
    return admission_
        .Refuse(work, At(milliseconds(100)),
                At(milliseconds(100) + left + limits::kAnswerMargin), Items(10))
        .has_value();
  };
  EXPECT_TRUE(refused(Work::kNew, milliseconds(-60)));
  EXPECT_TRUE(refused(Work::kNew, milliseconds(399)));
  EXPECT_FALSE(refused(Work::kNew, milliseconds(400)));
  EXPECT_TRUE(refused(Work::kBegun, milliseconds(199)));
  EXPECT_FALSE(refused(Work::kBegun, milliseconds(200)));
}

TEST_F(AdmissionTest, WithoutABoundEverythingIsTakenIn) {
  Admission admission({.batch_items_max = 1, .batch_bytes_max = 1});
  admission.BeginRound(At({}));
  EXPECT_EQ(admission.Refuse(Work::kNew, At(milliseconds(60'000)), At({}),
                             Items(1'000'000)),
            std::nullopt);
}

// ---- In a lane, whose rounds take 200 ms and carry two calls.

class LaneAdmissionTest : public LaneTest {
 protected:
  LaneAdmissionTest() {
    options_.batch_items_max = 2;
    script_.while_working = [this] { clock_.Advance(milliseconds(200)); };
    Claim("first", {.key = "first"});
    lane().RunBatch();
    answers_.clear();
  }
  // Twenty claims of different keys, of which a second's worth fits.
  void FillTheQueue() {
    for (int i = 0; i < 20; ++i) {
      Claim("claim", {.key = "key-" + std::to_string(i)});
    }
  }
};

TEST_F(LaneAdmissionTest, ClaimsAreRefusedOnceTheirAnswerWouldTakeTooLong) {
  FillTheQueue();
  EXPECT_EQ(lane().queued(), 10u);
  EXPECT_THAT(answers_, SizeIs(10));
  EXPECT_THAT(answers_, Contains(std::pair("claim", "OVERLOADED")).Times(10));
  EXPECT_EQ(metrics_.overloaded, 10u);
  lane().RunBatch();
  Claim("claim", {.key = "later"});
  EXPECT_EQ(lane().queued(), 9u);
}

TEST_F(LaneAdmissionTest, ARefusalSaysWhenTheQueueWillBeWorkedOff) {
  FillTheQueue();
  absl::Status refusal;
  Submit(ClaimCall{{.id = {"scope", "late"}},
                   [&](absl::StatusOr<ClaimOutcome> outcome) {
                     refusal = outcome.status();
                   }},
         {});
  EXPECT_EQ(ReasonOf(refusal), Reason::kOverloaded);
  EXPECT_EQ(DelayAskedBy(refusal), milliseconds(1200));
}

TEST_F(LaneAdmissionTest, FinalizesAndRenewalsAreStillTakenInThen) {
  FillTheQueue();
  answers_.clear();
  ClaimCommand renewal{.id = {"scope", "mine"}, .renew_fencing_token = 7};
  Submit(ClaimCall{renewal, [](absl::StatusOr<ClaimOutcome>) {}}, {});
  Submit(ReleaseCall{{.id = {"scope", "other"}},
                     [](absl::StatusOr<ReleaseOutcome>) {}},
         {});
  EXPECT_EQ(lane().queued(), 12u);
  for (int i = 0; i < 40; ++i) Finalize("", {.key = "f" + std::to_string(i)});
  EXPECT_EQ(lane().queued(), 40u);
  EXPECT_THAT(answers_, Contains(std::pair("", "OVERLOADED")).Times(12));
  lane().Stop();
  lane().RunBatch();
}

TEST_F(LaneAdmissionTest, ACrowdAtOneKeyIsNoLoad) {
  constexpr int kCrowd = 200;
  for (int i = 0; i < kCrowd; ++i) Claim("crowd", {.key = "hot"});
  EXPECT_THAT(answers_, IsEmpty());
  EXPECT_EQ(lane().queued(), static_cast<std::size_t>(kCrowd));
  lane().RunBatch();
  EXPECT_THAT(answers_, SizeIs(kCrowd));
}

TEST_F(LaneAdmissionTest, CallsThatMetALockAreNotTurnedAway) {
  script_.failure = [](const Keys&, const std::string&) {
    return absl::AbortedError("a lock");
  };
  for (int i = 0; i < 10; ++i) {
    Claim("claim", {.key = "key-" + std::to_string(i)});
  }
  while (!lane().idle()) lane().RunBatch();
  EXPECT_THAT(answers_, IsEmpty());
  EXPECT_EQ(aside_->queued(), 10u);
}

}  // namespace
}  // namespace idempotency
