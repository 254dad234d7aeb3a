// L1 to L4: a history that keeps each, and one that breaks it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fault/checker/story.h"

namespace idempotency::fault {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
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

// Two claims in vain, `between`, and one more.
Story InVainAround(void (*between)(Story&)) {
  Story story;
  story.policy.retention = absl::Hours(1);
  story.Claim("c1-1", kAnn);
  story.Note(Phase::kEnd);
  story.Advance(story.limits.settle + absl::Seconds(1));
  TryInVain(story, 2);
  between(story);
  TryInVain(story, 1);
  return story;
}

TEST(ProgressTest, L1OnlyAClaimShowsThatTheKeyIsHad) {
  const Story claimed = InVainAround([](Story& story) {
    story.Claim("c3-1", kCat);
    story.Advance(absl::Seconds(2));
  });
  EXPECT_THAT(claimed.Broken(), IsEmpty());
  const Story looked_up =
      InVainAround([](Story& story) { story.Lookup("c3-1"); });
  EXPECT_THAT(looked_up.Broken(), Breaks("L1"));
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

// ---- Keys that were left unfinished.

// A key whose owner has gone, and the time at which it is asked for.
void LeaveAKey(Story& story) {
  story.Claim("c1-1", kAnn);
  story.Advance(absl::Milliseconds(1100));
  story.Note(Phase::kClosing);
  story.Advance(absl::Milliseconds(1));
}

TEST(ProgressTest, L1AKeyLeftUnfinishedIsHadAtTheEnd) {
  Story story;
  LeaveAKey(story);
  EXPECT_THAT(story.Broken(), IsEmpty());
  EXPECT_EQ(story.Check().counts.left, 1);
  EXPECT_EQ(story.Check().counts.left_asked, 0);
  story.Lookup("l-1");
  AnswerEvent& claimed = story.Claim("l-2", kBob);
  ASSERT_EQ(claimed.outcome, Outcome::kClaimed);
  EXPECT_THAT(story.Broken(), IsEmpty());
  EXPECT_EQ(story.Check().counts.left_asked, 1);
  claimed = {.op = "l-2",
             .t = claimed.t,
             .code = "UNAVAILABLE",
             .reason = "OUTCOME_UNKNOWN"};
  EXPECT_THAT(story.Broken(), Breaks("L1"));
}

TEST(ProgressTest, L1ItIsHadInTime) {
  Story story;
  LeaveAKey(story);
  story.Lookup("l-1");
  story.Send(story.ClaimCall("l-2", kBob));
  story.Fail("l-2", "UNAVAILABLE", "STORE_UNAVAILABLE");
  story.Advance(story.limits.left_patience - absl::Milliseconds(100));
  AnswerEvent& claimed = story.Claim("l-3", kCat);
  EXPECT_THAT(story.Broken(), IsEmpty());
  claimed.t += absl::ToInt64Nanoseconds(absl::Milliseconds(200));
  EXPECT_THAT(story.Broken(), Breaks("L1"));
}

TEST(ProgressTest, L1AnotherLeaseIsWaitedFor) {
  Story story;
  story.policy.lease = absl::Seconds(9);
  LeaveAKey(story);
  story.Lookup("l-1");
  ASSERT_EQ(story.Claim("l-2", kBob).outcome, Outcome::kInProgress);
  EXPECT_THAT(story.Broken(), IsEmpty());
  story.Advance(absl::Seconds(9) + story.limits.left_patience -
                absl::Milliseconds(1200));
  AnswerEvent& claimed = story.Claim("l-3", kBob);
  ASSERT_EQ(claimed.outcome, Outcome::kClaimed);
  EXPECT_THAT(story.Broken(), IsEmpty());
  claimed.t += absl::ToInt64Nanoseconds(absl::Milliseconds(200));
  EXPECT_THAT(story.Broken(), Breaks("L1"));
}

TEST(ProgressTest, L1AHeldKeyIsHadByWhoResolvesIt) {
  Story story;
  story.policy.on_abandoned = OnAbandoned::kHold;
  LeaveAKey(story);
  story.Lookup("l-1");
  ASSERT_EQ(story.Claim("l-2", kBob).outcome, Outcome::kInDoubt);
  EXPECT_THAT(story.Broken(), Breaks("L1"));
  CallEvent resolves = story.ClaimCall("l-3", kBob);
  resolves.resolve = true;
  ASSERT_EQ(story.Do(resolves).outcome, Outcome::kClaimed);
  EXPECT_THAT(story.Broken(), IsEmpty());
}

TEST(ProgressTest, L2AKeyLeftUnfinishedCanBeLookedUpAtTheEnd) {
  Story story;
  LeaveAKey(story);
  story.Send(story.ClaimCall("l-1", "")).kind = Kind::kLookup;
  story.calls.back().hash.clear();
  AnswerEvent& failed = story.Fail("l-1", "UNAVAILABLE", "STORE_UNAVAILABLE");
  story.Claim("l-2", kBob);
  EXPECT_THAT(story.Broken(), Breaks("L2"));
  const std::int64_t end =
      failed.t + absl::ToInt64Nanoseconds(story.limits.left_patience);
  AnswerEvent& found = story.Lookup("l-3");
  EXPECT_THAT(story.Broken(), IsEmpty());
  found.t = end + 1;
  EXPECT_THAT(story.Broken(), Breaks("L2"));
}

// ---- What is called at the end counts for nothing else.

TEST(ProgressTest, L2AStuckKeyIsStuckThoughItIsHadAtTheEnd) {
  Story story;
  story.Note(Phase::kEnd);
  story.Advance(story.limits.settle);
  TryInVain(story, 3);
  story.Note(Phase::kClosing);
  story.Lookup("l-1");
  story.Claim("l-2", kAnn);
  EXPECT_THAT(story.Broken(), Breaks("L2"));
  EXPECT_EQ(story.Check().counts.after_faults, 0);
  story.notes.pop_back();
  EXPECT_THAT(story.Broken(), IsEmpty());
}

TEST(ProgressTest, L4CallsAtTheEndMakeUpForNone) {
  Story story;
  story.limits.decided_share = 0.9;
  story.Note(Phase::kEnd);
  story.Advance(story.limits.settle);
  for (int i = 0; i < 17; ++i) story.Lookup("c1-" + std::to_string(i));
  TryInVain(story, 3);
  story.Note(Phase::kClosing);
  for (int i = 0; i < 80; ++i) story.Lookup("l-" + std::to_string(i));
  EXPECT_THAT(story.Broken(), Breaks("L4"));
  story.notes.pop_back();
  EXPECT_THAT(story.Broken(), IsEmpty());
}

// ---- Waits.

// A claim that waits, told so much later what there is then.
AnswerEvent& Wait(Story& story, absl::Duration wait, absl::Duration waited,
                  Path path = Path::kUnary) {
  CallEvent waits =
      story.ClaimCall("w-" + std::to_string(story.calls.size()), kBob);
  waits.wait_us = absl::ToInt64Microseconds(wait);
  waits.deadline_us = 9'000'000;
  waits.path = path;
  story.Send(waits);
  story.Advance(waited);
  return story.Answer(story.Decide(waits));
}

void Settle(Story& story) {
  story.policy.lease = absl::Seconds(100);
  story.policy.max_lease = absl::Seconds(100);
  story.policy.retention = absl::Hours(1);
  story.Note(Phase::kEnd);
  story.Advance(story.limits.settle);
}

constexpr int kWaits = 25;

TEST(ProgressTest, L3NobodyWaitsLongerThanHeAsked) {
  // Of a command's wait, histories tell as much.
  for (const Path path : {Path::kUnary, Path::kBulk}) {
    Story story;
    Settle(story);
    story.Claim("c1-1", kAnn);
    for (int i = 0; i < kWaits; ++i) {
      Wait(story, absl::Milliseconds(700), absl::Milliseconds(1150), path);
    }
    EXPECT_THAT(story.Broken(), IsEmpty());
    EXPECT_EQ(story.Check().counts.overlong, 0);
    int longer = 0;
    for (CallEvent& call : story.calls) {
      if (call.wait_us == 0) continue;
      call.wait_us = 600'000;
      if (++longer == kWaits / 5) {
        EXPECT_THAT(story.Broken(), IsEmpty());
      }
    }
    EXPECT_THAT(story.Broken(), Breaks("L3"));
  }
}

TEST(ProgressTest, L3AWaitEndsBeforeTheDeadline) {
  Story story;
  Settle(story);
  story.Claim("c1-1", kAnn);
  for (int i = 0; i < kWaits; ++i) {
    Wait(story, absl::Seconds(2), absl::Seconds(1));
    story.calls.back().deadline_us = 1'050'000;
  }
  EXPECT_THAT(story.Broken(), IsEmpty());
  for (CallEvent& call : story.calls) call.deadline_us = 9'000'000;
  EXPECT_THAT(story.Broken(), Breaks("L3"));
}

TEST(ProgressTest, L3ClaimsWaitForAsLongAsTheyAsk) {
  Story story;
  Settle(story);
  story.Claim("c1-1", kAnn);
  for (int i = 0; i < kWaits; ++i) {
    Wait(story, absl::Milliseconds(100), absl::Milliseconds(101));
  }
  EXPECT_THAT(story.Broken(), IsEmpty());
  EXPECT_EQ(story.Check().counts.cut_short, 0);
  int cut = 0;
  for (CallEvent& call : story.calls) {
    if (call.wait_us == 0) continue;
    call.wait_us = 200'000;
    if (++cut == kWaits / 5) {
      EXPECT_THAT(story.Broken(), IsEmpty());
    }
  }
  EXPECT_THAT(story.Broken(), Breaks("L3"));
}

TEST(ProgressTest, WaitsAtTheEndAreNone) {
  Story story;
  Settle(story);
  story.Claim("c1-1", kAnn);
  story.Note(Phase::kClosing);
  for (int i = 0; i < kWaits; ++i) {
    Wait(story, absl::Milliseconds(200), absl::Milliseconds(100));
    story.Advance(absl::Milliseconds(1));
  }
  EXPECT_EQ(story.Check().counts.waits, 0);
  EXPECT_EQ(story.Check().counts.settled, 1);
  EXPECT_THAT(story.Broken(), Not(Contains(HasSubstr("were to wait"))));
  story.notes.pop_back();
  EXPECT_THAT(story.Broken(), Contains(HasSubstr("were to wait")));
}

// An owner ends after a while; whoever waits is told so, or only at the end of
// his own wait.
void WaitForAnEnd(Story& story, bool is_woken) {
  const std::string number = std::to_string(story.calls.size());
  story.key = "k" + number;
  story.Claim("o-" + number, kAnn);
  CallEvent waits = story.ClaimCall("w-" + number, kBob);
  waits.wait_us = 3'000'000;
  waits.deadline_us = 9'000'000;
  story.Send(waits);
  story.Advance(absl::Milliseconds(600));
  AnswerEvent in_progress = story.Decide(waits);
  story.Release("r-" + number, kAnn, SaidDisposition::kOutcomeUnknown);
  if (is_woken) {
    story.Answer(story.Decide(waits));
    return;
  }
  story.Advance(absl::Milliseconds(2400));
  story.Answer(in_progress);
  // Later than anybody may be wrong about the release.
  story.Claim("n-" + number, kCat);
  story.Claim("m-" + number, kCat);
}

TEST(ProgressTest, L3WhoWaitsIsToldThatTheOwnerHasEnded) {
  Story story;
  Settle(story);
  for (int i = 0; i < kWaits; ++i) WaitForAnEnd(story, true);
  EXPECT_THAT(story.Broken(), IsEmpty());
  EXPECT_EQ(story.Check().counts.overslept, 0);
  for (int i = 0; i < 5; ++i) WaitForAnEnd(story, false);
  EXPECT_THAT(story.Broken(), IsEmpty());
  EXPECT_EQ(story.Check().counts.overslept, 5);
  for (int i = 0; i < 10; ++i) WaitForAnEnd(story, false);
  EXPECT_THAT(story.Broken(), Breaks("L3"));
}

TEST(ProgressTest, L3ARenewalIsNoEnd) {
  Story story;
  Settle(story);
  story.Claim("c1-1", kAnn);
  CallEvent waits = story.ClaimCall("w-1", kBob);
  waits.wait_us = 3'000'000;
  waits.deadline_us = 9'000'000;
  story.Send(waits);
  AnswerEvent in_progress = story.Decide(waits);
  story.Advance(absl::Milliseconds(10));
  story.Claim("c1-2", kAnn);
  story.Claim("c1-3", kAnn);
  story.Advance(absl::Milliseconds(2980));
  in_progress.lease_until_us =
      absl::ToUnixMicros(story.last().lease_expires_at);
  in_progress.retry_after_us = 1'000;
  story.Answer(in_progress);
  EXPECT_THAT(story.Broken(), IsEmpty());
  EXPECT_EQ(story.Check().counts.overslept, 0);
}

TEST(ProgressTest, L3TheServerAnswersByTheDeadline) {
  Story story;
  story.limits.decided_share = 0.9;
  Settle(story);
  for (int i = 0; i < 98; ++i) story.Lookup("c1-" + std::to_string(i));
  const auto fail = [&](const std::string& op, const std::string& reason) {
    story.Send(story.ClaimCall(op, kCat));
    story.Advance(absl::Seconds(1));
    story.Fail(op, "DEADLINE_EXCEEDED", reason);
  };
  fail("c2-1", "");
  fail("c2-2", "");
  EXPECT_THAT(story.Broken(), IsEmpty());
  fail("c2-3", "DEADLINE_EXCEEDED");
  fail("c2-4", "DEADLINE_EXCEEDED");
  EXPECT_THAT(story.Broken(), IsEmpty());
  story.answer("c2-3").reason.clear();
  EXPECT_THAT(story.Broken(), Breaks("L3"));
}

}  // namespace
}  // namespace idempotency::fault
