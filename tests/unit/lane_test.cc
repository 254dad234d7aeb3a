// What a lane makes of its queue: rounds, bounds, followers, order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/lane_fixture.h"

namespace idempotency {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(LaneTest, WhatWasQueuedGoesInOneBatchSortedByKey) {
  Claim("1", {.key = "b"});
  Claim("2", {.key = "c"});
  Claim("3", {.key = "a"});
  lane().RunBatch();
  EXPECT_THAT(script_.batches, ElementsAre(ElementsAre("a", "b", "c")));
  EXPECT_THAT(answers_,
              ElementsAre(std::pair("3", "Claimed"), std::pair("1", "Claimed"),
                          std::pair("2", "Claimed")));
  EXPECT_TRUE(lane().idle());
}

TEST_F(LaneTest, WhatArrivesWhileTheStoreWorksIsTheNextBatch) {
  script_.while_working = [this] {
    script_.while_working = nullptr;
    Claim("2", {.key = "b"});
    Claim("3", {.key = "c"});
  };
  Claim("1", {.key = "a"});
  lane().RunBatch();
  lane().RunBatch();
  EXPECT_THAT(script_.batches,
              ElementsAre(ElementsAre("a"), ElementsAre("b", "c")));
}

TEST_F(LaneTest, ABatchHasABoundInItems) {
  options_.batch_items_max = 2;
  for (const char* key : {"a", "b", "c"}) Claim(key, {.key = key});
  lane().RunBatch();
  lane().RunBatch();
  EXPECT_THAT(script_.batches,
              ElementsAre(ElementsAre("a", "b"), ElementsAre("c")));
}

TEST_F(LaneTest, ABatchHasABoundInBytesButACallThatExceedsItGoesByItself) {
  options_.batch_bytes_max = 250;
  Claim("1", {.key = "a", .bytes = 1000});
  Claim("2", {.key = "b"});
  Claim("3", {.key = "c"});
  Claim("4", {.key = "d"});
  lane().RunBatch();
  lane().RunBatch();
  lane().RunBatch();
  EXPECT_THAT(
      script_.batches,
      ElementsAre(ElementsAre("a"), ElementsAre("b", "c"), ElementsAre("d")));
}

TEST_F(LaneTest, FollowersOfAKeyAreAnsweredFromTheirLeadersOutcome) {
  Claim("leader", {.key = "a"});
  Claim("follower", {.key = "a"});
  Claim("another", {.key = "a"});
  lane().RunBatch();
  EXPECT_THAT(script_.batches, ElementsAre(ElementsAre("a")));
  EXPECT_THAT(answers_, ElementsAre(std::pair("leader", "Claimed"),
                                    std::pair("follower", "InProgress"),
                                    std::pair("another", "InProgress")));
  EXPECT_EQ(metrics_.followers_answered, 2u);
}

TEST_F(LaneTest, WhoAsksAfterTheStatementWasSentIsNotAnsweredFromIt) {
  script_.while_working = [this] {
    script_.while_working = nullptr;
    Claim("late", {.key = "a"});
  };
  Claim("leader", {.key = "a"});
  lane().RunBatch();
  EXPECT_THAT(answers_, ElementsAre(std::pair("leader", "Claimed")));
  lane().RunBatch();
  EXPECT_THAT(script_.batches, SizeIs(2));
}

TEST_F(LaneTest, CallsOfOneKeyKeepTheirOrder) {
  Claim("claim", {.key = "a"});
  Finalize("finalize", {.key = "a"});
  Claim("claim again", {.key = "a"});
  for (int i = 0; i < 3; ++i) lane().RunBatch();
  EXPECT_THAT(answers_, ElementsAre(std::pair("claim", "Claimed"),
                                    std::pair("finalize", "Recorded"),
                                    std::pair("claim again", "Claimed")));
}

TEST_F(LaneTest, ACallWhoseDeadlinePassedInTheQueueNeverReachesTheStore) {
  Claim("late", {.key = "a", .timeout = milliseconds(100)});
  Claim("in time", {.key = "b"});
  clock_.Advance(milliseconds(100));
  lane().RunBatch();
  EXPECT_THAT(script_.batches, ElementsAre(ElementsAre("b")));
  EXPECT_THAT(answers_, ElementsAre(std::pair("late", "DEADLINE_EXCEEDED"),
                                    std::pair("in time", "Claimed")));
}

TEST_F(LaneTest, ACallWhoseCallerHasGoneNeverReachesTheStore) {
  Claim("gone", {.key = "a", .cancelled = [] { return true; }});
  Claim("follower of the gone one", {.key = "a"});
  lane().RunBatch();
  EXPECT_THAT(script_.batches, ElementsAre(ElementsAre("a")));
  EXPECT_THAT(answers_,
              ElementsAre(std::pair("gone", "CANCELLED: the caller has gone"),
                          std::pair("follower of the gone one", "Claimed")));
}

TEST_F(LaneTest, AFullQueueRefusesAtOnce) {
  options_.queue_items_max = 1;
  Claim("1", {.key = "a"});
  Claim("2", {.key = "b"});
  EXPECT_THAT(answers_, ElementsAre(std::pair("2", "OVERLOADED")));
  lane().RunBatch();
}

TEST_F(LaneTest, AQueueHasABoundInBytes) {
  options_.queue_bytes_max = 150;
  Claim("1", {.key = "a"});
  Claim("2", {.key = "b"});
  EXPECT_THAT(answers_, ElementsAre(std::pair("2", "OVERLOADED")));
  lane().RunBatch();
}

TEST_F(LaneTest, ADrainingLaneFinishesWhatItHasAndRefusesTheRest) {
  Claim("1", {.key = "a"});
  lane().StopAccepting();
  Claim("2", {.key = "b"});
  lane().RunBatch();
  EXPECT_THAT(answers_, ElementsAre(std::pair("2", "DRAINING"),
                                    std::pair("1", "Claimed")));
}

TEST_F(LaneTest, AStoppedLaneAnswersWhatIsLeft) {
  Claim("1", {.key = "a"});
  lane().Stop();
  EXPECT_FALSE(lane().WaitForWork());
  lane().RunBatch();
  EXPECT_THAT(answers_, ElementsAre(std::pair("1", "DRAINING")));
  EXPECT_THAT(script_.batches, IsEmpty());
}

TEST_F(LaneTest, AnUnknownPolicyMakesTheLaneReadTheRulesOnceASecond) {
  script_.rules.policies["new"] = PolicyNamed("new");
  Claim("1", {.key = "a", .policy = "new"});
  lane().RunBatch();
  EXPECT_THAT(answers_, ElementsAre(std::pair("1", "Claimed")));
  EXPECT_EQ(script_.rules_read, 1);
  script_.rules.policies["newer"] = PolicyNamed("newer");
  lane().RunBatch();
  EXPECT_EQ(script_.rules_read, 1);
  clock_.Advance(seconds(1));
  Claim("2", {.key = "b", .policy = "newer"});
  Claim("3", {.key = "c", .policy = "never heard of"});
  lane().RunBatch();
  EXPECT_EQ(script_.rules_read, 2);
  EXPECT_THAT(answers_,
              ElementsAre(std::pair("1", "Claimed"), std::pair("2", "Claimed"),
                          std::pair("3", "UNKNOWN_POLICY")));
}

}  // namespace
}  // namespace idempotency
