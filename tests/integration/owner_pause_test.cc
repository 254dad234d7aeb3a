// Owners that go silent for longer than their lease and come back, or are in
// doubt about what they did.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/integration/fault_calls.h"
#include "tests/integration/two_replicas.h"
#include "tests/support/replica.h"
#include "tests/support/server_process.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr milliseconds kLease{400};
constexpr auto kNotExecuted = v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED;
constexpr auto kOutcomeUnknown =
    v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN;
constexpr auto kNeverExecuted = v1::ReleaseRequest::DISPOSITION_NEVER_EXECUTED;

class OwnerPauseTest : public TwoReplicasTest {
 protected:
  // An owner in a process of its own that has been granted `key`, stopped.
  static std::unique_ptr<ServerProcess> StartAndStopOwner(
      const std::string& key, const std::string& policy, int status) {
    ServerProcess::Options options;
    options.program = PAUSED_OWNER_PROGRAM;
    options.arguments = {first_->target(), key, policy,
                         absl::StrCat(kLease.count()), absl::StrCat(status)};
    std::unique_ptr<ServerProcess> owner =
        Require(ServerProcess::Start(std::move(options)));
    EXPECT_THAT(Require(owner->WaitForLine("claim:")),
                HasSubstr("claim: Claimed"));
    owner->Pause();
    return owner;
  }

  // Wakes the owner, which then finalizes; returns what it was told.
  static std::string WakeOwner(ServerProcess& owner) {
    owner.Resume();
    owner.Signal(SIGUSR1);
    const std::string line = Require(owner.WaitForLine("finalize:"));
    EXPECT_EQ(Require(owner.WaitForExit()).code, 0);
    return line.substr(line.find("finalize:"));
  }

  static v1::ClaimRequest Resolving(v1::ClaimRequest claim) {
    claim.set_resolve_in_doubt(true);
    return claim;
  }

  static v1::Claimed Granted(const v1::ClaimRequest& claim) {
    return TwoReplicasTest::Granted(second(), claim);
  }

  static std::string Evidence(const std::string& key) {
    return Sql(
        absl::StrCat("SELECT status_code, count FROM "
                     "idempotency_conflicts WHERE key = '",
                     key, "' ORDER BY status_code"));
  }

  static Stub& stub() { return first(); }
};

TEST_F(OwnerPauseTest, StoppedOwnerIsRefusedAfterAnotherTookOver) {
  const std::string key = RandomKey();
  const auto owner = StartAndStopOwner(key, "", 201);
  const v1::ClaimRequest second = ClaimOf(key);
  const v1::Claimed claimed = Granted(second);
  EXPECT_EQ(claimed.attempt(), 2);
  EXPECT_EQ(claimed.abandoned().attempt(), 1);
  EXPECT_EQ(claimed.abandoned().owner(), "paused");
  EXPECT_EQ(claimed.abandoned().checkpoint(), "the card was asked");
  EXPECT_EQ(claimed.abandoned().reason(), v1::Abandoned::REASON_LEASE_LAPSED);
  EXPECT_LT(claimed.abandoned().fencing_token(), claimed.fencing_token());

  EXPECT_EQ(WakeOwner(*owner), "finalize: CLAIM_SUPERSEDED");
  EXPECT_EQ(Evidence(key), "201\t1");
  const v1::FinalizeRequest finalize = FinalizeOf(second, 200, "the second's");
  EXPECT_EQ(Decided(Send(stub(), finalize)), "RESULT_RECORDED");
  EXPECT_THAT(MissingReplays(stub(), {{second, finalize.response()}}),
              IsEmpty());
}

TEST_F(OwnerPauseTest, StoppedOwnerStillRecordsWhereNobodyTookOver) {
  const std::string key = RandomKey();
  const auto owner = StartAndStopOwner(key, "", 201);
  WaitUntilAbandoned(ClaimOf(key));
  EXPECT_EQ(WakeOwner(*owner), "finalize: RESULT_RECORDED");
  EXPECT_EQ(Decided(Send(stub(), ClaimOf(key))), "Replay");
  EXPECT_EQ(Evidence(key), "");
}

TEST_F(OwnerPauseTest, PaymentIsInDoubtUntilSomebodyCanResolveIt) {
  const std::string key = RandomKey();
  const auto owner = StartAndStopOwner(key, "payment", 201);
  const v1::ClaimRequest second = ClaimOf(key, "payment");
  const auto doubt = ClaimPatiently(second_->stub(), second);
  ASSERT_EQ(Decided(doubt), "InDoubt");
  EXPECT_EQ(doubt->in_doubt().abandoned().attempt(), 1);
  EXPECT_EQ(doubt->in_doubt().abandoned().checkpoint(), "the card was asked");
  const std::string downstream = doubt->in_doubt().abandoned().downstream_key();
  EXPECT_EQ(downstream.size(), 36U);

  const v1::Claimed claimed = Granted(Resolving(second));
  EXPECT_EQ(claimed.attempt(), 2);
  EXPECT_EQ(claimed.abandoned().attempt(), 1);
  EXPECT_EQ(claimed.abandoned().reason(), v1::Abandoned::REASON_LEASE_LAPSED);
  EXPECT_EQ(claimed.downstream_key(), downstream);
  EXPECT_EQ(WakeOwner(*owner), "finalize: CLAIM_SUPERSEDED");
  EXPECT_EQ(Evidence(key), "201\t1");
}

TEST_F(OwnerPauseTest, OwnerThatIsBackInTimeEndsTheDoubt) {
  const std::string key = RandomKey();
  const auto owner = StartAndStopOwner(key, "payment", 201);
  const v1::ClaimRequest second = ClaimOf(key, "payment");
  ASSERT_EQ(Decided(ClaimPatiently(second_->stub(), second)), "InDoubt");
  EXPECT_EQ(WakeOwner(*owner), "finalize: RESULT_RECORDED");
  EXPECT_EQ(Decided(Send(stub(), Resolving(second))), "Replay");
}

TEST_F(OwnerPauseTest, SecondAttemptSpeaksForItselfOnly) {
  const v1::ClaimRequest first = [] {
    v1::ClaimRequest claim = ClaimFor(kLease, RandomKey(), "payment");
    claim.set_checkpoint("the card was asked");
    return claim;
  }();
  const v1::Claimed original = Granted(first);
  WaitUntilAbandoned(first);
  const v1::ClaimRequest second = Resolving(ByAnother(first));
  Granted(second);
  const auto released = Send(stub(), ReleaseOf(second, kNotExecuted));
  ASSERT_EQ(Decided(released), "released");
  EXPECT_EQ(released->state(), v1::Record::STATE_IN_DOUBT);
  EXPECT_EQ(Decided(Send(stub(), second)), "CLAIM_RELEASED");

  const auto doubt = Send(stub(), ByAnother(first));
  ASSERT_EQ(Decided(doubt), "InDoubt");
  EXPECT_EQ(doubt->in_doubt().abandoned().attempt(), 1);
  const v1::Claimed third = Granted(Resolving(ByAnother(first)));
  EXPECT_EQ(third.attempt(), 3);
  EXPECT_EQ(third.downstream_key(), original.downstream_key());
  EXPECT_EQ(third.abandoned().attempt(), 1);
  EXPECT_EQ(third.abandoned().fencing_token(), original.fencing_token());
  EXPECT_EQ(third.abandoned().checkpoint(), "the card was asked");
  EXPECT_EQ(third.abandoned().reason(), v1::Abandoned::REASON_LEASE_LAPSED);
}

TEST_F(OwnerPauseTest, LookingItUpFreesTheKeyWithANewDownstreamKey) {
  const v1::ClaimRequest first = ClaimFor(kLease, RandomKey(), "payment");
  const v1::Claimed original = Granted(first);
  WaitUntilAbandoned(first);
  const v1::ClaimRequest second = Resolving(ByAnother(first));
  Granted(second);
  EXPECT_EQ(Decided(Send(stub(), ReleaseOf(second, kNeverExecuted))),
            "released");
  const v1::Claimed third = Granted(ByAnother(first));
  EXPECT_EQ(third.attempt(), 3);
  EXPECT_FALSE(third.has_abandoned());
  EXPECT_NE(third.downstream_key(), original.downstream_key());
  EXPECT_EQ(Decided(Send(stub(), FinalizeOf(first, 201, "late"))),
            "CLAIM_SUPERSEDED");
}

TEST_F(OwnerPauseTest, UnknownOutcomeIsToldToTheNext) {
  const v1::ClaimRequest first = ClaimOf(RandomKey());
  Granted(first);
  ASSERT_EQ(Decided(Send(stub(), ReleaseOf(first, kOutcomeUnknown))),
            "released");
  const v1::Claimed second = Granted(ByAnother(first));
  EXPECT_EQ(second.abandoned().attempt(), 1);
  EXPECT_EQ(second.abandoned().reason(), v1::Abandoned::REASON_OUTCOME_UNKNOWN);
}

struct ServerErrorCase {
  const char* policy;
  const char* result;
};

class ServerErrorTest : public OwnerPauseTest,
                        public ::testing::WithParamInterface<ServerErrorCase> {
};

TEST_P(ServerErrorTest, TruthAfterATimeoutIsRecorded) {
  const v1::ClaimRequest first = ClaimOf(RandomKey(), GetParam().policy);
  Granted(first);
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_EQ(Decided(Send(stub(), FinalizeOf(first, 504, "no answer"))),
              GetParam().result);
  }
  EXPECT_EQ(Decided(Send(stub(), LookupOf(first))), "STATE_IN_DOUBT");
  const v1::FinalizeRequest truth = FinalizeOf(first, 201, "paid");
  EXPECT_EQ(Decided(Send(stub(), truth)), "RESULT_RECORDED");
  EXPECT_THAT(MissingReplays(stub(), {{first, truth.response()}}), IsEmpty());
  EXPECT_EQ(Evidence(first.key()), "");
}

TEST_P(ServerErrorTest, TruthAfterATakeoverIsRefused) {
  const v1::ClaimRequest first = ClaimOf(RandomKey(), GetParam().policy);
  Granted(first);
  EXPECT_EQ(Decided(Send(stub(), FinalizeOf(first, 504, "no answer"))),
            GetParam().result);
  const v1::ClaimRequest second = Resolving(ByAnother(first));
  const v1::Claimed claimed = Granted(second);
  EXPECT_EQ(claimed.attempt(), 2);
  EXPECT_EQ(claimed.abandoned().reason(), v1::Abandoned::REASON_SERVER_ERROR);
  EXPECT_EQ(claimed.abandoned().status_code(), 504);
  EXPECT_EQ(Decided(Send(stub(), FinalizeOf(first, 201, "paid"))),
            "CLAIM_SUPERSEDED");
  EXPECT_EQ(Evidence(first.key()), "201\t1");
  EXPECT_EQ(Decided(Send(stub(), FinalizeOf(second, 200, "found"))),
            "RESULT_RECORDED");
}

INSTANTIATE_TEST_SUITE_P(
    Policies, ServerErrorTest,
    ::testing::Values(ServerErrorCase{"default", "RESULT_RELEASED"},
                      ServerErrorCase{"payment", "RESULT_IN_DOUBT"}),
    [](const auto& info) { return std::string(info.param.policy); });

}  // namespace
}  // namespace idempotency
