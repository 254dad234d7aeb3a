// L1 to L4: a history that keeps each, and one that breaks it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fault/checker/story.h"

namespace idempotency::fault {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::StartsWith;

auto Breaks(const std::string& number) {
  return Contains(StartsWith(number + ":"));
}

// A call a second that ends without a decision.
void TryInVain(Story& story, int times) {
  for (int i = 0; i < times; ++i) {
    const std::string op = "c2-" + std::to_string(story.calls.size());
    story.Send(story.ClaimCall(op, kBob));
    story.Advance(absl::Milliseconds(50));
    story.Fail(op, "UNAVAILABLE", "STORE_UNAVAILABLE");
    story.Advance(absl::Milliseconds(1050));
  }
}

TEST(ProgressTest, L1TheKeyOfADeadOwnerCanBeClaimed) {
  Story story;
  story.policy.retention = absl::Hours(1);
  story.Claim("c1-1", kAnn);
  story.Note(Phase::kBegin);
  story.Note(Phase::kEnd);
  story.Advance(story.limits.settle + absl::Seconds(1));
  TryInVain(story, 2);
  EXPECT_THAT(story.Broken(), IsEmpty());
  TryInVain(story, 1);
  EXPECT_THAT(story.Broken(), Breaks("L1"));
}

TEST(ProgressTest, AFaultThatNeverEndsIsNoCheck) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Note(Phase::kBegin);
  EXPECT_THAT(story.Broken(), Breaks("not checked"));
  story.Note(Phase::kEnd);
  EXPECT_THAT(story.Broken(), IsEmpty());
}

TEST(ProgressTest, L2NoKeyIsStuck) {
  Story story;
  story.Note(Phase::kEnd);
  story.Advance(story.limits.settle);
  TryInVain(story, 2);
  EXPECT_THAT(story.Broken(), IsEmpty());
  TryInVain(story, 1);
  EXPECT_THAT(story.Broken(), Breaks("L2"));
  story.Claim("c3-2", kCat);
  EXPECT_THAT(story.Broken(), IsEmpty());
}

TEST(ProgressTest, L2IsNotBrokenByWhoDoesNotWait) {
  Story story;
  story.Note(Phase::kEnd);
  story.Advance(story.limits.settle);
  TryInVain(story, 4);
  EXPECT_THAT(story.Broken(), Breaks("L2"));
  for (CallEvent& call : story.calls) call.deadline_us = 100'000;
  EXPECT_THAT(story.Broken(), IsEmpty());
}

TEST(ProgressTest, L2AllowsForWhatAFaultLeaves) {
  Story story;
  story.Note(Phase::kEnd);
  TryInVain(story, 4);
  EXPECT_THAT(story.Broken(), IsEmpty());
}

TEST(ProgressTest, L3ACallEndsWithItsDeadline) {
  Story story;
  AnswerEvent& answer = story.Claim("c1-1", kAnn);
  answer.t = story.call("c1-1").t + 1'090'000'000;
  EXPECT_THAT(story.Broken(), IsEmpty());
  answer.t += 20'000'000;
  EXPECT_THAT(story.Broken(), Breaks("L3"));
  story.Note(Phase::kBegin, "c1");
  EXPECT_THAT(story.Broken(), IsEmpty());
}

TEST(ProgressTest, L3ACallEndsAtAllWhileItsCallerLives) {
  Story story;
  story.Send(story.ClaimCall("c1-1", kAnn));
  story.Advance(absl::Milliseconds(900));
  story.Claim("c1-2", kBob);
  EXPECT_THAT(story.Broken(), IsEmpty());
  story.Advance(absl::Seconds(2));
  story.Lookup("c1-3");
  EXPECT_THAT(story.Broken(), Breaks("L3"));
}

TEST(ProgressTest, L3NobodyWaitsLongerThanHeAsked) {
  Story story;
  story.policy.lease = absl::Seconds(9);
  story.Note(Phase::kEnd);
  story.Advance(story.limits.settle);
  story.Claim("c1-1", kAnn);
  CallEvent waits = story.ClaimCall("c2-1", kBob);
  waits.wait_us = 200'000;
  story.Send(waits);
  story.Advance(absl::Milliseconds(250));
  AnswerEvent& answer = story.Answer(story.Decide(waits));
  ASSERT_EQ(answer.outcome, Outcome::kInProgress);
  EXPECT_THAT(story.Broken(), IsEmpty());
  story.call("c2-1").wait_us = 100'000;
  EXPECT_THAT(story.Broken(), Breaks("L3"));
}

TEST(ProgressTest, L4TheServiceIsItselfAgainAfterAFault) {
  Story story;
  story.limits.decided_share = 0.9;
  story.Note(Phase::kEnd);
  story.Advance(story.limits.settle);
  for (int i = 0; i < 27; ++i) story.Lookup("c1-" + std::to_string(i));
  TryInVain(story, 3);
  EXPECT_THAT(story.Broken(), IsEmpty());
  story.Send(story.ClaimCall("c3-1", kCat));
  story.Fail("c3-1", "UNAVAILABLE", "DRAINING");
  EXPECT_THAT(story.Broken(), Breaks("L4"));
}

TEST(ProgressTest, L3OfAStreamsCommandsOnlyTheirCallerKnows) {
  Story story;
  AnswerEvent& answer = story.Claim("c1-1", kAnn);
  answer.t += absl::ToInt64Nanoseconds(absl::Seconds(2));
  EXPECT_THAT(story.Broken(), Breaks("L3"));
  story.call("c1-1").path = Path::kBulk;
  EXPECT_THAT(story.Broken(), IsEmpty());
}

}  // namespace
}  // namespace idempotency::fault
