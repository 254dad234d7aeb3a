// While the function runs: the lease, the permission, the checkpoints.

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "client/once_machine.h"
#include "tests/unit/once_fixture.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

using OnceLeaseTest = OnceMachineTest;

// ----------------------------------------------------- lease and permission

TEST_F(OnceLeaseTest, ThePermissionIsCountedFromBeforeTheClaimWasSent) {
  Make(TheOperation());
  const TimePoint sent = now_;
  Start();
  Next<SendClaim>();
  Pass(seconds(4));
  Claimed(ClaimedFor(kLease));
  Next<RunFunction>();
  now_ = sent + kLease - nanoseconds(1);
  EXPECT_TRUE(permitted());
  now_ = sent + kLease;
  EXPECT_FALSE(permitted());
}

TEST_F(OnceLeaseTest, TheLeaseIsRenewedWhenAThirdOfItIsOver) {
  RunGranted();
  EXPECT_EQ(machine_->wake_at(), now_ + kLease / 3);
  ASSERT_TRUE(Wake());
  const SendRenewal renewal = Next<SendRenewal>();
  EXPECT_EQ(renewal.request.scope(), "payments");
  EXPECT_EQ(renewal.request.key(), "key");
  EXPECT_EQ(renewal.request.request_hash(), TheOperation().request_hash);
  EXPECT_EQ(renewal.request.claim_token(), kToken);
  EXPECT_EQ(renewal.request.renew_fencing_token(), 41);
  EXPECT_FALSE(renewal.request.has_lease());
  EXPECT_FALSE(renewal.request.has_wait());
  EXPECT_FALSE(renewal.request.has_checkpoint());
  // One at a time.
  Pass(seconds(1));
  TimePasses();
  EXPECT_TRUE(NothingToDo());
}

TEST_F(OnceLeaseTest, ARenewalExtendsThePermissionFromItsSending) {
  RunGranted();
  ASSERT_TRUE(Wake());
  const TimePoint sent = now_;
  Next<SendRenewal>();
  Pass(seconds(2));
  Renewed(ClaimedFor(kLease));
  EXPECT_TRUE(NothingToDo());
  EXPECT_EQ(machine_->wake_at(), sent + kLease / 3);
  now_ = sent + kLease - nanoseconds(1);
  EXPECT_TRUE(permitted());
  now_ = sent + kLease;
  EXPECT_FALSE(permitted());
}

// The database's clock was set forward: others may take over sooner than an
// earlier answer said.
TEST_F(OnceLeaseTest, ALeaseThatEndsSoonerThanWasToldEndsThePermission) {
  RunGranted();
  ASSERT_TRUE(Wake());
  Next<SendRenewal>();
  Pass(milliseconds(20));
  Renewed(ClaimedFor(milliseconds(100)));
  const TimePoint answered = now_;
  now_ = answered + milliseconds(100) - nanoseconds(1);
  EXPECT_TRUE(permitted());
  now_ = answered + milliseconds(100 + 20);
  EXPECT_FALSE(permitted());
}

// What is left is counted from the sending, so that a slow answer seems to tell
// of less.
TEST_F(OnceLeaseTest, ASlowAnswerToARenewalShortensNothing) {
  RunGranted();
  const TimePoint end = now_ + kLease;
  ASSERT_TRUE(Wake());
  Next<SendRenewal>();
  Pass(seconds(1));
  Renewed(ClaimedFor(end - now_ + milliseconds(10)));
  now_ = end - nanoseconds(1);
  EXPECT_TRUE(permitted());
}

TEST_F(OnceLeaseTest, ARefusedRenewalWithdrawsThePermissionForGood) {
  const std::vector<absl::StatusOr<v1::ClaimResponse>> refusals = {
      Superseded(),
      ServiceError(absl::StatusCode::kFailedPrecondition, "CLAIM_RELEASED"),
      ServiceError(absl::StatusCode::kNotFound, "RECORD_NOT_FOUND"),
      ReplayOf(ResponseOf(200, "another's")), InProgressFor(seconds(1))};
  for (const auto& refusal : refusals) {
    RunGranted();
    ASSERT_TRUE(Wake());
    Next<SendRenewal>();
    Renewed(refusal);
    NextBesideCheckpoints<Withdraw>();
    EXPECT_FALSE(permitted());
    EXPECT_TRUE(HasEnded()) << "no renewal follows a refused one";
    Pass(kLease);
    TimePasses();
    EXPECT_TRUE(NothingToDo());
    EXPECT_FALSE(permitted());
    // Its end is told all the same: a refusal is evidence.
    FunctionEnds(Executed{ResponseOf(200, "own")});
    NextBesideCheckpoints<SendFinalize>();
  }
}

TEST_F(OnceLeaseTest, AnUnansweredRenewalIsSentAgainSoon) {
  RunGranted();
  ASSERT_TRUE(Wake());
  Next<SendRenewal>();
  Renewed(Overloaded());
  EXPECT_TRUE(permitted());
  EXPECT_EQ(machine_->wake_at(), now_ + kLease / 20);
  ASSERT_TRUE(Wake());
  Next<SendRenewal>();
  Renewed(ClaimedFor(kLease));
  EXPECT_EQ(machine_->wake_at(), now_ + kLease / 3);
}

TEST_F(OnceLeaseTest, ANewerServersAnswerToARenewalIsNoRefusal) {
  RunGranted();
  ASSERT_TRUE(Wake());
  Next<SendRenewal>();
  Renewed(v1::ClaimResponse());
  EXPECT_TRUE(permitted());
  ASSERT_TRUE(Wake());
  Next<SendRenewal>();
}

TEST_F(OnceLeaseTest, ARenewalThatHangsLeavesTimeForTwoMore) {
  RunGranted();
  const TimePoint end = now_ + kLease;
  int renewals = 0;
  while (Wake() && NextIs<SendRenewal>()) {
    Pass(Next<SendRenewal>().timeout);
    if (now_ < end) ++renewals;
    Renewed(NoAnswer());
  }
  EXPECT_EQ(renewals, 3);
}

TEST_F(OnceLeaseTest, ARenewalOfALongLeaseTakesNoLongerThanAClaimMay) {
  Operation operation = TheOperation();
  operation.claim_timeout = milliseconds(1500);
  RunGranted(operation);
  ASSERT_TRUE(Wake());
  EXPECT_LE(Next<SendRenewal>().timeout, milliseconds(1501));
}

TEST_F(OnceLeaseTest, ThePermissionEndsWithTheLease) {
  RunGranted();
  ASSERT_TRUE(Wake());
  Next<SendRenewal>();
  EXPECT_EQ(machine_->wake_at(), now_ - kLease / 3 + kLease);
  ASSERT_TRUE(Wake());
  Next<Withdraw>();
  EXPECT_FALSE(permitted());
  EXPECT_TRUE(HasEnded());
}

TEST_F(OnceLeaseTest, AnAnswerAfterTheLeasesEndGivesNoPermissionBack) {
  RunGranted();
  ASSERT_TRUE(Wake());
  Next<SendRenewal>();
  // The process stood still: no timer told of the lease's end.
  Pass(kLease);
  EXPECT_FALSE(permitted());
  Renewed(ClaimedFor(2 * kLease));
  Next<Withdraw>();
  EXPECT_FALSE(permitted());
}

TEST_F(OnceLeaseTest, OthersAreKeptAwayAlsoAfterThePermissionIsGone) {
  RunGranted();
  ASSERT_TRUE(Wake());
  Next<SendRenewal>();
  Pass(kLease);
  TimePasses();
  Next<Withdraw>();
  Renewed(NoAnswer());
  ASSERT_TRUE(Wake());
  Next<SendRenewal>();
  Renewed(ClaimedFor(kLease));
  EXPECT_FALSE(permitted());
  EXPECT_EQ(machine_->wake_at(), now_ + kLease / 3);
}

TEST_F(OnceLeaseTest, TheRunTimeIsTenLeases) {
  RunGranted();
  const TimePoint start = now_;
  const TimePoint end = start + 10 * kLease;
  TimePoint lease_ends = start + kLease;
  while (!NextIs<Withdraw>()) {
    ASSERT_TRUE(Wake());
    if (!NextIs<SendRenewal>()) continue;
    const SendRenewal renewal = Next<SendRenewal>();
    const nanoseconds lease = renewal.request.has_lease()
                                  ? NanosecondsOf(renewal.request.lease())
                                  : kLease;
    lease_ends = now_ + lease;
    EXPECT_LE(lease_ends, end);
    Renewed(ClaimedFor(lease));
  }
  EXPECT_EQ(lease_ends, end);
  EXPECT_EQ(now_, end);
}

TEST_F(OnceLeaseTest, ARunTimeBelowTheLeaseNeedsNoRenewal) {
  Operation operation = TheOperation();
  operation.max_run_time = kLease;
  RunGranted(operation);
  ASSERT_TRUE(Wake());
  Next<Withdraw>();
}

TEST_F(OnceLeaseTest, NoRenewalIsTriedBeyondTheRunTime) {
  Operation operation = TheOperation();
  operation.max_run_time = 2 * kLease;
  RunGranted(operation);
  const TimePoint end = now_ + 2 * kLease;
  while (Wake()) {
    if (NextIs<Withdraw>()) Next<Withdraw>();
    if (!NextIs<SendRenewal>()) continue;
    Next<SendRenewal>();
    EXPECT_LT(now_, end);
    Renewed(Overloaded());
  }
  EXPECT_TRUE(HasEnded());
  FunctionEnds(Executed{ResponseOf(200, "late")});
  NextBesideCheckpoints<SendFinalize>();
}

TEST_F(OnceLeaseTest, WithoutRenewingThePermissionLastsForOneLease) {
  Operation operation = TheOperation();
  operation.renew = false;
  RunGranted(operation);
  EXPECT_EQ(machine_->wake_at(), now_ + kLease);
  ASSERT_TRUE(Wake());
  Next<Withdraw>();
  EXPECT_TRUE(HasEnded());
}

TEST_F(OnceLeaseTest, ARenewalAnsweredAfterTheFunctionsEndChangesNothing) {
  for (const bool refused : {false, true}) {
    RunGranted();
    ASSERT_TRUE(Wake());
    Next<SendRenewal>();
    FunctionEnds(Executed{ResponseOf(200, "done")});
    NextBesideCheckpoints<SendFinalize>();
    EXPECT_FALSE(permitted());
    if (refused) {
      Renewed(Superseded());
    } else {
      Renewed(ClaimedFor(kLease));
    }
    EXPECT_TRUE(NothingToDo()) << "only the answer to Finalize is waited for";
  }
}

TEST_F(OnceLeaseTest, ARenewalAnsweredAfterTheEndChangesNothing) {
  RunGranted();
  ASSERT_TRUE(Wake());
  Next<SendRenewal>();
  FunctionEnds(Executed{ResponseOf(200, "done")});
  NextBesideCheckpoints<SendFinalize>();
  Finalized(v1::FinalizeResponse::RESULT_RECORDED);
  Next<Deliver>();
  Next<End>();
  Renewed(Superseded());
  EXPECT_TRUE(HasEnded());
}

// --------------------------------------------------------------- checkpoints

TEST_F(OnceLeaseTest, ACheckpointIsStoredAtOnceWithARenewal) {
  RunGranted();
  EXPECT_EQ(Save("half"), 1);
  const SendRenewal renewal = Next<SendRenewal>();
  EXPECT_EQ(renewal.request.checkpoint(), "half");
  EXPECT_EQ(renewal.request.checkpoint_number(), 1);
  EXPECT_EQ(renewal.request.renew_fencing_token(), 41);
  EXPECT_FALSE(renewal.request.has_lease());
  Renewed(ClaimedFor(kLease));
  const CheckpointStored stored = Next<CheckpointStored>();
  EXPECT_EQ(stored.number, 1);
  EXPECT_TRUE(stored.status.ok());
  EXPECT_TRUE(NothingToDo());
}

TEST_F(OnceLeaseTest, AnEmptyCheckpointIsStored) {
  RunGranted();
  Save("");
  EXPECT_TRUE(Next<SendRenewal>().request.has_checkpoint());
}

TEST_F(OnceLeaseTest, OfCheckpointsThatWaitTheLatestIsStoredAndAnswersAll) {
  RunGranted();
  Save("1");
  Next<SendRenewal>();
  Save("2");
  EXPECT_EQ(Save("3"), 3);
  EXPECT_TRUE(NothingToDo());
  Renewed(ClaimedFor(kLease));
  EXPECT_EQ(Next<CheckpointStored>().number, 1);
  const SendRenewal renewal = Next<SendRenewal>();
  EXPECT_EQ(renewal.request.checkpoint(), "3");
  EXPECT_EQ(renewal.request.checkpoint_number(), 3);
  Renewed(ClaimedFor(kLease));
  EXPECT_EQ(Next<CheckpointStored>().number, 3);
  EXPECT_TRUE(NothingToDo());
}

TEST_F(OnceLeaseTest, ARenewalUnderWayIsNoAnswerToALaterCheckpoint) {
  RunGranted();
  ASSERT_TRUE(Wake());
  EXPECT_FALSE(Next<SendRenewal>().request.has_checkpoint());
  Save("1");
  EXPECT_TRUE(NothingToDo());
  Renewed(ClaimedFor(kLease));
  EXPECT_EQ(Next<SendRenewal>().request.checkpoint(), "1");
}

TEST_F(OnceLeaseTest, ACheckpointThatIsNotAnsweredIsSentAgainButNotAtOnce) {
  RunGranted();
  const TimePoint end = now_ + kLease;
  Save("1");
  int renewals = 0;
  while (NextIs<SendRenewal>()) {
    EXPECT_EQ(Next<SendRenewal>().request.checkpoint(), "1");
    ++renewals;
    const TimePoint answered = now_;
    Renewed(Overloaded());
    ASSERT_TRUE(Wake());
    EXPECT_GE(now_, std::min(answered + kLease / 20, end));
  }
  EXPECT_LE(renewals, 20);
  EXPECT_EQ(now_, end);
  const CheckpointStored stored = Next<CheckpointStored>();
  EXPECT_EQ(stored.number, 1);
  EXPECT_EQ(stored.status.code(), absl::StatusCode::kUnavailable);
  Next<Withdraw>();
}

TEST_F(OnceLeaseTest, ACheckpointDuringThePauseWaitsForItsEnd) {
  RunGranted();
  ASSERT_TRUE(Wake());
  Next<SendRenewal>();
  Renewed(Overloaded());
  Save("1");
  EXPECT_TRUE(NothingToDo());
  EXPECT_EQ(machine_->wake_at(), now_ + kLease / 20);
}

TEST_F(OnceLeaseTest, ThePauseAfterARenewalThatFailedIsShortHoweverLongALease) {
  Make(TheOperation());
  Start();
  Next<SendClaim>();
  Claimed(ClaimedFor(std::chrono::hours(24)));
  Next<RunFunction>();
  Save("x");
  Next<SendRenewal>();
  Renewed(NoAnswer());
  ASSERT_TRUE(machine_->wake_at().has_value());
  EXPECT_LE(*machine_->wake_at(), now_ + seconds(2));
}

TEST_F(OnceLeaseTest, ARefusedCheckpointLosesNoClaim) {
  RunGranted();
  Save("1");
  Next<SendRenewal>();
  Renewed(ServiceError(absl::StatusCode::kInvalidArgument, "INVALID_FIELD"));
  const CheckpointStored stored = Next<CheckpointStored>();
  EXPECT_EQ(stored.number, 1);
  EXPECT_EQ(stored.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(permitted());
  ASSERT_TRUE(Wake());
  EXPECT_FALSE(Next<SendRenewal>().request.has_checkpoint());
}

TEST_F(OnceLeaseTest, ALostClaimAnswersEveryCheckpoint) {
  RunGranted();
  Save("1");
  Next<SendRenewal>();
  Save("2");
  Renewed(Superseded());
  const CheckpointStored stored = Next<CheckpointStored>();
  EXPECT_EQ(stored.number, 2);
  EXPECT_EQ(stored.status, Superseded());
  Next<Withdraw>();
  EXPECT_EQ(Save("3"), 3);
  EXPECT_EQ(Next<CheckpointStored>().number, 3);
  EXPECT_TRUE(HasEnded());
}

TEST_F(OnceLeaseTest, TheFunctionsEndAnswersEveryCheckpoint) {
  RunGranted();
  Save("1");
  Next<SendRenewal>();
  FunctionEnds(Executed{ResponseOf(200, "done")});
  const CheckpointStored stored = Next<CheckpointStored>();
  EXPECT_EQ(stored.number, 1);
  EXPECT_EQ(stored.status.code(), absl::StatusCode::kCancelled);
  Next<SendFinalize>();
  Save("2");
  EXPECT_EQ(Next<CheckpointStored>().status.code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(NothingToDo());
}

TEST_F(OnceLeaseTest, WithoutRenewingACheckpointExtendsNothing) {
  Operation operation = TheOperation();
  operation.renew = false;
  RunGranted(operation);
  const TimePoint end = now_ + kLease;
  Pass(seconds(1));
  Save("1");
  const SendRenewal renewal = Next<SendRenewal>();
  EXPECT_EQ(NanosecondsOf(renewal.request.lease()), milliseconds(100));
  Renewed(ClaimedFor(end - now_));
  Next<CheckpointStored>();
  EXPECT_EQ(machine_->wake_at(), end);
}

TEST_F(OnceLeaseTest, TheLastCheckpointGetsNoLeaseBeyondTheRunTime) {
  Operation operation = TheOperation();
  operation.max_run_time = kLease + seconds(3);
  RunGranted(operation);
  const TimePoint end = now_ + kLease + seconds(3);
  Pass(seconds(5));
  Save("1");
  EXPECT_EQ(NanosecondsOf(Next<SendRenewal>().request.lease()), end - now_);
}

// --------------------------------------------------------------------- timers

// Whatever the calls answer: to be woken is to have something done, or a later
// time to be woken at.
TEST_F(OnceLeaseTest, EveryWakingMakesProgress) {
  const std::vector<absl::StatusOr<v1::ClaimResponse>> answers = {
      ClaimedFor(kLease), ClaimedFor(nanoseconds(1)),
      ClaimedFor(nanoseconds(0)), Overloaded(), NoAnswer()};
  for (const auto& answer : answers) {
    for (const bool renew : {true, false}) {
      Operation operation = TheOperation();
      operation.renew = renew;
      operation.max_run_time = 2 * kLease;
      RunGranted(operation);
      int saves = 0;
      int wakings = 0;
      for (; wakings < 1000; ++wakings) {
        const auto before = machine_->wake_at();
        if (!Wake()) break;
        const auto after = machine_->wake_at();
        EXPECT_TRUE(!NothingToDo() || !after.has_value() || *after > *before);
        while (!NothingToDo()) {
          if (NextIs<SendRenewal>()) {
            Next<SendRenewal>();
            Renewed(answer);
          } else if (NextIs<CheckpointStored>()) {
            Next<CheckpointStored>();
          } else {
            Next<Withdraw>();
          }
        }
        if (wakings % 3 == 0 && saves++ < 10) Save("progress");
      }
      EXPECT_LT(wakings, 300);
    }
  }
}

}  // namespace
}  // namespace idempotency
