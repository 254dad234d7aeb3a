// Which orders of calls explain a record's log, and which do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fault/checker/story.h"

namespace idempotency::fault {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr absl::Duration kLeaseAndMore = absl::Milliseconds(1100);

TEST(OrderTest, ALostReplyMayTakeEffectAfterTheAnswer) {
  Story story;
  const CallEvent lost = story.ClaimCall("c1-1", kAnn);
  story.Send(lost);
  story.Fail("c1-1", "DEADLINE_EXCEEDED");
  story.Advance(absl::Milliseconds(10));
  story.Lookup("c2-1");
  story.Decide(lost);
  story.Advance(absl::Milliseconds(10));
  ASSERT_EQ(story.Claim("c2-2", kBob).outcome, Outcome::kInProgress);
  EXPECT_THAT(story.Broken(), IsEmpty());
}

TEST(OrderTest, ALostReplyMayNeverTakeEffect) {
  Story story;
  story.Send(story.ClaimCall("c1-1", kAnn));
  story.Send(story.FinalizeCall("c1-2", kAnn));
  story.Advance(absl::Seconds(1));
  story.Claim("c2-1", kBob);
  EXPECT_THAT(story.Broken(), IsEmpty());
  EXPECT_EQ(story.Check().counts.unknown, 2);
}

TEST(OrderTest, NothingTakesEffectBeforeItIsAsked) {
  Story story;
  story.Claim("c1-1", kAnn);
  CallEvent& call = story.call("c1-1");
  story.Advance(absl::Seconds(1));
  call.t = story.t();
  story.answer("c1-1").t = story.t() + 1;
  EXPECT_THAT(story.Broken(), Contains(StartsWith("S1:")));
  EXPECT_THAT(story.Broken(), Contains(StartsWith("ORDER:")));
}

TEST(OrderTest, AnAnswerDoesNotComeBeforeItsChange) {
  Story story;
  const CallEvent call = story.ClaimCall("c1-1", kAnn);
  story.Send(call);
  story.Advance(absl::Milliseconds(1));
  const std::int64_t early = story.t();
  story.Advance(absl::Milliseconds(500));
  AnswerEvent& answer = story.Answer(story.Decide(call));
  EXPECT_THAT(story.Broken(), IsEmpty());
  answer.t = early;
  EXPECT_THAT(story.Broken(), Contains(StartsWith("S1:")));
}

TEST(OrderTest, AHedgedCallMayChangeTheRecordTwice) {
  Story story;
  CallEvent call = story.ClaimCall("c1-1", kAnn);
  call.path = Path::kHedge;
  story.Send(call);
  story.Advance(absl::Milliseconds(5));
  story.Answer(story.Decide(call));
  story.Advance(absl::Milliseconds(5));
  story.Decide(call);
  EXPECT_THAT(story.Broken(), IsEmpty());
  EXPECT_EQ(story.Check().counts.late_changes, 1);
}

TEST(OrderTest, EachAnswerOfAChangeHasAChangeOfItsOwn) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Finalize("c1-2", kAnn);
  AnswerEvent repeat = story.answer("c1-2");
  repeat.op = "c1-3";
  story.Send(story.FinalizeCall("c1-3", kAnn));
  story.Answer(repeat);
  EXPECT_THAT(story.Broken(), Contains(StartsWith("S7:")));
}

TEST(OrderTest, TwoLivesOfAKey) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Finalize("c1-2", kAnn);
  story.Claim("c2-1", kBob);
  story.Advance(absl::Seconds(4));
  story.Sweep();
  story.Lookup("c2-2");
  ASSERT_EQ(story.Claim("c2-3", kBob).outcome, Outcome::kClaimed);
  story.Finalize("c2-4", kBob, kOtherDigest);
  ASSERT_EQ(story.Claim("c1-3", kAnn).outcome, Outcome::kReplay);
  story.Advance(absl::Seconds(4));
  // Past its expiry, and nobody swept it.
  ASSERT_EQ(story.Claim("c3-1", kCat).outcome, Outcome::kClaimed);
  EXPECT_THAT(story.Broken(), IsEmpty());
}

TEST(OrderTest, TheResponseOfAnEarlierLifeIsNotReplayed) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Finalize("c1-2", kAnn);
  AnswerEvent stale = story.Claim("c2-1", kBob);
  story.Advance(absl::Seconds(4));
  story.Claim("c2-2", kBob);
  story.Finalize("c2-3", kBob, kOtherDigest);
  AnswerEvent& replay = story.Claim("c3-1", kCat);
  EXPECT_THAT(story.Broken(), IsEmpty());
  stale.op = "c3-1";
  stale.t = replay.t;
  replay = stale;
  EXPECT_THAT(story.Broken(), Contains(StartsWith("S9:")));
}

TEST(OrderTest, ATakeoverAndTheLateOwner) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Advance(kLeaseAndMore);
  ASSERT_EQ(story.Claim("c2-1", kBob).attempt, 2);
  ASSERT_EQ(story.Finalize("c1-2", kAnn).reason, "CLAIM_SUPERSEDED");
  ASSERT_EQ(story.Claim("c1-3", kAnn).outcome, Outcome::kInProgress);
  story.Finalize("c2-2", kBob, kOtherDigest);
  ASSERT_EQ(story.Claim("c1-4", kAnn).outcome, Outcome::kReplay);
  EXPECT_THAT(story.Broken(), IsEmpty());
}

TEST(OrderTest, AHeldRecordWaitsForOneThatCanResolveIt) {
  Story story;
  story.policy.on_abandoned = OnAbandoned::kHold;
  story.Claim("c1-1", kAnn);
  story.Advance(absl::Seconds(5));
  story.Sweep();
  ASSERT_EQ(story.last().expires_at, absl::InfiniteFuture());
  AnswerEvent& in_doubt = story.Claim("c2-1", kBob);
  ASSERT_EQ(in_doubt.outcome, Outcome::kInDoubt);
  CallEvent resolving = story.ClaimCall("c3-1", kCat);
  resolving.resolve = true;
  ASSERT_EQ(story.Do(resolving).attempt, 2);
  story.Finalize("c3-2", kCat);
  EXPECT_THAT(story.Broken(), IsEmpty());
  story.call("c3-1").resolve = false;
  EXPECT_THAT(story.Broken(), Contains(StartsWith("S16:")));
  story.call("c3-1").resolve = true;
  story.call("c2-1").resolve = true;
  EXPECT_THAT(story.Broken(), Contains(StartsWith("S16:")));
}

TEST(OrderTest, RenewalsWithCheckpoints) {
  Story story;
  const std::int64_t fencing = story.Claim("c1-1", kAnn).fencing;
  for (int i = 2; i < 6; ++i) {
    CallEvent renewal = story.ClaimCall("c1-" + std::to_string(i), kAnn);
    renewal.renew = fencing;
    renewal.checkpoint = "0" + std::to_string(i);
    renewal.checkpoint_number = i;
    story.Advance(absl::Milliseconds(300));
    story.Do(renewal);
  }
  story.Advance(kLeaseAndMore);
  AnswerEvent& takeover = story.Claim("c2-1", kBob);
  ASSERT_EQ(takeover.abandoned_checkpoint, "05");
  EXPECT_THAT(story.Broken(), IsEmpty());
  takeover.abandoned_checkpoint = "04";
  EXPECT_THAT(story.Broken(), Contains(StartsWith("S16:")));
}

TEST(OrderTest, ServerErrorsAndReleases) {
  Story story;
  story.Claim("c1-1", kAnn);
  CallEvent failed = story.FinalizeCall("c1-2", kAnn);
  failed.status = 503;
  ASSERT_EQ(story.Do(failed).outcome, Outcome::kResultReleased);
  ASSERT_EQ(story.Claim("c2-1", kBob).abandoned_status, 503);
  story.Release("c2-2", kBob, SaidDisposition::kNotExecuted);
  story.Release("c2-3", kBob, SaidDisposition::kNeverExecuted);
  story.Release("c2-4", kBob, SaidDisposition::kNeverExecuted);
  story.Release("c3-1", kCat, SaidDisposition::kNotExecuted);
  CallEvent other = story.ClaimCall("c3-2", kCat);
  other.hash = kOtherHash;
  ASSERT_EQ(story.Do(other).outcome, Outcome::kClaimed);
  EXPECT_THAT(story.Broken(), IsEmpty());
}

TEST(OrderTest, CallsAtTheSameTimeMayBeSeenInAnyOrder) {
  Story story;
  const CallEvent claim = story.ClaimCall("c1-1", kAnn);
  story.Send(claim);
  CallEvent lookup = story.ClaimCall("c2-1", "");
  lookup.kind = Kind::kLookup;
  lookup.hash.clear();
  story.Send(lookup);
  story.Advance(absl::Milliseconds(1));
  AnswerEvent nothing = story.Decide(lookup);
  AnswerEvent claimed = story.Decide(claim);
  story.Advance(absl::Milliseconds(50));
  story.Answer(claimed);
  story.Advance(absl::Milliseconds(1));
  story.Answer(nothing);
  EXPECT_THAT(story.Broken(), IsEmpty());
  // But not by one that asked when the other had been told.
  story.call("c2-1").t = story.answer("c1-1").t + 1;
  EXPECT_THAT(story.Broken(), Contains(StartsWith("S17:")));
}

TEST(OrderTest, AnOrderIsWantedForAllCallsTogether) {
  Story story;
  story.Claim("c1-1", kAnn);
  // Two reads one after the other, both while the change was under way.
  const CallEvent finalize = story.FinalizeCall("c1-2", kAnn);
  story.Send(finalize);
  AnswerEvent& old_state = story.Lookup("c2-1");
  AnswerEvent recorded = story.Decide(finalize);
  AnswerEvent& new_state = story.Lookup("c2-2");
  story.Answer(recorded);
  EXPECT_THAT(story.Broken(), IsEmpty());
  std::swap(old_state.t, new_state.t);
  std::swap(old_state.op, new_state.op);
  EXPECT_THAT(story.Broken(), Contains(StartsWith("S17:")));
}

TEST(OrderTest, AChangeThatNobodyAskedForIsNoticed) {
  Story story;
  story.Claim("c1-1", kAnn);
  Record longer = story.last();
  longer.version += 1;
  longer.lease_expires_at += absl::Milliseconds(1);
  longer.owner = "somebody";
  story.Write(longer);
  EXPECT_THAT(story.Broken(),
              Contains(HasSubstr("ORDER: no operation explains")));
}

TEST(OrderTest, AWholeOperationThroughHttp) {
  Story story;
  CallEvent once = story.ClaimCall("c1-1", "");
  once.kind = Kind::kOnce;
  once.path = Path::kHttp;
  story.Send(once);
  story.Advance(absl::Milliseconds(1));
  // What the middleware does, with a claim token that nobody hears of.
  const std::int64_t fencing =
      story.Decide(story.ClaimCall("hidden-1", kDan)).fencing;
  story.Advance(absl::Milliseconds(1));
  EffectEvent& effect = story.Effect("", 0);
  story.Decide(story.FinalizeCall("hidden-2", kDan));
  story.Advance(absl::Milliseconds(1));
  AnswerEvent& executed =
      story.Answer({.op = "c1-1", .code = "OK", .outcome = Outcome::kExecuted});
  story.Advance(absl::Milliseconds(1));
  CallEvent again = once;
  again.op = "c1-2";
  story.Send(again);
  AnswerEvent& replay = story.Answer({.op = "c1-2",
                                      .code = "OK",
                                      .outcome = Outcome::kReplay,
                                      .status = 200,
                                      .digest = kDigest});
  EXPECT_THAT(story.Broken(), IsEmpty());
  executed.fencing = fencing;
  EXPECT_THAT(story.Broken(), IsEmpty());
  executed.fencing = fencing + 1;
  EXPECT_THAT(story.Broken(), Contains(StartsWith("ORDER:")));
  executed.fencing = 0;
  const AnswerEvent before = replay;
  replay.outcome = Outcome::kExecuted;
  EXPECT_THAT(story.Broken(), Contains(StartsWith("ORDER:")));
  replay = before;
  replay.digest = kOtherDigest;
  EXPECT_THAT(story.Broken(), Contains(StartsWith("S9:")));
  replay = before;
  effect.t -= absl::ToInt64Nanoseconds(absl::Seconds(1));
  EXPECT_THAT(story.Broken(), Contains(StartsWith("S14:")));
}

TEST(OrderTest, AKeyOfAThousandCallsIsCheckedInNoTime) {
  Story story;
  for (int i = 0; i < 1000; ++i) {
    story.Claim("c" + std::to_string(i % 7) + "-" + std::to_string(i), kAnn);
    story.Advance(absl::Milliseconds(20));
  }
  story.limits.budget = absl::Seconds(20);
  EXPECT_THAT(story.Broken(), IsEmpty());
}

TEST(OrderTest, RunningOutOfTimeIsNoSuccess) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.limits.budget = absl::Seconds(-1);
  EXPECT_THAT(story.Broken(), Contains(HasSubstr("out of time")));
}

TEST(OrderTest, NorIsAHistoryWithoutTheDatabasesClock) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.clocks.clear();
  EXPECT_THAT(story.Broken(), Contains(HasSubstr("no clock events")));
}

}  // namespace
}  // namespace idempotency::fault
