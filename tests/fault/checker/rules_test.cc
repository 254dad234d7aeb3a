// The rules of record_rules.h that no decision of the server's is asked for:
// each kept, and broken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/core/transitions.h"
#include "tests/support/record_rules.h"

namespace idempotency {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::StartsWith;

const Uuid kOwner = *ParseUuid("aaaaaaaa-0000-4000-8000-000000000001");
const Uuid kOther = *ParseUuid("bbbbbbbb-0000-4000-8000-000000000002");
const absl::Time kBegin = absl::FromUnixSeconds(1'800'000'000);
constexpr absl::Duration kTick = absl::Microseconds(1);

class RecordRulesTest : public testing::Test {
 protected:
  RecordRulesTest() {
    claim_.request_hash = "hash";
    claim_.claim_token = kOwner;
    claim_.policy = Policy{.name = "short",
                           .lease = absl::Seconds(1),
                           .max_lease = absl::Seconds(10),
                           .retention = absl::Seconds(5)};
  }

  Policy& policy() { return *claim_.policy; }
  Record Claimed(absl::Time now = kBegin) { return NewRecord(claim_, now); }
  static Record After(const Decision<ClaimOutcome>& decision) {
    return *decision.write;
  }
  Record TakenOver(const Record& before, absl::Time now) {
    ClaimCommand claim = claim_;
    claim.claim_token = kOther;
    claim.resolve_in_doubt = true;
    return After(DecideClaim(&before, claim, now));
  }
  Record Finalized(const Record& before, int status, absl::Time now) {
    FinalizeCommand finalize{.claim_token = before.claim_token,
                             .response_digest = "digest"};
    finalize.response.status_code = status;
    return *DecideFinalize(&before, finalize, now).write;
  }
  Record Released(const Record& before, Disposition disposition,
                  absl::Time now) {
    const ReleaseCommand release{.claim_token = before.claim_token,
                                 .disposition = disposition};
    return *DecideRelease(&before, release, now).write;
  }

  // What is broken by that change.
  std::vector<std::string> Broken(const Record* before, const Record& after,
                                  absl::Time now, const Asked& asked = {}) {
    std::vector<std::string> all;
    const auto broken = [&](const std::string& promise,
                            const std::string& what) {
      all.push_back(promise + ": " + what);
    };
    CheckChange(before, &after, now, asked, broken);
    CheckTimes(before, &after, now, broken);
    return all;
  }

  ClaimCommand claim_;
};

TEST_F(RecordRulesTest, S3ALeaseIsAsItsPolicySays) {
  const Record kept = Claimed();
  EXPECT_THAT(Broken(nullptr, kept, kBegin), IsEmpty());
  Record longer = kept;
  longer.lease_expires_at += kTick;
  longer.expires_at += kTick;
  EXPECT_THAT(Broken(nullptr, longer, kBegin), Contains(StartsWith("S3")));
  Record beyond = kept;
  beyond.lease = absl::Seconds(11);
  beyond.lease_expires_at = kBegin + beyond.lease;
  beyond.expires_at = beyond.lease_expires_at + absl::Seconds(5);
  EXPECT_THAT(Broken(nullptr, beyond, kBegin), Contains(StartsWith("S3")));
}

TEST_F(RecordRulesTest, S18AGrantIsKeptForItsRetention) {
  Record after = Claimed();
  after.expires_at -= kTick;
  EXPECT_THAT(Broken(nullptr, after, kBegin), Contains(StartsWith("S18")));
  policy().retention.reset();
  after = Claimed();
  EXPECT_THAT(Broken(nullptr, after, kBegin), IsEmpty());
  after.expires_at = kBegin + absl::Hours(1);
  EXPECT_THAT(Broken(nullptr, after, kBegin), Contains(StartsWith("S18")));
}

TEST_F(RecordRulesTest, S18ARenewalExtendsWhatItOutlasts) {
  const Record before = Claimed();
  claim_.lease = absl::Seconds(9);
  const absl::Time now = kBegin + absl::Milliseconds(10);
  Record after = After(DecideClaim(&before, claim_, now));
  EXPECT_THAT(Broken(&before, after, now), IsEmpty());
  Record broken = after;
  broken.expires_at = before.expires_at;
  EXPECT_THAT(Broken(&before, broken, now), Contains(StartsWith("S18")));
  broken = after;
  broken.lease_expires_at += absl::Seconds(1);
  EXPECT_THAT(Broken(&before, broken, now), Contains(StartsWith("S3")));
}

TEST_F(RecordRulesTest, S18ARecordedResponseIsKeptForItsRetention) {
  const Record before = Claimed();
  const absl::Time now = kBegin + absl::Seconds(3);
  const auto breaks_by = [&](absl::Duration by) {
    Record after = Finalized(before, 200, now);
    EXPECT_THAT(Broken(&before, after, now), IsEmpty());
    after.expires_at += by;
    EXPECT_THAT(Broken(&before, after, now), Contains(StartsWith("S18")));
  };
  breaks_by(-kTick);
  breaks_by(kTick);
}

TEST_F(RecordRulesTest, S18APermanentOneForTheTimeAfterItsEnd) {
  policy().retention.reset();
  policy().retention_after_finalize = absl::Seconds(7);
  const Record before = Claimed();
  Record after = Finalized(before, 200, kBegin);
  EXPECT_THAT(Broken(&before, after, kBegin), IsEmpty());
  after.expires_at = absl::InfiniteFuture();
  EXPECT_THAT(Broken(&before, after, kBegin), Contains(StartsWith("S18")));
}

TEST_F(RecordRulesTest, S18AFreedKeyIsKeptForItsRetention) {
  const Record before = Claimed();
  Record after = Released(before, Disposition::kNotExecuted, kBegin);
  EXPECT_THAT(Broken(&before, after, kBegin), IsEmpty());
  after.expires_at += kTick;
  EXPECT_THAT(Broken(&before, after, kBegin), Contains(StartsWith("S18")));
  after.expires_at -= absl::Minutes(1);
  EXPECT_THAT(Broken(&before, after, kBegin), Contains(StartsWith("S18")));
  policy().retention.reset();
  const Record permanent = Claimed();
  after = Released(permanent, Disposition::kNotExecuted, kBegin);
  EXPECT_THAT(Broken(&permanent, after, kBegin), IsEmpty());
  after.expires_at = absl::InfiniteFuture();
  EXPECT_THAT(Broken(&permanent, after, kBegin), Contains(StartsWith("S18")));
}

TEST_F(RecordRulesTest, S18OnlyAHeldRecordThatExpiredIsParked) {
  policy().on_abandoned = OnAbandoned::kHold;
  const Record before = Claimed();
  Record parked = before;
  parked.version += 1;
  parked.expires_at = absl::InfiniteFuture();
  EXPECT_THAT(Broken(&before, parked, before.expires_at), IsEmpty());
  EXPECT_THAT(Broken(&before, parked, before.expires_at - kTick),
              Contains(StartsWith("S18")));
  const absl::Time now = before.expires_at + absl::Seconds(60);
  Record after = Finalized(parked, 200, now);
  EXPECT_THAT(Broken(&parked, after, now), IsEmpty());
  after.expires_at = absl::InfiniteFuture();
  EXPECT_THAT(Broken(&parked, after, now), Contains(StartsWith("S18")));
}

TEST_F(RecordRulesTest, S16OnlyThePolicyHolds) {
  Record first = Claimed();
  first.held = true;
  EXPECT_THAT(Broken(nullptr, first, kBegin), Contains(StartsWith("S16")));
  const Record before = Claimed();
  const absl::Time now = before.lease_expires_at;
  Record taken = TakenOver(before, now);
  EXPECT_THAT(Broken(&before, taken, now), IsEmpty());
  taken.held = true;
  EXPECT_THAT(Broken(&before, taken, now), Contains(StartsWith("S16")));
  taken.held = false;
  taken.policy.name = "other";
  EXPECT_THAT(Broken(&before, taken, now), Contains(StartsWith("S16")));
}

TEST_F(RecordRulesTest, S16AServerErrorHoldsAsItsPolicySays) {
  const Record before = Claimed();
  Record after = Finalized(before, 503, kBegin);
  ASSERT_FALSE(after.held);
  EXPECT_THAT(Broken(&before, after, kBegin), IsEmpty());
  after.held = true;
  EXPECT_THAT(Broken(&before, after, kBegin), Contains(StartsWith("S16")));
  policy().on_server_error = OnServerError::kHold;
  const Record holds = Claimed();
  after = Finalized(holds, 503, kBegin);
  ASSERT_TRUE(after.held);
  EXPECT_THAT(Broken(&holds, after, kBegin), IsEmpty());
  after.held = false;
  EXPECT_THAT(Broken(&holds, after, kBegin), Contains(StartsWith("S16")));
}

TEST_F(RecordRulesTest, S7AServerErrorIsRecordedAsItsPolicySays) {
  const Record before = Claimed();
  Record after = Finalized(before, 200, kBegin);
  after.response.status_code = 500;
  EXPECT_THAT(Broken(&before, after, kBegin), Contains(StartsWith("S7")));
  policy().on_server_error = OnServerError::kRecord;
  const Record records = Claimed();
  EXPECT_THAT(Broken(&records, Finalized(records, 500, kBegin), kBegin),
              IsEmpty());
  Record given_up = records;
  given_up.version += 1;
  given_up.gave_up = GaveUp::kServerError;
  EXPECT_THAT(Broken(&records, given_up, kBegin), Contains(StartsWith("S7")));
}

TEST_F(RecordRulesTest, S12OnlyWhoKnowsThatNobodyActedFrees) {
  const Record first = Claimed();
  EXPECT_THAT(Broken(&first, Released(first, Disposition::kNotExecuted, kBegin),
                     kBegin),
              IsEmpty());
  const absl::Time now = first.lease_expires_at;
  const Record second = TakenOver(first, now);
  const Record freed = Released(second, Disposition::kNeverExecuted, now);
  EXPECT_THAT(Broken(&second, freed, now, {.never_executed = true}), IsEmpty());
  EXPECT_THAT(Broken(&second, freed, now), Contains(StartsWith("S12")));
  const Record given_up = Released(first, Disposition::kOutcomeUnknown, kBegin);
  Record freed_late = Released(given_up, Disposition::kNeverExecuted, kBegin);
  EXPECT_THAT(Broken(&given_up, freed_late, kBegin),
              Contains(StartsWith("S12")));
}

TEST_F(RecordRulesTest, S12AFreedKeyHasAnotherDownstreamKey) {
  const Record before = Claimed();
  Record after = Released(before, Disposition::kNotExecuted, kBegin);
  after.freed_count -= 1;
  EXPECT_THAT(Broken(&before, after, kBegin), Contains(StartsWith("S12")));
  Record given_up = Released(before, Disposition::kOutcomeUnknown, kBegin);
  EXPECT_THAT(Broken(&before, given_up, kBegin), IsEmpty());
  given_up.freed_count += 1;
  EXPECT_THAT(Broken(&before, given_up, kBegin), Contains(StartsWith("S12")));
}

// ---- Answers.

TEST_F(RecordRulesTest, S5OnlyAnotherOwnersLeaseKeepsWaiting) {
  const Record row = Claimed();
  ClaimCommand other = claim_;
  other.claim_token = kOther;
  EXPECT_TRUE(MayTellInProgress(&row, other, kBegin));
  EXPECT_FALSE(MayTellInProgress(&row, claim_, kBegin));
  EXPECT_FALSE(MayTellInProgress(&row, other, row.lease_expires_at));
  EXPECT_FALSE(MayTellInProgress(nullptr, other, kBegin));
  other.request_hash = "other";
  EXPECT_FALSE(MayTellInProgress(&row, other, kBegin));
}

TEST_F(RecordRulesTest, S11OnlyAnotherRequestIsAMismatch) {
  const Record row = Claimed();
  ClaimCommand other = claim_;
  other.request_hash = "other";
  EXPECT_TRUE(MayTellMismatch(&row, other, kBegin));
  EXPECT_FALSE(MayTellMismatch(&row, claim_, kBegin));
  EXPECT_FALSE(MayTellMismatch(&row, other, row.expires_at));
  const Record freed = Released(row, Disposition::kNotExecuted, kBegin);
  EXPECT_FALSE(MayTellMismatch(&freed, other, kBegin));
}

TEST_F(RecordRulesTest, S16OnlyWhatIsHeldIsInDoubt) {
  const Record row = Claimed();
  Record held = row;
  held.held = true;
  ClaimCommand other = claim_;
  other.claim_token = kOther;
  const absl::Time over = row.lease_expires_at;
  EXPECT_TRUE(MayTellInDoubt(&held, other, over));
  EXPECT_FALSE(MayTellInDoubt(&row, other, over));
  EXPECT_FALSE(MayTellInDoubt(&held, other, over - kTick));
  EXPECT_FALSE(MayTellInDoubt(&held, claim_, over));
  other.resolve_in_doubt = true;
  EXPECT_FALSE(MayTellInDoubt(&held, other, over));
}

TEST_F(RecordRulesTest, S11OnlyItsOwnRequestIsReplayed) {
  const Record row = Finalized(Claimed(), 200, kBegin);
  EXPECT_TRUE(MayReplay(&row, claim_, kBegin));
  EXPECT_FALSE(MayReplay(&row, claim_, row.expires_at));
  ClaimCommand other = claim_;
  other.request_hash = "other";
  EXPECT_FALSE(MayReplay(&row, other, kBegin));
  const Record unfinished = Claimed();
  EXPECT_FALSE(MayReplay(&unfinished, claim_, kBegin));
}

}  // namespace
}  // namespace idempotency
