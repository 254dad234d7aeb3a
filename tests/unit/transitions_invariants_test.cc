// What holds for every decision whatever row it came from.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "server/core/errors.h"
#include "server/core/transitions.h"
#include "tests/unit/situations.h"

namespace idempotency {
namespace {

// One decision, of whatever call, with what it was made on.
struct Step {
  const Situation& situation;
  const std::optional<Record>& before;
  const std::optional<Record>& after;  // nullopt: nothing is written
  bool by_owner;
  bool answered;  // not an error
  const ClaimCommand* claim = nullptr;
  const absl::StatusOr<ClaimOutcome>* claim_answer = nullptr;
};

// Gives every decision of every call to `check`; stops at the first failure.
template <typename Check>
void ForEveryStep(const Check& check) {
  for (const Situation& s : AllSituations()) {
    const std::optional<Record> before = RecordIn(s);
    const Record* const record = before.has_value() ? &*before : nullptr;
    for (const ClaimChoice& c : AllClaimChoices()) {
      const ClaimCommand command = ClaimOf(s, c);
      const auto decision = DecideClaim(record, command, Now());
      check(Step{s, before, decision.write, c.same_token, decision.answer.ok(),
                 &command, &decision.answer});
      if (testing::Test::HasFailure()) {
        FAIL() << Describe(s) << "\n" << Describe(c);
      }
    }
    for (const FinalizeChoice& c : AllFinalizeChoices()) {
      const auto decision = DecideFinalize(record, FinalizeOf(c), Now());
      check(
          Step{s, before, decision.write, c.same_token, decision.answer.ok()});
      if (testing::Test::HasFailure()) {
        FAIL() << Describe(s) << "\n" << Describe(c);
      }
    }
    for (const ReleaseChoice& c : AllReleaseChoices()) {
      const auto decision = DecideRelease(record, ReleaseOf(c), Now());
      check(
          Step{s, before, decision.write, c.same_token, decision.answer.ok()});
      if (testing::Test::HasFailure()) {
        FAIL() << Describe(s) << "\n" << Describe(c);
      }
    }
  }
}

const Claimed* GrantIn(const Step& step) {
  if (step.claim_answer == nullptr || !step.claim_answer->ok()) return nullptr;
  return std::get_if<Claimed>(&**step.claim_answer);
}

bool IsAbsentBefore(const Step& step) {
  return !step.before.has_value() || IsAbsent(*step.before, Now());
}

// A grant of a new attempt, as opposed to a grant that is confirmed.
bool IsNewGrant(const Step& step) {
  return step.after.has_value() &&
         (!step.before.has_value() ||
          step.after->fencing_token != step.before->fencing_token);
}

TEST(TransitionsInvariantsTest, OnlyWhatIsAnsweredOkIsWritten) {
  ForEveryStep([](const Step& step) {
    if (step.after.has_value()) EXPECT_TRUE(step.answered);
  });
}

TEST(TransitionsInvariantsTest, EveryGrantIsWrittenBeforeItIsAnswered) {
  ForEveryStep([](const Step& step) {
    const Claimed* const grant = GrantIn(step);
    if (grant == nullptr) return;
    ASSERT_TRUE(step.after.has_value());
    EXPECT_EQ(*grant, GrantOf(*step.after, Now()));
    EXPECT_EQ(step.after->claim_token, step.claim->claim_token);
    EXPECT_GT(grant->lease, absl::ZeroDuration());
    EXPECT_GE(grant->expires_at, grant->lease_expires_at);
  });
}

TEST(TransitionsInvariantsTest, ARenewalNeverAcquires) {
  ForEveryStep([](const Step& step) {
    if (step.claim == nullptr || step.claim->renew_fencing_token == 0) return;
    EXPECT_FALSE(IsNewGrant(step));
    if (step.after.has_value()) {
      EXPECT_EQ(step.claim->renew_fencing_token, step.before->fencing_token);
      EXPECT_EQ(step.claim->claim_token, step.before->claim_token);
    }
  });
}

TEST(TransitionsInvariantsTest, NobodyIsGrantedWhileAnothersLeaseRuns) {
  ForEveryStep([](const Step& step) {
    if (step.before.has_value() && !step.by_owner &&
        StateAt(*step.before, Now()) == VisibleState::kInProgress) {
      EXPECT_FALSE(step.after.has_value());
    }
  });
}

TEST(TransitionsInvariantsTest, TheFencingTokenGrowsWithEachGrantAndNeverElse) {
  ForEveryStep([](const Step& step) {
    if (!step.after.has_value() || !step.before.has_value()) return;
    const bool changes_owner =
        step.after->claim_token != step.before->claim_token;
    const bool new_attempt = IsAbsentBefore(step) ||
                             step.after->attempt != step.before->attempt;
    if (changes_owner || new_attempt) {
      EXPECT_GT(step.after->fencing_token, step.before->fencing_token);
    } else {
      EXPECT_EQ(step.after->fencing_token, step.before->fencing_token);
    }
  });
}

TEST(TransitionsInvariantsTest, TheVersionGrowsWithEveryWrite) {
  ForEveryStep([](const Step& step) {
    if (!step.after.has_value() || !step.before.has_value()) return;
    EXPECT_GT(step.after->version, step.before->version);
  });
}

TEST(TransitionsInvariantsTest, TheResponseOfAFinalRecordNeverChanges) {
  ForEveryStep([](const Step& step) {
    if (IsAbsentBefore(step) || !step.after.has_value() ||
        step.before->state != RecordState::kFinal) {
      return;
    }
    EXPECT_EQ(step.after->state, RecordState::kFinal);
    EXPECT_EQ(step.after->response, step.before->response);
    EXPECT_EQ(step.after->response_digest, step.before->response_digest);
    EXPECT_EQ(step.after->finalized_at, step.before->finalized_at);
    EXPECT_EQ(step.after->expires_at, step.before->expires_at);
  });
}

TEST(TransitionsInvariantsTest, AReplayIsExactlyTheRecordedResponse) {
  ForEveryStep([](const Step& step) {
    if (step.claim_answer == nullptr || !step.claim_answer->ok()) return;
    const auto* const replay = std::get_if<Replay>(&**step.claim_answer);
    if (replay == nullptr) return;
    ASSERT_FALSE(IsAbsentBefore(step));
    EXPECT_EQ(step.before->state, RecordState::kFinal);
    EXPECT_EQ(step.claim->request_hash, step.before->request_hash);
    EXPECT_EQ(replay->response, step.before->response);
    EXPECT_FALSE(step.after.has_value());
  });
}

TEST(TransitionsInvariantsTest, AnotherRequestHashChangesAndShowsNothing) {
  ForEveryStep([](const Step& step) {
    if (IsAbsentBefore(step) || step.claim == nullptr ||
        step.before->state == RecordState::kReleased ||
        step.claim->request_hash == step.before->request_hash) {
      return;
    }
    EXPECT_FALSE(step.after.has_value());
    ASSERT_TRUE(step.claim_answer->ok());
    const auto* const mismatch = std::get_if<Mismatch>(&**step.claim_answer);
    ASSERT_NE(mismatch, nullptr);
    EXPECT_EQ(mismatch->created_at, step.before->created_at);
  });
}

TEST(TransitionsInvariantsTest, WhoDoesNotOwnTheClaimChangesItOnlyByAGrant) {
  ForEveryStep([](const Step& step) {
    if (step.by_owner || !step.after.has_value()) return;
    EXPECT_NE(GrantIn(step), nullptr);
  });
}

TEST(TransitionsInvariantsTest, ATakeoverKeepsPolicyCreationAndDownstreamKey) {
  ForEveryStep([](const Step& step) {
    if (IsAbsentBefore(step) || !step.after.has_value() ||
        step.before->state == RecordState::kReleased) {
      return;
    }
    EXPECT_EQ(step.after->policy, step.before->policy);
    EXPECT_EQ(step.after->created_at, step.before->created_at);
    EXPECT_EQ(step.after->request_hash, step.before->request_hash);
    const int freed = step.after->state == RecordState::kReleased ? 1 : 0;
    EXPECT_EQ(step.after->freed_count, step.before->freed_count + freed);
  });
}

TEST(TransitionsInvariantsTest, AnAttemptThatFollowsAnUnfinishedOneIsTold) {
  ForEveryStep([](const Step& step) {
    if (!IsNewGrant(step)) return;
    const bool takes_over =
        !IsAbsentBefore(step) && step.before->state == RecordState::kUnfinished;
    ASSERT_EQ(step.after->abandoned.has_value(), takes_over);
    if (takes_over) {
      EXPECT_LE(step.after->abandoned->attempt, step.before->attempt);
      EXPECT_LE(step.after->abandoned->abandoned_at, Now());
    }
  });
}

TEST(TransitionsInvariantsTest, ACheckpointIsHandedOnOverAttemptsWithoutOne) {
  ForEveryStep([](const Step& step) {
    if (!IsNewGrant(step) || !step.after->abandoned.has_value()) return;
    const bool any = step.situation.took_over || step.situation.checkpoint;
    EXPECT_EQ(step.after->abandoned->checkpoint.has_value(), any);
  });
}

TEST(TransitionsInvariantsTest, AnAttemptThatDidNothingLeavesTheEarlierDoubt) {
  ForEveryStep([](const Step& step) {
    if (!IsNewGrant(step) || !step.after->abandoned.has_value() ||
        step.before->gave_up != GaveUp::kDidNothing) {
      return;
    }
    EXPECT_EQ(step.after->abandoned, step.before->abandoned);
  });
}

TEST(TransitionsInvariantsTest, ALeaseIsNeverShortenedByItsOwner) {
  ForEveryStep([](const Step& step) {
    if (IsAbsentBefore(step) || !step.after.has_value() || !step.by_owner) {
      return;
    }
    EXPECT_GE(step.after->lease_expires_at, step.before->lease_expires_at);
  });
}

TEST(TransitionsInvariantsTest, HeldIsClearedOnlyByAReleaseThatFreesTheKey) {
  ForEveryStep([](const Step& step) {
    if (IsAbsentBefore(step) || !step.after.has_value()) return;
    const bool frees = step.after->state == RecordState::kReleased &&
                       step.before->state == RecordState::kUnfinished;
    if (frees) {
      EXPECT_FALSE(step.after->held);
    } else if (step.before->held) {
      EXPECT_TRUE(step.after->held);
    }
  });
}

TEST(TransitionsInvariantsTest, HeldIsSetByAHoldingPolicyAndNothingElse) {
  ForEveryStep([](const Step& step) {
    if (!step.after.has_value() || !step.after->held) return;
    const bool was = !IsAbsentBefore(step) && step.before->held;
    const Policy& policy = step.after->policy;
    EXPECT_TRUE(was || policy.on_abandoned == OnAbandoned::kHold ||
                policy.on_server_error == OnServerError::kHold);
  });
}

TEST(TransitionsInvariantsTest, AHeldRecordIsTakenOverOnlyToResolveTheDoubt) {
  ForEveryStep([](const Step& step) {
    if (!IsNewGrant(step) || IsAbsentBefore(step) || !step.before->held) {
      return;
    }
    EXPECT_TRUE(step.claim->resolve_in_doubt);
  });
}

TEST(TransitionsInvariantsTest, AResponseIsKeptForItsRetentionAtLeast) {
  ForEveryStep([](const Step& step) {
    if (IsAbsentBefore(step) || !step.after.has_value() ||
        step.after->state != RecordState::kFinal ||
        step.before->state == RecordState::kFinal) {
      return;
    }
    const Policy& policy = step.after->policy;
    if (policy.retention.has_value()) {
      EXPECT_GE(step.after->expires_at, Now() + *policy.retention);
      EXPECT_LT(step.after->expires_at, absl::InfiniteFuture());
    } else if (policy.retention_after_finalize.has_value()) {
      EXPECT_EQ(step.after->expires_at,
                Now() + *policy.retention_after_finalize);
    } else {
      EXPECT_EQ(step.after->expires_at, absl::InfiniteFuture());
    }
  });
}

TEST(TransitionsInvariantsTest, AGrantIsKeptForItsLeaseAndTheRetention) {
  ForEveryStep([](const Step& step) {
    if (!IsNewGrant(step)) return;
    const Policy& policy = step.after->policy;
    EXPECT_EQ(step.after->expires_at,
              policy.retention.has_value()
                  ? Now() + step.after->lease + *policy.retention
                  : absl::InfiniteFuture());
  });
}

TEST(TransitionsInvariantsTest, ASentAgainCallIsAnsweredAsTheFirstTime) {
  for (const Situation& s : AllSituations()) {
    const std::optional<Record> before = RecordIn(s);
    const Record* const record = before.has_value() ? &*before : nullptr;
    for (const ClaimChoice& c : AllClaimChoices()) {
      const auto first = DecideClaim(record, ClaimOf(s, c), Now());
      if (!first.write.has_value()) continue;
      ClaimCommand command = ClaimOf(s, c);
      const auto again = DecideClaim(&*first.write, command, Now());
      ASSERT_EQ(again.answer.value(), first.answer.value())
          << Describe(s) << "\n"
          << Describe(c);
    }
    for (const FinalizeChoice& c : AllFinalizeChoices()) {
      const auto first = DecideFinalize(record, FinalizeOf(c), Now());
      if (!first.write.has_value()) continue;
      const auto again = DecideFinalize(&*first.write, FinalizeOf(c), Now());
      ASSERT_EQ(again.answer.value(), first.answer.value())
          << Describe(s) << "\n"
          << Describe(c);
    }
    for (const ReleaseChoice& c : AllReleaseChoices()) {
      const auto first = DecideRelease(record, ReleaseOf(c), Now());
      if (!first.write.has_value()) continue;
      const auto again = DecideRelease(&*first.write, ReleaseOf(c), Now());
      ASSERT_EQ(again.answer.value(), first.answer.value())
          << Describe(s) << "\n"
          << Describe(c);
    }
  }
}

TEST(TransitionsInvariantsTest, TokensGrowWhenTheDatabaseClockStepsBack) {
  for (const Situation& s : AllSituations()) {
    std::optional<Record> before = RecordIn(s);
    if (!before.has_value()) continue;
    before->fencing_token = absl::ToUnixMicros(Now()) + 1'000'000;
    before->version = before->fencing_token + 3;
    for (const ClaimChoice& c : AllClaimChoices()) {
      if (c.same_token) continue;
      const auto decision = DecideClaim(&*before, ClaimOf(s, c), Now());
      if (!decision.write.has_value()) continue;
      ASSERT_EQ(decision.write->fencing_token, before->fencing_token + 1)
          << Describe(s) << "\n"
          << Describe(c);
      ASSERT_GT(decision.write->version, before->version);
    }
  }
}

}  // namespace
}  // namespace idempotency
