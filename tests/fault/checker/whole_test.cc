// Of S2 to S16 what answers tell beyond their outcomes, and what may be between
// them and the log, the wallet and the evidence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fault/checker/hex.h"
#include "tests/fault/checker/story.h"

namespace idempotency::fault {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr absl::Duration kLeaseAndMore = absl::Milliseconds(1100);

auto Breaks(const std::string& number) {
  return Contains(StartsWith(number + ":"));
}

TEST(WholeTest, S16ATakeoverIsToldWhole) {
  Story story;
  CallEvent first = story.ClaimCall("c1-1", kAnn);
  first.checkpoint = "aa";
  first.owner = "ann";
  story.Do(first);
  story.Advance(kLeaseAndMore);
  AnswerEvent& takeover = story.Claim("c2-1", kBob);
  EXPECT_THAT(story.Broken(), IsEmpty());
  const AnswerEvent before = takeover;
  const auto breaks_without = [&](auto member) {
    takeover = before;
    takeover.*member = {};
    EXPECT_THAT(story.Broken(), Breaks("S16"));
  };
  breaks_without(&AnswerEvent::abandoned_checkpoint);
  breaks_without(&AnswerEvent::abandoned_owner);
  breaks_without(&AnswerEvent::abandoned_reason);
  breaks_without(&AnswerEvent::abandoned_fencing);
  breaks_without(&AnswerEvent::abandoned_claimed_us);
  breaks_without(&AnswerEvent::abandoned_us);
  takeover = before;
  takeover.abandoned_downstream += "?";
  EXPECT_THAT(story.Broken(), Breaks("S14"));
}

TEST(WholeTest, S8ALookupTellsAll) {
  Story story;
  story.Claim("c1-1", kAnn);
  AnswerEvent& found = story.Lookup("c2-1");
  EXPECT_THAT(story.Broken(), IsEmpty());
  const AnswerEvent before = found;
  for (const auto member :
       {&AnswerEvent::created_us, &AnswerEvent::claimed_us,
        &AnswerEvent::lease_until_us, &AnswerEvent::attempt}) {
    found = before;
    found.*member = 0;
    EXPECT_THAT(story.Broken(), Breaks("S8"));
  }
  found = before;
  found.expires_us.reset();
  EXPECT_THAT(story.Broken(), Breaks("S8"));
  found = before;
  found.downstream += "?";
  EXPECT_THAT(story.Broken(), Breaks("S14"));
}

TEST(WholeTest, S3NoMoreOfALeaseIsToldThanThereIs) {
  Story story;
  AnswerEvent& claimed = story.Claim("c1-1", kAnn);
  EXPECT_THAT(story.Broken(), IsEmpty());
  claimed.lease_us += 5'000;
  EXPECT_THAT(story.Broken(), Breaks("S3"));
  claimed.lease_us -= 15'000;
  EXPECT_THAT(story.Broken(), Breaks("S3"));
}

TEST(WholeTest, S5NobodyIsToldToAskAgainAfterTheLease) {
  Story story;
  story.Claim("c1-1", kAnn);
  AnswerEvent& in_progress = story.Claim("c2-1", kBob);
  ASSERT_EQ(in_progress.outcome, Outcome::kInProgress);
  EXPECT_THAT(story.Broken(), IsEmpty());
  in_progress.retry_after_us += 10'000;
  EXPECT_THAT(story.Broken(), Breaks("S5"));
  in_progress.retry_after_us = 0;
  EXPECT_THAT(story.Broken(), Breaks("S5"));
}

TEST(WholeTest, S7ALookupCountsWhatWasRefused) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Finalize("c1-2", kAnn);
  story.Advance(absl::Milliseconds(10));
  story.Finalize("c1-3", kAnn, kOtherDigest);
  AnswerEvent& found = story.Lookup("c2-1");
  ASSERT_EQ(found.conflicts, 1);
  EXPECT_THAT(story.Broken(), IsEmpty());
  found.conflicts = 0;
  EXPECT_THAT(story.Broken(), Breaks("S7"));
  found.conflicts = 3;
  EXPECT_THAT(story.Broken(), Breaks("S7"));
}

TEST(WholeTest, S7EvidenceIsOfWhatWasRefused) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Finalize("c1-2", kAnn);
  story.Finalize("c1-3", kAnn, kOtherDigest);
  EXPECT_THAT(story.Broken(), IsEmpty());
  story.conflicts.back().status_code += 1;
  EXPECT_THAT(story.Broken(), Breaks("S7"));
  story.conflicts.back().status_code -= 1;
  story.conflicts.push_back(story.conflicts.back());
  story.conflicts.back().response_digest = *FromHex(kDigest);
  EXPECT_THAT(story.Broken(), Breaks("S7"));
}

TEST(WholeTest, S9OnlyWhatIsTooLongIsLeftOut) {
  Story story;
  story.Claim("c1-1", kAnn);
  AnswerEvent& recorded = story.Finalize("c1-2", kAnn);
  story.last().response.body_omitted = true;
  recorded.outcome = Outcome::kRecordedWithoutBody;
  EXPECT_THAT(story.Broken(), Breaks("S9"));
  story.call("c1-2").body_bytes = story.limits.body_bytes_max + 1;
  EXPECT_THAT(story.Broken(), IsEmpty());
}

TEST(WholeTest, S14OneEffectInALifeOfAKey) {
  Story story;
  story.Effect(kAnn, story.Claim("c1-1", kAnn).fencing);
  story.Release("c1-2", kAnn, SaidDisposition::kNotExecuted);
  const std::int64_t second = story.Claim("c2-1", kBob).fencing;
  EXPECT_THAT(story.Broken(), IsEmpty());
  story.Effect(kBob, second);
  EXPECT_THAT(story.Broken(), Breaks("S14"));
}

TEST(WholeTest, S14AFreedKeyHasAnotherDownstreamKey) {
  Story story;
  const std::string first = story.Claim("c1-1", kAnn).downstream;
  story.Release("c1-2", kAnn, SaidDisposition::kNotExecuted);
  AnswerEvent& second = story.Claim("c2-1", kBob);
  EXPECT_THAT(story.Broken(), IsEmpty());
  second.downstream = first;
  EXPECT_THAT(story.Broken(), Breaks("S14"));
}

TEST(WholeTest, S14WhoeverHidesHisTokenIsKnownByHisFencingToken) {
  Story story;
  EffectEvent& effect = story.Effect("", story.Claim("c1-1", kAnn).fencing);
  EXPECT_THAT(story.Broken(), IsEmpty());
  effect.fencing += 1;
  EXPECT_THAT(story.Broken(), Breaks("S14"));
}

TEST(WholeTest, S14ASuccessIsRecordedAfterItsEffect) {
  Story story;
  story.limits.success_needs_effect = true;
  const std::int64_t fencing = story.Claim("c1-1", kAnn).fencing;
  story.Effect(kAnn, fencing);
  story.Finalize("c1-2", kAnn);
  EXPECT_THAT(story.Broken(), IsEmpty());
  story.effects.clear();
  EXPECT_THAT(story.Broken(), Breaks("S14"));
}

TEST(WholeTest, S15WhoIsToldOfNoChangeMadeNone) {
  Story story;
  const CallEvent call = story.ClaimCall("c2-1", kBob);
  story.Claim("c1-1", kAnn);
  ASSERT_EQ(story.Do(call).outcome, Outcome::kInProgress);
  story.Advance(kLeaseAndMore);
  // As if its request had gone on in the server.
  story.Decide(call);
  EXPECT_THAT(story.Broken(), Breaks("S15"));
  story.call("c2-1").path = Path::kClient;
  EXPECT_THAT(story.Broken(), IsEmpty());
  story.call("c2-1").path = Path::kUnary;
  story.Note(Phase::kBegin);
  story.notes.back().t = story.call("c2-1").t;
  story.Note(Phase::kEnd);
  EXPECT_THAT(story.Broken(), IsEmpty());
}

TEST(WholeTest, S3AServerErrorThatIsRecordedGivesNothingUp) {
  Story story;
  story.policy.on_server_error = OnServerError::kRecord;
  story.policy.lease = absl::Seconds(1);
  story.Claim("c1-1", kAnn);
  CallEvent failed = story.FinalizeCall("c1-2", kAnn);
  failed.status = 500;
  story.Send(failed);
  story.Fail("c1-2", "UNAVAILABLE");
  story.Advance(kLeaseAndMore);
  story.Claim("c2-1", kBob);
  EXPECT_THAT(story.Broken(), IsEmpty());
  story.answer("c1-1").lease_us *= 3;
  EXPECT_THAT(story.Broken(), Contains(HasSubstr("while the lease")));
}

TEST(WholeTest, S2FencingTokensGrowOverLivesToo) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Finalize("c1-2", kAnn);
  story.Advance(absl::Seconds(4));
  story.Sweep();
  AnswerEvent& second = story.Claim("c2-1", kBob);
  EXPECT_THAT(story.Broken(), IsEmpty());
  // Lower although its clock was later.
  second.fencing = story.answer("c1-1").fencing - 1;
  story.last().fencing_token = second.fencing;
  EXPECT_THAT(story.Broken(), Breaks("S2"));
}

TEST(WholeTest, AnInternalErrorIsADefect) {
  Story story;
  story.Send(story.ClaimCall("c1-1", kAnn));
  AnswerEvent& answer = story.Fail("c1-1", "UNAVAILABLE", "OUTCOME_UNKNOWN");
  EXPECT_THAT(story.Broken(), IsEmpty());
  answer.reason = "INTERNAL";
  EXPECT_THAT(story.Broken(), Breaks("DEFECT"));
}

}  // namespace
}  // namespace idempotency::fault
