// The life of one key, call by call: each row of the tables as behaviour.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <variant>

#include "server/core/errors.h"
#include "server/core/transitions.h"
#include "tests/unit/situations.h"

namespace idempotency {
namespace {

// One record and a clock; each call is decided and written at once.
class TransitionsStoriesTest : public testing::Test {
 protected:
  static constexpr absl::Duration kLease = absl::Seconds(30);

  void SetUp() override {
    policy_.name = "default";
    policy_.lease = kLease;
    policy_.max_lease = absl::Hours(1);
    policy_.retention = absl::Hours(24);
  }

  ClaimCommand ClaimBy(const Uuid& token) const {
    ClaimCommand command;
    command.request_hash = std::string(32, 'h');
    command.claim_token = token;
    command.policy = policy_;
    return command;
  }

  absl::StatusOr<ClaimOutcome> Send(const ClaimCommand& command) {
    return Apply(DecideClaim(Stored(), command, now_));
  }
  absl::StatusOr<ClaimOutcome> Claim(const Uuid& token) {
    return Send(ClaimBy(token));
  }
  absl::StatusOr<FinalizeOutcome> Finalize(const Uuid& token, int status) {
    FinalizeCommand command;
    command.claim_token = token;
    command.response = {.status_code = status, .body = "body"};
    command.response_digest = "digest of " + std::to_string(status);
    return Apply(DecideFinalize(Stored(), command, now_));
  }
  absl::StatusOr<ReleaseOutcome> Release(const Uuid& token, Disposition how) {
    return Apply(DecideRelease(
        Stored(), {.id = {}, .claim_token = token, .disposition = how}, now_));
  }

  Claimed MustClaim(const ClaimCommand& command) {
    const auto outcome = Send(command);
    if (!outcome.ok() || !std::holds_alternative<Claimed>(*outcome)) {
      ADD_FAILURE() << "not Claimed";
      return {};
    }
    return std::get<Claimed>(*outcome);
  }

  template <typename Outcome>
  static bool Is(const absl::StatusOr<ClaimOutcome>& outcome) {
    return outcome.ok() && std::holds_alternative<Outcome>(*outcome);
  }

  template <typename Outcome>
  static Reason ReasonIn(const absl::StatusOr<Outcome>& outcome) {
    return outcome.ok() ? Reason::kInternal : ReasonOf(outcome.status());
  }

  const Record* Stored() const {
    return record_.has_value() ? &*record_ : nullptr;
  }

  const Uuid first_ = OwnToken();
  const Uuid second_ = OtherToken();
  Policy policy_;
  absl::Time now_ = Now();
  std::optional<Record> record_;
  bool evidence_ = false;

 private:
  template <typename Outcome>
  absl::StatusOr<Outcome> Apply(Decision<Outcome> decision) {
    if (decision.write.has_value()) record_ = std::move(decision.write);
    evidence_ = decision.evidence;
    return decision.answer;
  }
};

TEST_F(TransitionsStoriesTest, TheFirstClaimIsGranted) {
  const Claimed claimed = MustClaim(ClaimBy(first_));
  EXPECT_EQ(claimed.attempt, 1);
  EXPECT_EQ(claimed.fencing_token, absl::ToUnixMicros(now_));
  EXPECT_EQ(claimed.lease, kLease);
  EXPECT_EQ(claimed.expires_at, now_ + kLease + absl::Hours(24));
  EXPECT_FALSE(claimed.abandoned.has_value());
}

TEST_F(TransitionsStoriesTest, ASecondCallerWaitsWhileTheLeaseRuns) {
  ClaimCommand command = ClaimBy(first_);
  command.owner = "pod-1";
  MustClaim(command);
  now_ += absl::Seconds(10);
  const auto outcome = Claim(second_);
  ASSERT_TRUE(Is<InProgress>(outcome));
  EXPECT_EQ(std::get<InProgress>(*outcome),
            (InProgress{.lease_left = absl::Seconds(20),
                        .lease_expires_at = Now() + kLease,
                        .attempt = 1,
                        .owner = "pod-1"}));
}

TEST_F(TransitionsStoriesTest, SecondOwnerIsToldWhenTheLeaseEnds) {
  ClaimCommand command = ClaimBy(first_);
  command.owner = "pod-1";
  command.checkpoint = "charged";
  const Claimed first = MustClaim(command);
  now_ += kLease;
  const Claimed second = MustClaim(ClaimBy(second_));
  EXPECT_EQ(second.attempt, 2);
  EXPECT_GT(second.fencing_token, first.fencing_token);
  EXPECT_EQ(second.abandoned, (Abandoned{.attempt = 1,
                                         .fencing_token = first.fencing_token,
                                         .claimed_at = Now(),
                                         .abandoned_at = Now() + kLease,
                                         .checkpoint = "charged",
                                         .reason = AbandonReason::kLeaseLapsed,
                                         .owner = "pod-1"}));
}

TEST_F(TransitionsStoriesTest, AResponseIsReplayedToEverybodyItsOwnerToo) {
  MustClaim(ClaimBy(first_));
  ASSERT_EQ(Finalize(first_, 201)->result, FinalizeResult::kRecorded);
  for (const Uuid& token : {first_, second_}) {
    const auto outcome = Claim(token);
    ASSERT_TRUE(Is<Replay>(outcome));
    EXPECT_EQ(std::get<Replay>(*outcome).response.status_code, 201);
  }
}

TEST_F(TransitionsStoriesTest, AResponseIsReplayedUntilItExpires) {
  MustClaim(ClaimBy(first_));
  const absl::Time expires_at = Finalize(first_, 200)->expires_at;
  EXPECT_GE(expires_at, now_ + absl::Hours(24));
  now_ = expires_at - absl::Nanoseconds(1);
  EXPECT_TRUE(Is<Replay>(Claim(second_)));
  now_ = expires_at;
  const Claimed claimed = MustClaim(ClaimBy(second_));
  EXPECT_EQ(claimed.attempt, 1);
  EXPECT_FALSE(claimed.abandoned.has_value());
}

TEST_F(TransitionsStoriesTest, AnOwnerMayFinalizeAfterItsLeaseWhileNobodyCame) {
  MustClaim(ClaimBy(first_));
  now_ += absl::Hours(5);
  EXPECT_EQ(Finalize(first_, 200)->result, FinalizeResult::kRecorded);
}

TEST_F(TransitionsStoriesTest, ALateOwnerIsRefusedAndItsResponseIsEvidence) {
  MustClaim(ClaimBy(first_));
  now_ += kLease;
  MustClaim(ClaimBy(second_));
  EXPECT_EQ(ReasonIn(Finalize(first_, 200)), Reason::kClaimSuperseded);
  EXPECT_TRUE(evidence_);
  EXPECT_EQ(Finalize(second_, 200)->result, FinalizeResult::kRecorded);
  EXPECT_EQ(ReasonIn(Finalize(first_, 200)), Reason::kClaimSuperseded)
      << "the same response too";
}

TEST_F(TransitionsStoriesTest, AnotherResponseOfTheSameOwnerIsRefused) {
  MustClaim(ClaimBy(first_));
  const auto recorded = Finalize(first_, 200);
  now_ += absl::Seconds(1);
  EXPECT_EQ(*Finalize(first_, 200), *recorded);
  EXPECT_FALSE(evidence_);
  EXPECT_EQ(ReasonIn(Finalize(first_, 201)), Reason::kAlreadyFinalized);
  EXPECT_TRUE(evidence_);
}

TEST_F(TransitionsStoriesTest, AServerErrorGivesUpAndTheTruthMayFollow) {
  MustClaim(ClaimBy(first_));
  EXPECT_EQ(Finalize(first_, 504)->result, FinalizeResult::kReleased);
  EXPECT_EQ(ReasonIn(Claim(first_)), Reason::kClaimReleased);
  EXPECT_EQ(Finalize(first_, 200)->result, FinalizeResult::kRecorded);
  EXPECT_TRUE(Is<Replay>(Claim(second_)));
}

TEST_F(TransitionsStoriesTest, AfterATakeoverTheTruthComesTooLate) {
  MustClaim(ClaimBy(first_));
  ASSERT_TRUE(Finalize(first_, 504).ok());
  const Claimed second = MustClaim(ClaimBy(second_));
  EXPECT_EQ(second.abandoned->reason, AbandonReason::kServerError);
  EXPECT_EQ(second.abandoned->status_code, 504);
  EXPECT_EQ(ReasonIn(Finalize(first_, 200)), Reason::kClaimSuperseded);
}

TEST_F(TransitionsStoriesTest, APolicyMayRecordServerErrors) {
  policy_.on_server_error = OnServerError::kRecord;
  MustClaim(ClaimBy(first_));
  EXPECT_EQ(Finalize(first_, 503)->result, FinalizeResult::kRecorded);
}

TEST_F(TransitionsStoriesTest, AHeldServerErrorHoldsTheAttemptsAfterItToo) {
  policy_.on_server_error = OnServerError::kHold;
  MustClaim(ClaimBy(first_));
  EXPECT_EQ(Finalize(first_, 500)->result, FinalizeResult::kInDoubt);
  EXPECT_TRUE(Is<InDoubt>(Claim(second_)));
  ClaimCommand resolving = ClaimBy(second_);
  resolving.resolve_in_doubt = true;
  EXPECT_TRUE(MustClaim(resolving).abandoned.has_value());
  now_ += kLease;
  EXPECT_TRUE(Is<InDoubt>(Claim(first_)));
}

TEST_F(TransitionsStoriesTest, AHeldRecordWaitsForItsResolverBeyondItsExpiry) {
  policy_.on_abandoned = OnAbandoned::kHold;
  MustClaim(ClaimBy(first_));
  now_ += absl::Hours(24 * 365);
  EXPECT_TRUE(Is<InDoubt>(Claim(second_)));
  ClaimCommand resolving = ClaimBy(second_);
  resolving.resolve_in_doubt = true;
  EXPECT_EQ(MustClaim(resolving).attempt, 2);
  ASSERT_EQ(Finalize(second_, 200)->expires_at,
            now_ + kLease + absl::Hours(24));
}

TEST_F(TransitionsStoriesTest, AParkedRecordExpiresAgainOnceItIsFinal) {
  policy_.on_abandoned = OnAbandoned::kHold;
  MustClaim(ClaimBy(first_));
  now_ += absl::Hours(48);
  record_->expires_at = absl::InfiniteFuture();
  EXPECT_EQ(Finalize(first_, 200)->expires_at, now_ + absl::Hours(24));
}

TEST_F(TransitionsStoriesTest, AnotherRequestIsToldNothingButTheCreation) {
  MustClaim(ClaimBy(first_));
  ClaimCommand other = ClaimBy(first_);
  other.request_hash.back() = 'x';
  const auto outcome = Send(other);
  ASSERT_TRUE(Is<Mismatch>(outcome));
  EXPECT_EQ(std::get<Mismatch>(*outcome).created_at, Now());
}

TEST_F(TransitionsStoriesTest, ARenewalExtendsItsOwnGrantAndNothingElse) {
  ClaimCommand renewal = ClaimBy(first_);
  renewal.renew_fencing_token = 1;
  EXPECT_EQ(ReasonIn(Send(renewal)), Reason::kRecordNotFound);
  renewal.renew_fencing_token = MustClaim(ClaimBy(first_)).fencing_token;
  now_ += absl::Seconds(20);
  EXPECT_EQ(MustClaim(renewal).lease, kLease);
  now_ += kLease;
  EXPECT_EQ(MustClaim(renewal).attempt, 1) << "lapsed, and nobody took over";
  now_ += kLease;
  MustClaim(ClaimBy(second_));
  EXPECT_EQ(ReasonIn(Send(renewal)), Reason::kClaimSuperseded);
}

TEST_F(TransitionsStoriesTest, ALongRenewalMovesTheExpiryBehindItsLease) {
  policy_.retention = absl::Minutes(1);
  ClaimCommand command = ClaimBy(first_);
  MustClaim(command);
  command.lease = absl::Seconds(80);
  EXPECT_EQ(MustClaim(command).expires_at, now_ + kLease + absl::Minutes(1));
  command.lease = absl::Minutes(30);
  EXPECT_EQ(MustClaim(command).expires_at, now_ + absl::Minutes(31));
}

TEST_F(TransitionsStoriesTest, AnOlderCheckpointDoesNotReplaceANewerOne) {
  ClaimCommand command = ClaimBy(first_);
  command.checkpoint = "two";
  command.checkpoint_number = 2;
  MustClaim(command);
  command.checkpoint = "one";
  command.checkpoint_number = 1;
  MustClaim(command);
  EXPECT_EQ(record_->checkpoint, "two");
  command.checkpoint = "two again";
  command.checkpoint_number = 2;
  MustClaim(command);
  EXPECT_EQ(record_->checkpoint, "two again");
}

TEST_F(TransitionsStoriesTest, CheckpointNumbersStartAnewWithEachGrant) {
  ClaimCommand command = ClaimBy(first_);
  command.checkpoint = "nine";
  command.checkpoint_number = 9;
  MustClaim(command);
  now_ += kLease;
  EXPECT_EQ(MustClaim(ClaimBy(second_)).abandoned->checkpoint, "nine");
  command = ClaimBy(second_);
  command.checkpoint = "one";
  command.checkpoint_number = 1;
  MustClaim(command);
  EXPECT_EQ(record_->checkpoint, "one");
}

TEST_F(TransitionsStoriesTest, AReleasedKeyIsFreeForAnyRequest) {
  const Claimed first = MustClaim(ClaimBy(first_));
  ASSERT_TRUE(Release(first_, Disposition::kNotExecuted)->released);
  EXPECT_EQ(ReasonIn(Claim(first_)), Reason::kClaimReleased);
  ClaimCommand other = ClaimBy(second_);
  other.request_hash = std::string(20, 'y');
  policy_.name = "form";
  other.policy = policy_;
  const Claimed second = MustClaim(other);
  EXPECT_EQ(second.attempt, 2);
  EXPECT_EQ(second.freed_count, first.freed_count + 1);
  EXPECT_FALSE(second.abandoned.has_value());
  EXPECT_EQ(record_->policy.name, "form");
}

TEST_F(TransitionsStoriesTest, AnUnknownOutcomeIsGivenUpAndNotFreed) {
  const Claimed first = MustClaim(ClaimBy(first_));
  EXPECT_EQ(
      *Release(first_, Disposition::kOutcomeUnknown),
      (ReleaseOutcome{.released = true, .state = VisibleState::kInDoubt}));
  const Claimed second = MustClaim(ClaimBy(second_));
  EXPECT_EQ(second.abandoned->reason, AbandonReason::kOutcomeUnknown);
  EXPECT_EQ(second.freed_count, first.freed_count);
}

TEST_F(TransitionsStoriesTest, ASecondAttemptThatDidNothingKeepsTheFirstDoubt) {
  ClaimCommand command = ClaimBy(first_);
  command.checkpoint = "charged";
  MustClaim(command);
  now_ += kLease;
  const Claimed second = MustClaim(ClaimBy(second_));
  ASSERT_TRUE(Release(second_, Disposition::kNotExecuted)->released);
  const Claimed third = MustClaim(ClaimBy(first_));
  EXPECT_EQ(third.abandoned, second.abandoned);
  EXPECT_EQ(third.freed_count, second.freed_count);
}

TEST_F(TransitionsStoriesTest, WhatWasNeverExecutedIsFreedEvenWhenGivenUp) {
  MustClaim(ClaimBy(first_));
  ASSERT_TRUE(Release(first_, Disposition::kOutcomeUnknown)->released);
  EXPECT_EQ(Release(first_, Disposition::kNeverExecuted)->state,
            VisibleState::kReleased);
  EXPECT_FALSE(MustClaim(ClaimBy(second_)).abandoned.has_value());
}

TEST_F(TransitionsStoriesTest, AReleaseOfWhatIsNotOnesOwnDoesNothing) {
  EXPECT_EQ(*Release(first_, Disposition::kNotExecuted), ReleaseOutcome{});
  MustClaim(ClaimBy(first_));
  EXPECT_EQ(ReasonIn(Release(second_, Disposition::kNeverExecuted)),
            Reason::kClaimSuperseded);
  ASSERT_TRUE(Finalize(first_, 200).ok());
  EXPECT_EQ(ReasonIn(Release(first_, Disposition::kNeverExecuted)),
            Reason::kAlreadyFinalized);
}

TEST_F(TransitionsStoriesTest, APermanentRecordExpiresOnlyOnceReleased) {
  policy_.retention.reset();
  MustClaim(ClaimBy(first_));
  EXPECT_EQ(record_->expires_at, absl::InfiniteFuture());
  ASSERT_TRUE(Release(first_, Disposition::kNotExecuted)->released);
  EXPECT_EQ(record_->expires_at, now_ + absl::Hours(24));
}

TEST_F(TransitionsStoriesTest, APolicyThatIsGoneRefusesOnlyNewRecords) {
  ClaimCommand command = ClaimBy(second_);
  command.policy = MakeError(Reason::kUnknownPolicy, "gone");
  EXPECT_EQ(ReasonIn(Send(command)), Reason::kUnknownPolicy);
  MustClaim(ClaimBy(first_));
  now_ += kLease;
  EXPECT_EQ(MustClaim(command).attempt, 2) << "a takeover keeps the policy";
  ASSERT_TRUE(Release(second_, Disposition::kNeverExecuted)->released);
  command.claim_token = first_;
  EXPECT_EQ(ReasonIn(Send(command)), Reason::kUnknownPolicy);
}

}  // namespace
}  // namespace idempotency
