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

template <typename Outcome>
const Outcome* OutcomeIn(const Step& step) {
  if (step.claim_answer == nullptr || !step.claim_answer->ok()) return nullptr;
  return std::get_if<Outcome>(&**step.claim_answer);
}

const Claimed* GrantIn(const Step& step) { return OutcomeIn<Claimed>(step); }

bool FreesTheKey(const Step& step) {
  return step.after.has_value() && step.before.has_value() &&
         step.after->state == RecordState::kReleased &&
         step.before->state == RecordState::kUnfinished;
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

struct Invariant {
  const char* name;
  bool (*holds)(const Step&);
};

// What is written of a record that was there before the call.
bool Changes(const Step& step) {
  return !IsAbsentBefore(step) && step.after.has_value();
}

constexpr Invariant kInvariants[] = {
    {"only what is answered OK is written",
     [](const Step& step) { return step.answered || !step.after.has_value(); }},
    {"every grant is written before it is answered",
     [](const Step& step) {
       const Claimed* const grant = GrantIn(step);
       if (grant == nullptr) return true;
       return step.after.has_value() && *grant == GrantOf(*step.after, Now()) &&
              step.after->claim_token == step.claim->claim_token &&
              grant->lease > absl::ZeroDuration() &&
              grant->expires_at >= grant->lease_expires_at;
     }},
    {"a renewal never acquires",
     [](const Step& step) {
       if (step.claim == nullptr || step.claim->renew_fencing_token == 0 ||
           !step.after.has_value()) {
         return true;
       }
       return !IsNewGrant(step) &&
              step.claim->renew_fencing_token == step.before->fencing_token &&
              step.claim->claim_token == step.before->claim_token;
     }},
    {"nobody is granted what another's lease still runs on",
     [](const Step& step) {
       return step.by_owner || !step.before.has_value() ||
              !step.after.has_value() ||
              StateAt(*step.before, Now()) != VisibleState::kInProgress;
     }},
    {"the fencing token grows with each grant and never else",
     [](const Step& step) {
       if (!step.after.has_value() || !step.before.has_value()) return true;
       const bool granted =
           IsAbsentBefore(step) ||
           step.after->claim_token != step.before->claim_token ||
           step.after->attempt != step.before->attempt;
       return granted ? step.after->fencing_token > step.before->fencing_token
                      : step.after->fencing_token == step.before->fencing_token;
     }},
    {"the version grows with every write",
     [](const Step& step) {
       return !step.after.has_value() || !step.before.has_value() ||
              step.after->version > step.before->version;
     }},
    {"a final record never changes but for its version",
     [](const Step& step) {
       if (!Changes(step) || step.before->state != RecordState::kFinal) {
         return true;
       }
       Record after = *step.after;
       after.version = step.before->version;
       return after == *step.before;
     }},
    {"a replay is exactly the recorded response, for the same request only",
     [](const Step& step) {
       const auto* const replay = OutcomeIn<Replay>(step);
       if (replay == nullptr) return true;
       return !IsAbsentBefore(step) &&
              step.before->state == RecordState::kFinal &&
              step.claim->request_hash == step.before->request_hash &&
              replay->response == step.before->response &&
              !step.after.has_value();
     }},
    {"another request hash changes nothing and is shown nothing",
     [](const Step& step) {
       if (IsAbsentBefore(step) || step.claim == nullptr ||
           step.before->state == RecordState::kReleased ||
           step.claim->request_hash == step.before->request_hash) {
         return true;
       }
       const auto* const mismatch = OutcomeIn<Mismatch>(step);
       return mismatch != nullptr && !step.after.has_value() &&
              mismatch->created_at == step.before->created_at;
     }},
    {"who does not own the claim changes it only by a grant",
     [](const Step& step) {
       return step.by_owner || !step.after.has_value() ||
              GrantIn(step) != nullptr;
     }},
    {"policy, creation and request hash stay until a release frees the key",
     [](const Step& step) {
       if (!Changes(step) || step.before->state == RecordState::kReleased) {
         return true;
       }
       return step.after->policy == step.before->policy &&
              step.after->created_at == step.before->created_at &&
              step.after->request_hash == step.before->request_hash;
     }},
    {"the downstream key changes with a release that frees the key alone",
     [](const Step& step) {
       if (!Changes(step)) return true;
       return step.after->freed_count ==
              step.before->freed_count + (FreesTheKey(step) ? 1 : 0);
     }},
    {"an attempt that follows an unfinished one is told, and no other",
     [](const Step& step) {
       if (!IsNewGrant(step)) return true;
       const bool follows = !IsAbsentBefore(step) &&
                            step.before->state == RecordState::kUnfinished;
       if (step.after->abandoned.has_value() != follows) return false;
       return !follows ||
              (step.after->abandoned->attempt <= step.before->attempt &&
               step.after->abandoned->abandoned_at <= Now());
     }},
    {"a checkpoint is handed on over attempts without one",
     [](const Step& step) {
       if (!IsNewGrant(step) || !step.after->abandoned.has_value()) return true;
       return step.after->abandoned->checkpoint.has_value() ==
              (step.situation.took_over || step.situation.checkpoint);
     }},
    {"an attempt that did nothing hands on what it was told",
     [](const Step& step) {
       return !IsNewGrant(step) || !step.after->abandoned.has_value() ||
              step.before->gave_up != GaveUp::kDidNothing ||
              step.after->abandoned == step.before->abandoned;
     }},
    {"a lease is never shortened by its owner",
     [](const Step& step) {
       return !Changes(step) || !step.by_owner ||
              step.after->lease_expires_at >= step.before->lease_expires_at;
     }},
    {"held is cleared only by a release that frees the key",
     [](const Step& step) {
       if (!Changes(step)) return true;
       if (FreesTheKey(step)) return !step.after->held;
       return step.after->held || !step.before->held;
     }},
    {"held is set only by a policy that holds",
     [](const Step& step) {
       if (!step.after.has_value() || !step.after->held) return true;
       const Policy& policy = step.after->policy;
       return (Changes(step) && step.before->held) ||
              policy.on_abandoned == OnAbandoned::kHold ||
              policy.on_server_error == OnServerError::kHold;
     }},
    {"a held record is taken over only to resolve the doubt",
     [](const Step& step) {
       return !Changes(step) || !IsNewGrant(step) || !step.before->held ||
              step.claim->resolve_in_doubt;
     }},
    {"a response is kept for its retention at least",
     [](const Step& step) {
       if (!Changes(step) || step.after->state != RecordState::kFinal ||
           step.before->state == RecordState::kFinal) {
         return true;
       }
       const Policy& policy = step.after->policy;
       if (policy.retention.has_value()) {
         return step.after->expires_at >= Now() + *policy.retention &&
                step.after->expires_at < absl::InfiniteFuture();
       }
       return step.after->expires_at ==
              (policy.retention_after_finalize.has_value()
                   ? Now() + *policy.retention_after_finalize
                   : absl::InfiniteFuture());
     }},
    {"a grant is kept for its lease and the retention",
     [](const Step& step) {
       if (!IsNewGrant(step)) return true;
       const Policy& policy = step.after->policy;
       return step.after->expires_at ==
              (policy.retention.has_value()
                   ? Now() + step.after->lease + *policy.retention
                   : absl::InfiniteFuture());
     }},
};

template <typename Choice>
void CheckInvariants(const Step& step, const Choice& choice) {
  for (const Invariant& invariant : kInvariants) {
    if (!invariant.holds(step)) {
      FAIL() << "broken: " << invariant.name << "\n"
             << Describe(step.situation) << "\n"
             << Describe(choice);
    }
  }
}

void CheckInvariantsIn(const Situation& s) {
  const std::optional<Record> before = RecordIn(s);
  const Record* const record = before.has_value() ? &*before : nullptr;
  for (const ClaimChoice& c : AllClaimChoices()) {
    const ClaimCommand command = ClaimOf(s, c);
    const auto decision = DecideClaim(record, command, Now());
    CheckInvariants(Step{s, before, decision.write, c.same_token,
                         decision.answer.ok(), &command, &decision.answer},
                    c);
  }
  for (const FinalizeChoice& c : AllFinalizeChoices()) {
    const auto decision = DecideFinalize(record, FinalizeOf(c), Now());
    CheckInvariants(
        Step{s, before, decision.write, c.same_token, decision.answer.ok()}, c);
  }
  for (const ReleaseChoice& c : AllReleaseChoices()) {
    const auto decision = DecideRelease(record, ReleaseOf(c), Now());
    CheckInvariants(
        Step{s, before, decision.write, c.same_token, decision.answer.ok()}, c);
  }
}

TEST(TransitionsInvariantsTest, EveryDecisionKeepsEveryInvariant) {
  for (const Situation& situation : AllSituations()) {
    CheckInvariantsIn(situation);
    if (HasFailure()) return;
  }
}

// The answer to the first sending may be lost after its write.
template <typename Choice, typename First, typename Again>
void CheckSentAgain(const Situation& s, const Choice& c, const First& first,
                    const Again& again) {
  if (!first.write.has_value()) return;
  EXPECT_EQ(again(*first.write).answer.value(), first.answer.value())
      << Describe(s) << "\n"
      << Describe(c);
}

TEST(TransitionsInvariantsTest, ACallSentAgainIsAnsweredAsTheFirstTime) {
  for (const Situation& s : AllSituations()) {
    const std::optional<Record> before = RecordIn(s);
    const Record* const record = before.has_value() ? &*before : nullptr;
    for (const ClaimChoice& c : AllClaimChoices()) {
      const ClaimCommand command = ClaimOf(s, c);
      CheckSentAgain(s, c, DecideClaim(record, command, Now()),
                     [&](const Record& written) {
                       return DecideClaim(&written, command, Now());
                     });
    }
    for (const FinalizeChoice& c : AllFinalizeChoices()) {
      const FinalizeCommand command = FinalizeOf(c);
      CheckSentAgain(s, c, DecideFinalize(record, command, Now()),
                     [&](const Record& written) {
                       return DecideFinalize(&written, command, Now());
                     });
    }
    for (const ReleaseChoice& c : AllReleaseChoices()) {
      const ReleaseCommand command = ReleaseOf(c);
      CheckSentAgain(s, c, DecideRelease(record, command, Now()),
                     [&](const Record& written) {
                       return DecideRelease(&written, command, Now());
                     });
    }
    if (HasFailure()) return;
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
