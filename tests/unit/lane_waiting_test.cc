// Claims that wait for another owner's end: who is answered what, and when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/core/waiters.h"
#include "tests/unit/waiting_fixture.h"

namespace idempotency {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Le;

// The owner holds the key; a waiter on the same or the other replica waits.
class WaiterTest : public WaitingTest {
 protected:
  void LetOwnerHold(const Asked& asked = {}) {
    Claim(0, "owner", asked);
    RunLanes();
    ASSERT_EQ(OutcomeOf("owner"), "Claimed");
  }
  void LetWait(std::size_t replica, const std::string& name, Asked asked) {
    if (asked.wait.count() == 0) asked.wait = seconds(60);
    Claim(replica, name, asked);
    RunLanes();
    ASSERT_EQ(OutcomeOf(name), "none yet");
  }
};

TEST_F(WaiterTest, SameReplicaWaiterIsWokenAtOnce) {
  LetOwnerHold();
  LetWait(0, "waiter", {.token = 2});
  Pass(milliseconds(3'217));
  Finalize(0);
  RunLanes();
  EXPECT_EQ(OutcomeOf("waiter"), "Replay");
  EXPECT_EQ(TimeOf("waiter"), milliseconds(3'217));
}

TEST_F(WaiterTest, WaiterOnAnotherReplicaLearnsOfTheEndByALook) {
  LetOwnerHold();
  LetWait(1, "waiter", {.token = 2});
  Pass(milliseconds(80));
  Finalize(0);
  Pass(seconds(1));
  EXPECT_EQ(OutcomeOf("waiter"), "Replay");
  EXPECT_THAT(TimeOf("waiter"), AllOf(Ge(milliseconds(80)),
                                      Le(milliseconds(80) + kLookIntervalMin)));
}

TEST_F(WaiterTest, OneWaiterIsGrantedAfterAReleaseAndTheOthersWaitOn) {
  LetOwnerHold();
  for (int i = 2; i < 6; ++i) {
    LetWait(0, "waiter " + std::to_string(i), {.token = i});
  }
  Release(0, Disposition::kNeverExecuted);
  Pass(milliseconds(20));
  EXPECT_EQ(OutcomeOf("waiter 2"), "Claimed") << "the one who came first";
  EXPECT_EQ(waiting(), 3u);
  Finalize(0, "key", 2);
  Pass(milliseconds(20));
  for (int i = 3; i < 6; ++i) {
    EXPECT_EQ(OutcomeOf("waiter " + std::to_string(i)), "Replay");
  }
}

TEST_F(WaiterTest, WaitEndsWithInProgress) {
  LetOwnerHold();
  LetWait(0, "waiter", {.token = 2, .wait = milliseconds(2'345)});
  Pass(milliseconds(2'344));
  EXPECT_EQ(OutcomeOf("waiter"), "none yet");
  Pass(milliseconds(1));
  ASSERT_EQ(OutcomeOf("waiter"), "InProgress");
  EXPECT_EQ(std::get<InProgress>(*answers_["waiter"].claim).lease_left,
            absl::Seconds(30) - absl::Milliseconds(2'345));
  EXPECT_EQ(waiting(), 0u);
}

TEST_F(WaiterTest, WaitEndsAMomentBeforeTheDeadline) {
  LetOwnerHold();
  LetWait(1, "waiter", {.token = 2, .timeout = seconds(2)});
  Pass(seconds(2));
  EXPECT_EQ(OutcomeOf("waiter"), "InProgress");
  EXPECT_EQ(TimeOf("waiter"), milliseconds(1'900));
}

TEST_F(WaiterTest, WaitCountsAsOneAnswer) {
  LetOwnerHold();
  LetWait(0, "ends", {.token = 2, .wait = seconds(1)});
  LetWait(0, "is told", {.token = 3});
  LetWait(0, "follows", {.token = 4});
  Pass(seconds(2));
  Finalize(0);
  RunLanes();
  EXPECT_EQ(OutcomeOf("follows"), "Replay");
  const auto& claims = At(0).metrics.policies.At("default").claims;
  EXPECT_EQ(claims[ClaimResult::kInProgress], 1u);
  EXPECT_EQ(claims[ClaimResult::kReplay], 2u);
}

TEST_F(WaiterTest, LapsedLeaseIsTakenOverAndTheNewOwnerIsTold) {
  LetOwnerHold({.lease = absl::Milliseconds(1'700)});
  LetWait(0, "first", {.token = 2});
  LetWait(1, "elsewhere", {.token = 3});
  Pass(seconds(2));
  ASSERT_EQ(OutcomeOf("first"), "Claimed");
  EXPECT_EQ(TimeOf("first"), milliseconds(1'700));
  const Claimed claimed = std::get<Claimed>(*answers_["first"].claim);
  ASSERT_TRUE(claimed.abandoned.has_value());
  EXPECT_EQ(claimed.abandoned->reason, AbandonReason::kLeaseLapsed);
  EXPECT_EQ(OutcomeOf("elsewhere"), "none yet") << "there is another owner";
}

TEST_F(WaiterTest, RenewedLeaseKeepsTheWaitersWaiting) {
  LetOwnerHold({.lease = absl::Seconds(2)});
  LetWait(0, "waiter", {.token = 2});
  LetWait(1, "elsewhere", {.token = 3});
  for (int i = 0; i < 5; ++i) {
    Pass(seconds(1));
    Claim(0, "renewal " + std::to_string(i), {.lease = absl::Seconds(2)});
  }
  Pass(milliseconds(1'900));
  EXPECT_EQ(waiting(), 2u);
  Pass(milliseconds(200));
  EXPECT_EQ(waiting(), 1u) << "one of them took over";
}

TEST_F(WaiterTest, HeldRecordsWaitersAreToldInDoubt) {
  LetOwnerHold({.policy = "held"});
  LetWait(0, "waiter", {.token = 2});
  LetWait(0, "resolves", {.token = 3, .resolve_in_doubt = true});
  LetWait(0, "late", {.token = 4});
  Release(0, Disposition::kOutcomeUnknown);
  Pass(milliseconds(20));
  EXPECT_EQ(OutcomeOf("waiter"), "InDoubt");
  EXPECT_EQ(OutcomeOf("resolves"), "Claimed");
  EXPECT_EQ(OutcomeOf("late"), "none yet") << "the resolver is at work";
}

// Claimed anew by another request between two looks, which only the newcomer
// knows of.
TEST_F(WaiterTest, WaiterIsToldThatTheKeyNowHasAnotherRequest) {
  LetOwnerHold();
  LetWait(1, "waiter", {.token = 2});
  Pass(seconds(20));
  Release(0, Disposition::kNeverExecuted);
  Claim(0, "other", {.token = 3, .hash = "another request"});
  RunLanes();
  LetWait(1, "newcomer", {.token = 4, .hash = "another request"});
  Pass(seconds(2));
  EXPECT_EQ(OutcomeOf("waiter"), "Mismatch");
  EXPECT_EQ(OutcomeOf("newcomer"), "none yet");
}

TEST_F(WaiterTest, WhoLearnsOfTheEndFirstWakesTheOthers) {
  LetOwnerHold();
  LetWait(1, "waiter", {.token = 2});
  Pass(seconds(20));
  Finalize(0);
  RunLanes();
  EXPECT_EQ(OutcomeOf("waiter"), "none yet");
  Claim(1, "newcomer", {.token = 3});
  RunLanes();
  EXPECT_EQ(OutcomeOf("newcomer"), "Replay");
  EXPECT_EQ(OutcomeOf("waiter"), "Replay");
}

TEST_F(WaiterTest, CancelledWaiterVanishes) {
  LetOwnerHold();
  bool gone = false;
  LetWait(0, "waiter", {.token = 2, .cancelled = [&] { return gone; }});
  Pass(seconds(1));
  EXPECT_EQ(waiting(), 1u);
  gone = true;
  Pass(milliseconds(100));
  EXPECT_EQ(waiting(), 0u);
  EXPECT_EQ(OutcomeOf("waiter"), "CANCELLED: the caller has gone");
  const int looks = Sent(MemoryStatement::kFindChanged);
  Pass(seconds(10));
  EXPECT_EQ(Sent(MemoryStatement::kFindChanged), looks);
}

TEST_F(WaiterTest, DrainingReplicaAnswersItsWaitersAtOnce) {
  LetOwnerHold();
  LetWait(0, "waiter", {.token = 2});
  Claim(0, "queued", {.token = 3, .wait = seconds(60)});
  At(0).engine->StopAccepting();
  EXPECT_FALSE(At(0).engine->idle());
  RunLanes();
  EXPECT_EQ(OutcomeOf("waiter"), "InProgress");
  EXPECT_EQ(OutcomeOf("queued"), "InProgress");
  EXPECT_TRUE(At(0).engine->idle());
}

// The owner's Finalize is with the lane for calls that met a lock, and comes to
// its end while the stopped lane answers its queue.
TEST_F(WaiterTest, WakingTheWaitersOfAStoppedLaneLosesNone) {
  LetOwnerHold();
  LetWait(0, "waiter", {.token = 2});
  trouble_ = [](MemoryStatement, StatementPhase) {
    return absl::AbortedError("a lock");
  };
  Finalize(0);
  const std::vector<Lane*> lanes = At(0).engine->lanes();
  lanes.front()->RunBatch();
  trouble_ = nullptr;
  ASSERT_EQ(lanes.back()->queued(), 1u);
  At(0).engine->Submit(
      LookupCommand{.id = {"scope", "other"}}, {},
      [&](const absl::StatusOr<LookupOutcome>&) { lanes.back()->RunBatch(); });
  lanes.front()->Stop();
  lanes.front()->RunBatch();
  EXPECT_EQ(OutcomeOf("finalize"), "ok");
  EXPECT_EQ(OutcomeOf("waiter"), "InProgress");
  EXPECT_TRUE(At(0).engine->idle());
}

TEST_F(WaiterTest, WhoWouldWaitBeyondTheBoundIsAnsweredAtOnce) {
  options_.waiters_max = 2;
  LetOwnerHold();
  LetWait(0, "one", {.token = 2});
  LetWait(0, "two", {.token = 3});
  Claim(0, "three", {.token = 4, .wait = seconds(60)});
  RunLanes();
  EXPECT_EQ(OutcomeOf("three"), "InProgress");
  EXPECT_EQ(waiting(), 2u);
}

TEST_F(WaiterTest, WokenCrowdTakesNoRoomFromOtherKeys) {
  options_.queue_items_max = 4;
  options_.waiters_max = 6;
  LetOwnerHold();
  for (int i = 0; i < 6; ++i) {
    LetWait(0, "waiter " + std::to_string(i), {.token = i + 2});
    Pass(limits::kCrowdPause);
  }
  Finalize(0);
  Lane& lane = *At(0).engine->lanes().front();
  lane.RunBatch();
  ASSERT_EQ(lane.queued(), 6u);
  for (int i = 0; i < 5; ++i) {
    Claim(0, "other " + std::to_string(i), {.key = std::to_string(i)});
  }
  EXPECT_EQ(OutcomeOf("other 4"), "OVERLOADED") << "the bound still holds";
  RunLanes();
  EXPECT_EQ(OutcomeOf("other 3"), "Claimed");
  EXPECT_EQ(OutcomeOf("waiter 5"), "Replay");
  for (int i = 0; i < 5; ++i) {
    Claim(0, "again " + std::to_string(i),
          {.key = "again" + std::to_string(i)});
  }
  EXPECT_EQ(OutcomeOf("again 4"), "OVERLOADED") << "no more than before";
}

TEST_F(WaiterTest, WaitersOutlastAStoreThatIsAway) {
  LetOwnerHold();
  LetWait(1, "short", {.token = 2, .wait = seconds(5)});
  LetWait(1, "long", {.token = 3});
  Finalize(0);
  RunLanes();
  trouble_ = [](MemoryStatement, StatementPhase) {
    return absl::UnavailableError("connection refused");
  };
  Pass(seconds(10));
  EXPECT_EQ(OutcomeOf("short"), "InProgress");
  EXPECT_EQ(TimeOf("short"), milliseconds(5'000));
  EXPECT_EQ(OutcomeOf("long"), "none yet");
  trouble_ = nullptr;
  Pass(seconds(2));
  EXPECT_EQ(OutcomeOf("long"), "Replay");
}

// A connection that broke without a word is given up after seconds.
TEST_F(WaiterTest, LookThatTookLongPutsTheNextOneOffByASecondAtMost) {
  LetOwnerHold({.lease = absl::Seconds(9)});
  LetWait(1, "waiter", {.token = 2});
  trouble_ = [this](MemoryStatement statement, StatementPhase) {
    if (statement != MemoryStatement::kFindChanged) return absl::OkStatus();
    trouble_ = nullptr;
    PassOnly(seconds(7));
    return absl::UnavailableError("the connection was lost");
  };
  Pass(seconds(20));
  EXPECT_EQ(OutcomeOf("waiter"), "Claimed");
  EXPECT_THAT(TimeOf("waiter"),
              AllOf(Ge(seconds(9)), Le(seconds(9) + kLookIntervalMin)));
}

TEST_F(WaiterTest, WaitersAskByThemselvesWhereTheStoreRefusesToLook) {
  LetOwnerHold();
  LetWait(1, "waiter", {.token = 2});
  trouble_ = [](MemoryStatement statement, StatementPhase) {
    return statement == MemoryStatement::kFindChanged
               ? absl::InternalError("SQLSTATE 0A000")
               : absl::OkStatus();
  };
  Pass(seconds(10));
  EXPECT_LE(Sent(MemoryStatement::kRead), 60) << "no more often than it looks";
  Finalize(0);
  Pass(seconds(2));
  EXPECT_EQ(OutcomeOf("waiter"), "Replay");
  EXPECT_THAT(log_.lines(), ::testing::SizeIs(1));
}

TEST_F(WaiterTest, WokenWaiterNearItsDeadlineIsPutIntoNoStatement) {
  LetOwnerHold();
  LetWait(0, "waiter", {.token = 2, .timeout = seconds(2)});
  Pass(milliseconds(1'850));
  Finalize(0);
  At(0).engine->lanes().front()->RunBatch();
  ASSERT_EQ(OutcomeOf("finalize"), "ok");
  const int reads = Sent(MemoryStatement::kRead);
  // The lane is late.
  PassOnly(milliseconds(60));
  RunLanes();
  EXPECT_EQ(OutcomeOf("waiter"), "InProgress");
  EXPECT_EQ(Sent(MemoryStatement::kRead), reads);
}

// It may have been granted: InProgress would be a lie.
TEST_F(WaiterTest, WokenWaiterWhoseAnswerIsLostIsToldSo) {
  LetOwnerHold();
  LetWait(0, "waiter", {.token = 2, .timeout = seconds(5)});
  Release(0, Disposition::kNeverExecuted);
  At(0).engine->lanes().front()->RunBatch();
  ASSERT_EQ(OutcomeOf("release"), "ok");
  trouble_ = [](MemoryStatement statement, StatementPhase phase) {
    if (statement == MemoryStatement::kRead) return absl::OkStatus();
    if (phase == StatementPhase::kBefore &&
        statement == MemoryStatement::kReplace) {
      return absl::OkStatus();
    }
    return absl::UnknownError("the reply was lost");
  };
  Pass(seconds(6));
  EXPECT_EQ(OutcomeOf("waiter"), "OUTCOME_UNKNOWN");
}

TEST_F(WaiterTest, EndThatIsSetAsideWakesToo) {
  LetOwnerHold();
  LetWait(0, "waiter", {.token = 2});
  int locks = 1;
  trouble_ = [&](MemoryStatement statement, StatementPhase) {
    return statement == MemoryStatement::kFinalizeOwned && locks-- > 0
               ? absl::AbortedError("a lock")
               : absl::OkStatus();
  };
  Finalize(0);
  const SteadyTime before = clock_.Now();
  RunLanes();
  EXPECT_EQ(OutcomeOf("finalize"), "ok");
  EXPECT_EQ(OutcomeOf("waiter"), "Replay");
  EXPECT_EQ(clock_.Now(), before);
}

TEST_F(WaiterTest, ClaimThatIsSetAsideWaitsAtHome) {
  LetOwnerHold();
  int locks = 1;
  trouble_ = [&](MemoryStatement statement, StatementPhase) {
    return statement == MemoryStatement::kInsertNew && locks-- > 0
               ? absl::AbortedError("a lock")
               : absl::OkStatus();
  };
  LetWait(0, "waiter", {.token = 2});
  EXPECT_EQ(waiting(), 1u);
  Finalize(0);
  RunLanes();
  EXPECT_EQ(OutcomeOf("waiter"), "Replay");
}

// ---- What it costs.

TEST_F(WaiterTest, TenThousandWaitersOfAKeyShareEveryStatement) {
  constexpr int kWaiters = 10'000;
  LetOwnerHold();
  for (int i = 0; i < kWaiters; ++i) {
    Claim(1, std::to_string(i), {.token = i + 2, .wait = seconds(60)});
  }
  Pass(seconds(10));
  EXPECT_EQ(waiting(), kWaiters);
  Finalize(0);
  Pass(seconds(2));
  EXPECT_EQ(waiting(), 0u);
  EXPECT_EQ(OutcomeOf("0"), "Replay");
  EXPECT_EQ(OutcomeOf("9999"), "Replay");
  EXPECT_LE(Sent(MemoryStatement::kFindChanged), 50);
  EXPECT_LE(Sent(MemoryStatement::kRead), 3);
  EXPECT_LE(Sent(MemoryStatement::kInsertNew), 2);
}

TEST_F(WaiterTest, KeysThatAreWaitedForShareTheLooks) {
  constexpr int kKeys = 2'000;
  for (int i = 0; i < kKeys; ++i) {
    const std::string key = "key " + std::to_string(i);
    Claim(0, "owner of " + key, {.key = key, .lease = absl::Hours(1)});
    RunLanes();
    Claim(1, "waiter of " + key, {.key = key, .token = 2, .wait = seconds(60)});
  }
  Pass(seconds(20));
  const int before = Sent(MemoryStatement::kFindChanged);
  Pass(seconds(10));
  EXPECT_EQ(waiting(), kKeys);
  const int a_second = (Sent(MemoryStatement::kFindChanged) - before) / 10;
  EXPECT_THAT(a_second, AllOf(Ge(kKeys / 512), Le(kKeys / 512 + 2)));
}

}  // namespace
}  // namespace idempotency
