// S1 to S20, each by itself: a history that keeps it and one that breaks it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fault/checker/hex.h"
#include "tests/fault/checker/story.h"

namespace idempotency::fault {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr absl::Duration kLeaseAndMore = absl::Milliseconds(1100);

auto Breaks(const std::string& number) {
  return Contains(StartsWith(number + ":"));
}

TEST(PromiseTest, S1TwoClaimTokensShareNoFencingToken) {
  Story story;
  const std::int64_t first = story.Claim("c1-1", kAnn).fencing;
  story.Advance(kLeaseAndMore);
  AnswerEvent& second = story.Claim("c2-1", kBob);
  EXPECT_THAT(story.Broken(), IsEmpty());
  second.fencing = first;
  EXPECT_THAT(story.Broken(), Breaks("S1"));
}

TEST(PromiseTest, S1TheLogHasOneOwnerOfAFencingToken) {
  Story story;
  story.Claim("c1-1", kAnn);
  const std::int64_t first = story.last().fencing_token;
  story.Advance(kLeaseAndMore);
  AnswerEvent& second = story.Claim("c2-1", kBob);
  story.last().fencing_token = first;
  second.fencing = first;
  EXPECT_THAT(story.Broken(), Breaks("S1"));
}

TEST(PromiseTest, S2FencingTokensGrow) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Advance(kLeaseAndMore);
  AnswerEvent& second = story.Claim("c2-1", kBob);
  EXPECT_THAT(story.Broken(), IsEmpty());
  second.fencing = story.answer("c1-1").fencing - 1;
  story.last().fencing_token = second.fencing;
  EXPECT_THAT(story.Broken(), Breaks("S2"));
}

TEST(PromiseTest, S3NobodyIsGivenTheKeyWhileALeaseRuns) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Advance(kLeaseAndMore);
  story.Claim("c2-1", kBob);
  EXPECT_THAT(story.Broken(), IsEmpty());
  // As if the first lease had been longer.
  story.answer("c1-1").lease_us *= 3;
  EXPECT_THAT(story.Broken(), Breaks("S3"));
}

TEST(PromiseTest, S3ALeaseEndsWithTheLifeOfItsRecord) {
  Story story;
  story.policy.lease = absl::Seconds(60);
  story.policy.retention = std::nullopt;
  story.policy.retention_after_finalize = absl::Seconds(1);
  story.Claim("c1-1", kAnn);
  story.Finalize("c1-2", kAnn);
  story.Advance(absl::Seconds(2));
  ASSERT_EQ(story.Claim("c2-1", kBob).attempt, 1);
  story.Release("c2-2", kBob, SaidDisposition::kOutcomeUnknown);
  ASSERT_EQ(story.Claim("c3-1", kCat).attempt, 2);
  EXPECT_THAT(story.Broken(), IsEmpty());
}

TEST(PromiseTest, S3TheLogGrantsNothingWhileALeaseRuns) {
  Story story;
  story.Claim("c1-1", kAnn);
  Record taken = story.last();
  taken.claim_token = *ParseUuid(kBob);
  taken.fencing_token += 1000;
  taken.attempt += 1;
  taken.version += 1;
  story.Write(taken);
  EXPECT_THAT(story.Broken(), Breaks("S3"));
}

TEST(PromiseTest, S3AnOwnerThatGaveUpHasNoLease) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Release("c1-2", kAnn, SaidDisposition::kOutcomeUnknown);
  story.Claim("c2-1", kBob);
  EXPECT_THAT(story.Broken(), IsEmpty());
}

TEST(PromiseTest, S4ARepeatedClaimIsNoNewGrant) {
  Story story;
  story.Claim("c1-1", kAnn);
  AnswerEvent& again = story.Claim("c1-2", kAnn);
  EXPECT_THAT(story.Broken(), IsEmpty());
  again.fencing += 5;
  again.attempt += 1;
  story.last().fencing_token += 5;
  story.last().attempt += 1;
  EXPECT_THAT(story.Broken(), Breaks("S4"));
}

TEST(PromiseTest, S4OverItsLeaseItIsNoneEither) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Advance(kLeaseAndMore);
  story.Claim("c1-2", kAnn);
  EXPECT_THAT(story.Broken(), IsEmpty());
}

TEST(PromiseTest, S5NobodyWaitsForHimself) {
  Story story;
  story.Claim("c1-1", kAnn);
  AnswerEvent& other = story.Claim("c2-1", kBob);
  ASSERT_EQ(other.outcome, Outcome::kInProgress);
  EXPECT_THAT(story.Broken(), IsEmpty());
  story.call("c2-1").token = kAnn;
  EXPECT_THAT(story.Broken(), Breaks("S5"));
}

TEST(PromiseTest, S6OneResponse) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Finalize("c1-2", kAnn);
  story.Finalize("c1-3", kAnn);
  EXPECT_THAT(story.Broken(), IsEmpty());
  story.call("c1-3").digest = kOtherDigest;
  EXPECT_THAT(story.Broken(), Breaks("S6"));
}

TEST(PromiseTest, S6LateNewsOfAnExpiredResponseIsNoSecondOne) {
  Story story;
  story.Claim("c1-1", kAnn);
  AnswerEvent& late = story.Finalize("c1-2", kAnn);
  story.call("c1-2").deadline_us = 0;
  story.Advance(absl::Seconds(3));
  story.Claim("c2-1", kBob);
  story.Finalize("c2-2", kBob, kOtherDigest);
  late.t = story.t();
  EXPECT_THAT(story.Broken(), IsEmpty());
  const std::int64_t called = story.call("c1-2").t;
  story.call("c1-2").t = late.t - 1;
  EXPECT_THAT(story.Broken(), Contains(StartsWith("S6")))
      << "sent when the second was promised";
  story.call("c1-2").t = called;
  late.expires_us = absl::ToUnixMicros(story.now() + absl::Seconds(1));
  EXPECT_THAT(story.Broken(), Breaks("S6"));
}

TEST(PromiseTest, S6TheLogKeepsARecordedResponse) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Finalize("c1-2", kAnn);
  story.Finalize("c1-3", kAnn);
  story.last().response.body = "another";
  EXPECT_THAT(story.Broken(), Breaks("S6"));
}

TEST(PromiseTest, S7OnlyTheOwnerEndsAnAttempt) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Advance(kLeaseAndMore);
  story.Claim("c2-1", kBob);
  AnswerEvent& late = story.Finalize("c1-2", kAnn);
  ASSERT_EQ(late.reason, "CLAIM_SUPERSEDED");
  EXPECT_THAT(story.Broken(), IsEmpty());

  // As if nobody compared claim tokens.
  Record recorded = story.last();
  recorded.version += 1;
  recorded.state = RecordState::kFinal;
  recorded.claim_token = *ParseUuid(kAnn);
  recorded.finalized_at = story.now();
  recorded.response.status_code = 200;
  recorded.response_digest = *FromHex(kDigest);
  story.Write(recorded);
  late.code = "OK";
  late.reason.clear();
  late.outcome = Outcome::kRecorded;
  late.t = story.t();
  EXPECT_THAT(story.Broken(), Breaks("S7"));
}

TEST(PromiseTest, S7ARefusedResponseLeavesEvidence) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Finalize("c1-2", kAnn);
  story.Finalize("c1-3", kAnn, kOtherDigest);
  EXPECT_THAT(story.Broken(), IsEmpty());
  story.conflicts.clear();
  EXPECT_THAT(story.Broken(), Breaks("S7"));
}

TEST(PromiseTest, S8WhatIsRecordedIsReplayed) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Finalize("c1-2", kAnn);
  AnswerEvent& claim = story.Claim("c2-1", kBob);
  AnswerEvent& lookup = story.Lookup("c3-1");
  EXPECT_THAT(story.Broken(), IsEmpty());
  const AnswerEvent before = claim;
  claim = {.op = "c2-1",
           .t = before.t,
           .code = "OK",
           .outcome = Outcome::kInProgress};
  EXPECT_THAT(story.Broken(), Breaks("S8"));
  claim = before;
  lookup = {.op = "c3-1",
            .t = lookup.t,
            .code = "NOT_FOUND",
            .reason = "RECORD_NOT_FOUND"};
  EXPECT_THAT(story.Broken(), Breaks("S8"));
}

TEST(PromiseTest, S8EndsWithTheRetention) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Finalize("c1-2", kAnn);
  story.Advance(absl::Seconds(4));
  ASSERT_EQ(story.Claim("c2-1", kBob).outcome, Outcome::kClaimed);
  EXPECT_THAT(story.Broken(), IsEmpty());
}

TEST(PromiseTest, S9AReplayIsByteForByte) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Finalize("c1-2", kAnn);
  AnswerEvent& replay = story.Claim("c2-1", kBob);
  EXPECT_THAT(story.Broken(), IsEmpty());
  replay.digest = kOtherDigest;
  EXPECT_THAT(story.Broken(), Breaks("S9"));
}

TEST(PromiseTest, S10OnlyWhatWasRecordedIsReplayed) {
  Story story;
  story.Claim("c1-1", kAnn);
  AnswerEvent& phantom = story.Claim("c2-1", kBob);
  EXPECT_THAT(story.Broken(), IsEmpty());
  phantom = {.op = "c2-1",
             .t = phantom.t,
             .code = "OK",
             .outcome = Outcome::kReplay,
             .status = 200,
             .digest = kDigest};
  EXPECT_THAT(story.Broken(), Breaks("S10"));
}

TEST(PromiseTest, S11AnotherRequestIsToldMismatchAndNoMore) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Finalize("c1-2", kAnn);
  CallEvent other = story.ClaimCall("c2-1", kBob);
  other.hash = kOtherHash;
  AnswerEvent& mismatch = story.Do(other);
  ASSERT_EQ(mismatch.outcome, Outcome::kMismatch);
  EXPECT_THAT(story.Broken(), IsEmpty());
  mismatch.digest = kDigest;
  EXPECT_THAT(story.Broken(), Breaks("S11"));
  mismatch.digest.clear();
  story.call("c2-1").hash = kHash;
  EXPECT_THAT(story.Broken(), Breaks("S11"));
}

TEST(PromiseTest, S11AnotherRequestGetsNoReplay) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Finalize("c1-2", kAnn);
  story.Claim("c2-1", kBob);
  story.call("c2-1").hash = kOtherHash;
  EXPECT_THAT(story.Broken(), Breaks("S11"));
}

TEST(PromiseTest, S12AReleaseIsForGood) {
  Story story;
  story.Claim("c1-1", kAnn);
  const Record claimed = story.last();
  story.Release("c1-2", kAnn, SaidDisposition::kNotExecuted);
  AnswerEvent& again = story.Claim("c1-3", kAnn);
  ASSERT_EQ(again.reason, "CLAIM_RELEASED");
  EXPECT_THAT(story.Broken(), IsEmpty());
  // As if a late duplicate of the claim had revived it.
  Record revived = claimed;
  revived.version = story.last().version + 1;
  story.Write(revived);
  EXPECT_THAT(story.Broken(), Breaks("S12"));
}

TEST(PromiseTest, S12OnlyItsOwnerReleasesAClaim) {
  Story story;
  story.Claim("c1-1", kAnn);
  AnswerEvent& refused =
      story.Release("c2-1", kBob, SaidDisposition::kNotExecuted);
  ASSERT_EQ(refused.reason, "CLAIM_SUPERSEDED");
  EXPECT_THAT(story.Broken(), IsEmpty());
  refused.code = "OK";
  refused.reason.clear();
  refused.outcome = Outcome::kReleased;
  refused.state = SaidState::kReleased;
  EXPECT_THAT(story.Broken(), Breaks("S12"));
}

TEST(PromiseTest, S13ARecordKnowsNothingOfAnother) {
  Story story;
  const std::int64_t fencing = story.Claim("c1-1", kAnn).fencing;
  story.Effect(kAnn, fencing);
  story.scope = "fault/r1/other";
  AnswerEvent& other = story.Claim("c2-1", kBob);
  EffectEvent& effect = story.Effect(kBob, other.fencing);
  EXPECT_THAT(story.Broken(), IsEmpty());
  const EffectEvent before = effect;
  effect.token = kAnn;
  EXPECT_THAT(story.Broken(), Breaks("S13"));
  effect = before;
  other.downstream = story.answer("c1-1").downstream;
  EXPECT_THAT(story.Broken(), Breaks("S13"));
}

TEST(PromiseTest, S13AClaimTokenIsGrantedWhereItAsked) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.scope = "fault/r1/other";
  story.Claim("c2-1", kBob);
  story.last().claim_token = *ParseUuid(kAnn);
  EXPECT_THAT(story.Broken(), Breaks("S13"));
}

TEST(PromiseTest, S14OneEffectUnderADownstreamKey) {
  Story story;
  const std::int64_t first = story.Claim("c1-1", kAnn).fencing;
  story.Effect(kAnn, first);
  story.Advance(kLeaseAndMore);
  const std::int64_t second = story.Claim("c2-1", kBob).fencing;
  EffectEvent& repeated = story.Effect(kBob, second, EffectResult::kDuplicate);
  EXPECT_THAT(story.Broken(), IsEmpty());
  repeated.result = EffectResult::kExecuted;
  EXPECT_THAT(story.Broken(), Breaks("S14"));
}

TEST(PromiseTest, S14NobodyActsBeforeHeIsToldThatHeMay) {
  Story story;
  const AnswerEvent& claimed = story.Claim("c1-1", kAnn);
  EffectEvent& effect = story.Effect(kAnn, claimed.fencing);
  EXPECT_THAT(story.Broken(), IsEmpty());
  effect.t = claimed.t - 1;
  EXPECT_THAT(story.Broken(), Breaks("S14"));
}

TEST(PromiseTest, S14AllAttemptsHaveOneDownstreamKey) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Advance(kLeaseAndMore);
  AnswerEvent& second = story.Claim("c2-1", kBob);
  EXPECT_THAT(story.Broken(), IsEmpty());
  second.downstream += "?";
  EXPECT_THAT(story.Broken(), Breaks("S14"));
}

TEST(PromiseTest, S14WhoeverWasOvertakenIsCounted) {
  Story story;
  const std::int64_t first = story.Claim("c1-1", kAnn).fencing;
  story.Advance(kLeaseAndMore);
  const std::int64_t second = story.Claim("c2-1", kBob).fencing;
  story.Effect(kBob, second);
  EXPECT_EQ(story.Check().counts.overlapping_owners, 0);
  // The change before it can have been seen until the next one.
  story.Claim("c2-2", kBob);
  story.Advance(absl::Milliseconds(10));
  story.Effect(kAnn, first, EffectResult::kDuplicate);
  EXPECT_THAT(story.Broken(), IsEmpty());
  EXPECT_EQ(story.Check().counts.overlapping_owners, 1);
}

TEST(PromiseTest, S15WhatCertainlyFailedChangedNothing) {
  Story story;
  const CallEvent call = story.ClaimCall("c1-1", kAnn);
  story.Send(call);
  story.Decide(call);
  AnswerEvent& answer = story.Fail("c1-1", "UNAVAILABLE", "OUTCOME_UNKNOWN");
  EXPECT_THAT(story.Broken(), IsEmpty());
  for (const char* reason : {"STORE_UNAVAILABLE", "OVERLOADED", "DRAINING"}) {
    answer.reason = reason;
    EXPECT_THAT(story.Broken(), Breaks("S15")) << reason;
  }
  // An earlier sending of it may have taken effect.
  answer.sends = 2;
  EXPECT_THAT(story.Broken(), IsEmpty());
}

TEST(PromiseTest, S16ATakeoverIsTold) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Advance(kLeaseAndMore);
  AnswerEvent& takeover = story.Claim("c2-1", kBob);
  ASSERT_EQ(takeover.abandoned_attempt, 1);
  EXPECT_THAT(story.Broken(), IsEmpty());
  const AnswerEvent before = takeover;
  takeover.abandoned_attempt = 0;
  EXPECT_THAT(story.Broken(), Breaks("S16"));
  takeover = before;
  takeover.abandoned_fencing += 1;
  EXPECT_THAT(story.Broken(), Breaks("S16"));
  takeover = before;
  story.last().abandoned.reset();
  EXPECT_THAT(story.Broken(), Breaks("S16"));
}

TEST(PromiseTest, S17NobodySeesAnEarlierStateThanOneBefore) {
  Story story;
  story.Claim("c1-1", kAnn);
  AnswerEvent& before = story.Lookup("c2-1");
  story.Finalize("c1-2", kAnn);
  AnswerEvent& after = story.Lookup("c2-2");
  EXPECT_THAT(story.Broken(), IsEmpty());
  // As if a replica had answered. The clock alone could not tell: the change
  // may have been committed late.
  const std::int64_t t = after.t;
  after = before;
  after.op = "c2-2";
  after.t = t;
  EXPECT_THAT(story.Broken(), Breaks("S17"));
}

TEST(PromiseTest, S17TheLogHasNoGap) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Claim("c1-2", kAnn);
  story.Claim("c1-3", kAnn);
  EXPECT_THAT(story.Broken(), IsEmpty());
  story.changes.erase(story.changes.begin() + 1);
  EXPECT_THAT(story.Broken(), Breaks("S17"));
}

TEST(PromiseTest, S18NothingIsForgottenEarly) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Finalize("c1-2", kAnn);
  story.Advance(absl::Seconds(4));
  story.Sweep();
  ASSERT_EQ(story.changes.back().kind, ChangeKind::kDelete);
  EXPECT_THAT(story.Broken(), IsEmpty());
  story.changes.back().row.at -= absl::Seconds(3);
  EXPECT_THAT(story.Broken(), Breaks("S18"));
}

TEST(PromiseTest, S18NoNewLifeBeforeTheOldOneIsOver) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Finalize("c1-2", kAnn);
  story.Advance(absl::Seconds(4));
  story.Claim("c2-1", kBob);
  EXPECT_THAT(story.Broken(), IsEmpty());
  // As if the retention had been longer.
  for (Change& change : story.changes) {
    if (change.row.record.state == RecordState::kFinal) {
      change.row.record.expires_at += absl::Seconds(9);
    }
  }
  EXPECT_THAT(story.Broken(), Breaks("S18"));
}

TEST(PromiseTest, S19TheTableHoldsWhatWasRecorded) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Finalize("c1-2", kAnn);
  const StoredRow row = story.changes.back().row;
  story.dump = {row};
  EXPECT_THAT(story.Broken(), IsEmpty());
  story.dump = {row, row};
  EXPECT_THAT(story.Broken(), Breaks("S19"));
  story.dump->clear();
  EXPECT_THAT(story.Broken(), Breaks("S19"));
  // As after a failover that lost the last change, the log's line with it.
  story.changes.pop_back();
  story.dump = {story.changes.back().row};
  EXPECT_THAT(story.Broken(), Breaks("S19"));
}

TEST(PromiseTest, S20WhatExpiredInAQueueIsNotSent) {
  Story story;
  CallEvent call = story.ClaimCall("c1-1", kAnn);
  story.Send(call);
  story.Fail("c1-1", "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED");
  EXPECT_THAT(story.Broken(), IsEmpty());
  story.Decide(call);
  EXPECT_THAT(story.Broken(), Breaks("S20"));
  // gRPC's own: the reply may have been lost.
  story.answer("c1-1").reason.clear();
  EXPECT_THAT(story.Broken(), IsEmpty());
}

}  // namespace
}  // namespace idempotency::fault
