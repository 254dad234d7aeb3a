// From the claim to the function: who runs, who waits, who is turned away.

#include "client/once_machine.h"

#include <gtest/gtest.h>

#include <chrono>

#include "client/status.h"
#include "tests/unit/once_fixture.h"

namespace idempotency {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr double kAlmostOne = 0x1.fffffffffffffp-1;

using OnceClaimTest = OnceMachineTest;

TEST_F(OnceClaimTest, TheClaimSaysWhatIsAskedFor) {
  Operation operation = TheOperation();
  operation.lease = seconds(12);
  operation.wait = seconds(30);
  operation.claim_timeout = seconds(4);
  Make(operation, true);
  Start();
  const SendClaim claim = Next<SendClaim>();
  EXPECT_EQ(claim.request.scope(), "payments");
  EXPECT_EQ(claim.request.key(), "key");
  EXPECT_EQ(claim.request.request_hash(), operation.request_hash);
  EXPECT_EQ(claim.request.policy(), "payment");
  EXPECT_EQ(claim.request.owner(), "pod-1");
  EXPECT_EQ(claim.request.claim_token(), kToken);
  EXPECT_TRUE(claim.request.resolve_in_doubt());
  EXPECT_EQ(NanosecondsOf(claim.request.lease()), seconds(12));
  EXPECT_EQ(NanosecondsOf(claim.request.wait()), seconds(5));
  EXPECT_EQ(claim.request.renew_fencing_token(), 0);
  EXPECT_FALSE(claim.request.has_checkpoint());
  EXPECT_EQ(claim.timeout, seconds(9));
  EXPECT_FALSE(permitted());
}

TEST_F(OnceClaimTest, InDoubtClaimsAreAskedForOnlyWithAResolver) {
  Make(TheOperation(), false);
  Start();
  EXPECT_FALSE(Next<SendClaim>().request.resolve_in_doubt());
}

TEST_F(OnceClaimTest, WithoutALeaseOrAWaitNoneIsNamed) {
  Operation operation = TheOperation();
  operation.wait = milliseconds(0);
  Make(operation);
  Start();
  const SendClaim claim = Next<SendClaim>();
  EXPECT_FALSE(claim.request.has_lease());
  EXPECT_FALSE(claim.request.has_wait());
  EXPECT_EQ(claim.timeout, operation.claim_timeout);
}

TEST_F(OnceClaimTest, DurationsWithoutEndAreBounded) {
  Operation operation = TheOperation();
  operation.lease = milliseconds::max();
  operation.wait = milliseconds::max();
  operation.max_run_time = milliseconds::max();
  operation.claim_timeout = milliseconds::max();
  operation.finalize_timeout = milliseconds::max();
  Make(operation);
  Start();
  const SendClaim claim = Next<SendClaim>();
  EXPECT_GT(claim.timeout, hours(24));
  EXPECT_EQ(NanosecondsOf(claim.request.wait()), seconds(5));
  EXPECT_GT(NanosecondsOf(claim.request.lease()), hours(24));
  Claimed(ClaimedFor(kLease));
  Next<RunFunction>();
  ASSERT_TRUE(Wake());
  EXPECT_FALSE(Next<SendRenewal>().request.has_lease());
}

TEST_F(OnceClaimTest, AReplayIsDeliveredAndNothingRuns) {
  Make(TheOperation());
  Start();
  Next<SendClaim>();
  Claimed(ReplayOf(ResponseOf(201, "charged")));
  const RunResult result = Next<Deliver>().result;
  EXPECT_EQ(result.outcome, RunOutcome::kReplayed);
  EXPECT_EQ(result.response.status_code(), 201);
  EXPECT_EQ(result.response.body(), "charged");
  EXPECT_TRUE(result.recorded);
  EXPECT_TRUE(result.status.ok());
  EXPECT_TRUE(result.has_response());
  Next<End>();
  EXPECT_TRUE(HasEnded());
}

TEST_F(OnceClaimTest, AnotherRequestOfTheKeyIsToldSo) {
  Make(TheOperation());
  Start();
  Next<SendClaim>();
  v1::ClaimResponse answer;
  answer.mutable_mismatch();
  Claimed(answer);
  const RunResult result = Next<Deliver>().result;
  EXPECT_EQ(result.outcome, RunOutcome::kMismatch);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(result.has_response());
  Next<End>();
  EXPECT_TRUE(HasEnded());
}

TEST_F(OnceClaimTest, WhatIsInDoubtAndHeldIsNotTouched) {
  Make(TheOperation());
  Start();
  Next<SendClaim>();
  v1::ClaimResponse answer;
  answer.mutable_in_doubt();
  Claimed(answer);
  EXPECT_EQ(Next<Deliver>().result.outcome, RunOutcome::kInDoubt);
  Next<End>();
  EXPECT_TRUE(HasEnded());
}

// ------------------------------------------------------------------- waiting

TEST_F(OnceClaimTest, WithoutAWaitAnotherOwnerEndsIt) {
  Operation operation = TheOperation();
  operation.wait = milliseconds(0);
  Make(operation);
  Start();
  Next<SendClaim>();
  Claimed(InProgressFor(milliseconds(700)));
  const RunResult result = Next<Deliver>().result;
  EXPECT_EQ(result.outcome, RunOutcome::kInProgress);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(RetryDelayOf(result.status), milliseconds(700));
  Next<End>();
  EXPECT_TRUE(HasEnded());
}

TEST_F(OnceClaimTest, AWaiterAsksAgainAfterTheTimeItWasToldAndUpToAQuarter) {
  for (const double random : {0.0, kAlmostOne}) {
    Make(TheOperation());
    random_ = random;
    Start();
    Next<SendClaim>();
    Claimed(InProgressFor(milliseconds(800)));
    EXPECT_TRUE(NothingToDo());
    const nanoseconds pause = *machine_->wake_at() - now_;
    EXPECT_GE(pause, milliseconds(800) + milliseconds(random > 0 ? 199 : 0));
    EXPECT_LE(pause, milliseconds(random > 0 ? 1000 : 800));
    Pass(pause - nanoseconds(1));
    TimePasses();
    EXPECT_TRUE(NothingToDo());
    Pass(nanoseconds(1));
    TimePasses();
    EXPECT_EQ(Next<SendClaim>().request.claim_token(), kToken);
    EXPECT_FALSE(machine_->wake_at().has_value());
  }
}

TEST_F(OnceClaimTest, ARepeatedClaimWaitsOnlyForWhatIsLeft) {
  Operation operation = TheOperation();
  operation.wait = seconds(6);
  Make(operation);
  Start();
  Next<SendClaim>();
  Pass(seconds(3));
  Claimed(InProgressFor(seconds(1)));
  ASSERT_TRUE(Wake());
  const SendClaim again = Next<SendClaim>();
  EXPECT_EQ(NanosecondsOf(again.request.wait()), seconds(2));
  EXPECT_EQ(again.timeout, seconds(7));
}

TEST_F(OnceClaimTest, TheLastClaimIsMadeWhenTheWaitEnds) {
  Operation operation = TheOperation();
  operation.wait = seconds(2);
  Make(operation);
  const TimePoint end = now_ + seconds(2);
  Start();
  Next<SendClaim>();
  Pass(milliseconds(1500));
  Claimed(InProgressFor(seconds(1)));
  ASSERT_EQ(machine_->wake_at(), end);
  ASSERT_TRUE(Wake());
  EXPECT_FALSE(Next<SendClaim>().request.has_wait());
  Claimed(InProgressFor(seconds(1)));
  EXPECT_EQ(Next<Deliver>().result.outcome, RunOutcome::kInProgress);
  Next<End>();
}

TEST_F(OnceClaimTest, ALongWaitIsAskedForInPortions) {
  Operation operation = TheOperation();
  operation.wait = seconds(9);
  Make(operation);
  Start();
  EXPECT_EQ(NanosecondsOf(Next<SendClaim>().request.wait()), seconds(5));
  Pass(seconds(5));
  Claimed(InProgressFor(seconds(1)));
  ASSERT_TRUE(Wake());
  EXPECT_EQ(NanosecondsOf(Next<SendClaim>().request.wait()), seconds(3));
}

TEST_F(OnceClaimTest, TextThatIsNotUtf8IsNotAskedFor) {
  for (const auto text : {&Operation::scope, &Operation::key,
                          &Operation::policy, &Operation::owner}) {
    Operation operation = TheOperation();
    operation.*text = "caf\xe9";
    Make(operation);
    Start();
    const RunResult result = Next<Deliver>().result;
    EXPECT_EQ(result.outcome, RunOutcome::kInvalid);
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument);
    Next<End>();
    EXPECT_TRUE(HasEnded());
  }
}

// ------------------------------------------------------- claims that go wrong

TEST_F(OnceClaimTest, AClaimThatMayHaveBeenGrantedIsGivenBack) {
  Make(TheOperation());
  Start();
  Next<SendClaim>();
  Claimed(NoAnswer());
  const RunResult result = Next<Deliver>().result;
  EXPECT_EQ(result.outcome, RunOutcome::kUnavailable);
  EXPECT_EQ(result.status, NoAnswer());
  const SendRelease release = NextBesideCheckpoints<SendRelease>();
  EXPECT_EQ(release.request.claim_token(), kToken);
  EXPECT_EQ(release.request.disposition(),
            Disposition::DISPOSITION_NOT_EXECUTED);
  Released(v1::ReleaseResponse());
  Next<End>();
  EXPECT_TRUE(HasEnded());
}

TEST_F(OnceClaimTest, AClaimThatWasRefusedIsNotGivenBack) {
  for (const absl::Status& refusal :
       {Overloaded(),
        ServiceError(absl::StatusCode::kInvalidArgument, "UNKNOWN_POLICY")}) {
    Make(TheOperation());
    Start();
    Next<SendClaim>();
    Claimed(refusal);
    const RunResult result = Next<Deliver>().result;
    EXPECT_EQ(result.outcome,
              refusal.code() == absl::StatusCode::kInvalidArgument
                  ? RunOutcome::kInvalid
                  : RunOutcome::kUnavailable);
    EXPECT_EQ(result.status, refusal);
    Next<End>();
    EXPECT_TRUE(HasEnded());
  }
}

TEST_F(OnceClaimTest, AnOutcomeOfANewerServerExecutesNothing) {
  Make(TheOperation());
  Start();
  Next<SendClaim>();
  Claimed(v1::ClaimResponse());
  EXPECT_EQ(Next<Deliver>().result.outcome, RunOutcome::kUnavailable);
  NextBesideCheckpoints<SendRelease>();
}

TEST_F(OnceClaimTest, AGrantThatComesAfterItsLeaseIsClaimedAgain) {
  Make(TheOperation());
  Start();
  Next<SendClaim>();
  Pass(kLease);
  Claimed(ClaimedFor(kLease));
  EXPECT_FALSE(permitted());
  EXPECT_EQ(Next<SendClaim>().request.claim_token(), kToken);
  Claimed(ClaimedFor(kLease));
  Next<RunFunction>();
  EXPECT_TRUE(permitted());
}

TEST_F(OnceClaimTest, AGrantWithLittleLeftIsClaimedAgainOnce) {
  Make(TheOperation());
  Start();
  Next<SendClaim>();
  Pass(kLease / 2 + nanoseconds(1));
  Claimed(ClaimedFor(kLease));
  EXPECT_FALSE(permitted());
  EXPECT_EQ(Next<SendClaim>().request.claim_token(), kToken);
  Pass(kLease / 2 + nanoseconds(1));
  Claimed(ClaimedFor(kLease));
  Next<RunFunction>();
  EXPECT_TRUE(permitted());
}

TEST_F(OnceClaimTest, AGrantAtTheEndOfTheWaitIsUsed) {
  Operation operation = TheOperation();
  operation.wait = 2 * kLease;
  Make(operation);
  Start();
  Next<SendClaim>();
  Pass(2 * kLease + milliseconds(1));
  Claimed(ClaimedFor(kLease));
  Next<SendClaim>();
  Claimed(ClaimedFor(kLease));
  Next<RunFunction>();
}

TEST_F(OnceClaimTest, GrantsThatAlwaysComeTooLateAreGivenBackInTheEnd) {
  Operation operation = TheOperation();
  operation.wait = seconds(0);
  operation.claim_timeout = seconds(5);
  Make(operation);
  Start();
  for (int claims = 0; claims < 3; ++claims) {
    Next<SendClaim>();
    Pass(milliseconds(100));
    Claimed(ClaimedFor(milliseconds(100)));
  }
  const RunResult result = Next<Deliver>().result;
  EXPECT_EQ(result.outcome, RunOutcome::kUnavailable);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kAborted);  // no outage
  EXPECT_EQ(NextBesideCheckpoints<SendRelease>().request.disposition(),
            Disposition::DISPOSITION_NOT_EXECUTED);
}

TEST_F(OnceClaimTest, AGrantThatCameTooLateIsGivenBackWhenTheNextIsRefused) {
  Make(TheOperation());
  Start();
  Next<SendClaim>();
  Pass(kLease);
  Claimed(ClaimedFor(kLease));
  Next<SendClaim>();
  Claimed(Overloaded());
  EXPECT_EQ(Next<Deliver>().result.outcome, RunOutcome::kUnavailable);
  EXPECT_EQ(NextBesideCheckpoints<SendRelease>().request.disposition(),
            Disposition::DISPOSITION_NOT_EXECUTED);
}

// ---------------------------------------------------------------- hanging up

TEST_F(OnceClaimTest, WhoeverHungUpBeforeTheStartClaimsNothing) {
  Make(TheOperation());
  HangUp();
  EXPECT_EQ(Next<Deliver>().result.outcome, RunOutcome::kHungUp);
  Start();
  Next<End>();
  EXPECT_TRUE(HasEnded());
}

TEST_F(OnceClaimTest, AClaimThatIsGrantedAfterTheHangUpIsGivenBack) {
  for (const int attempt : {1, 2}) {
    Make(TheOperation(), true);
    Start();
    Next<SendClaim>();
    HangUp();
    HangUp();
    const RunResult result = Next<Deliver>().result;
    EXPECT_EQ(result.outcome, RunOutcome::kHungUp);
    EXPECT_EQ(result.status.code(), absl::StatusCode::kCancelled);
    EXPECT_TRUE(NothingToDo());
    Claimed(ClaimedFor(kLease, attempt));
    // This attempt did nothing; it does not speak for the one before.
    EXPECT_EQ(NextBesideCheckpoints<SendRelease>().request.disposition(),
              Disposition::DISPOSITION_NOT_EXECUTED);
    EXPECT_FALSE(permitted());
    Released(v1::ReleaseResponse());
    Next<End>();
    EXPECT_TRUE(HasEnded());
  }
}

TEST_F(OnceClaimTest, AClaimLostAfterTheHangUpIsGivenBack) {
  Make(TheOperation());
  Start();
  Next<SendClaim>();
  HangUp();
  Next<Deliver>();
  Claimed(NoAnswer());
  NextBesideCheckpoints<SendRelease>();
}

TEST_F(OnceClaimTest, AfterTheHangUpNobodyWaits) {
  Make(TheOperation());
  Start();
  Next<SendClaim>();
  HangUp();
  Next<Deliver>();
  Claimed(InProgressFor(seconds(1)));
  Next<End>();
  EXPECT_TRUE(HasEnded());
}

TEST_F(OnceClaimTest, AHangUpEndsTheWaitAtOnce) {
  Make(TheOperation());
  Start();
  Next<SendClaim>();
  Claimed(InProgressFor(seconds(1)));
  HangUp();
  EXPECT_EQ(Next<Deliver>().result.outcome, RunOutcome::kHungUp);
  Next<End>();
  EXPECT_TRUE(HasEnded());
}

TEST_F(OnceClaimTest, AHangUpDoesNotDisturbWhatIsExecuted) {
  RunGranted();
  HangUp();
  EXPECT_TRUE(NothingToDo());
  EXPECT_TRUE(permitted());
  FunctionEnds(Executed{ResponseOf(200, "done")});
  NextBesideCheckpoints<SendFinalize>();
  HangUp();
  EXPECT_TRUE(NothingToDo());
  Finalized(v1::FinalizeResponse::RESULT_RECORDED);
  EXPECT_EQ(Next<Deliver>().result.outcome, RunOutcome::kExecuted);
  Next<End>();
}

// ------------------------------------------------- what an attempt left behind

TEST_F(OnceClaimTest, WithAResolverTheChannelIsAskedFirst) {
  RunGranted(TheOperation(), true, 2);
  EXPECT_EQ(machine_->claimed().abandoned().attempt(), 1);
  ResolverEnds(NeverExecuted{});
  Next<RunFunction>();
  EXPECT_TRUE(permitted());
}

TEST_F(OnceClaimTest, WithoutAResolverTheFunctionIsToldWhatWasAbandoned) {
  RunGranted(TheOperation(), false, 2);
  EXPECT_EQ(machine_->claimed().abandoned().attempt(), 1);
}

TEST_F(OnceClaimTest, TheLeaseIsRenewedWhileTheChannelIsAsked) {
  RunGranted(TheOperation(), true, 2);
  ASSERT_TRUE(Wake());
  EXPECT_EQ(Next<SendRenewal>().request.renew_fencing_token(), 42);
}

TEST_F(OnceClaimTest, WhatTheChannelExecutedIsRecorded) {
  RunGranted(TheOperation(), true, 2);
  ResolverEnds(WasExecuted{ResponseOf(201, "charged before")});
  EXPECT_EQ(NextBesideCheckpoints<SendFinalize>().request.response().body(),
            "charged before");
  Finalized(v1::FinalizeResponse::RESULT_RECORDED);
  const RunResult result = Next<Deliver>().result;
  EXPECT_EQ(result.outcome, RunOutcome::kResolved);
  EXPECT_EQ(result.response.body(), "charged before");
  EXPECT_TRUE(result.recorded);
  Next<End>();
}

TEST_F(OnceClaimTest, WhatTheChannelCannotTellStaysInDoubt) {
  RunGranted(TheOperation(), true, 2);
  ResolverEnds(StillUnknown{absl::UnavailableError("the channel is away")});
  EXPECT_EQ(NextBesideCheckpoints<SendRelease>().request.disposition(),
            Disposition::DISPOSITION_NOT_EXECUTED);
  Released(v1::ReleaseResponse());
  const RunResult result = Next<Deliver>().result;
  EXPECT_EQ(result.outcome, RunOutcome::kInDoubt);
  EXPECT_EQ(result.status, absl::UnavailableError("the channel is away"));
  Next<End>();
}

TEST_F(OnceClaimTest, AFunctionWhoseClaimIsLostBeforeItsStartIsNotCalled) {
  RunGranted();
  Pass(kLease);
  EXPECT_FALSE(FunctionMayStart());
  Next<Withdraw>();
  EXPECT_EQ(NextBesideCheckpoints<SendRelease>().request.disposition(),
            Disposition::DISPOSITION_NOT_EXECUTED);
  FunctionEnds(OutcomeUnknown{absl::UnknownError("dropped")});
  EXPECT_TRUE(NothingToDo());
  Released(Superseded());
  const RunResult result = Next<Deliver>().result;
  EXPECT_EQ(result.outcome, RunOutcome::kUnavailable);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kAborted);
  Next<End>();
}

TEST_F(OnceClaimTest, AFunctionWhoseClaimHoldsMayStart) {
  RunGranted();
  Pass(kLease - nanoseconds(1));
  EXPECT_TRUE(FunctionMayStart());
}

TEST_F(OnceClaimTest, AClaimLostWhileTheChannelWasAskedRunsNothing) {
  RunGranted(TheOperation(), true, 2);
  ASSERT_TRUE(Wake());
  Next<SendRenewal>();
  Renewed(Superseded());
  NextBesideCheckpoints<Withdraw>();
  ResolverEnds(NeverExecuted{});
  Next<RunFunction>();
  EXPECT_FALSE(FunctionMayStart());
  NextBesideCheckpoints<SendRelease>();
}

}  // namespace
}  // namespace idempotency
