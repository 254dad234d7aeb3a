// From the function's end to the operation's.

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

class OnceSettlingTest : public OnceMachineTest {
 protected:
  // The function has said so, and its Finalize is under way.
  void RunExecuted(const Operation& operation = TheOperation()) {
    RunGranted(operation);
    FunctionEnds(Executed{ResponseOf(201, "own")});
    ended_at_ = now_;
    NextBesideCheckpoints<SendFinalize>();
  }

  static v1::LookupResponse Final(const std::string& request_hash) {
    v1::LookupResponse answer;
    v1::Record* const record = answer.mutable_record();
    record->set_state(v1::Record::STATE_FINALIZED);
    record->set_request_hash(request_hash);
    *record->mutable_response() = ResponseOf(200, "the winner's");
    return answer;
  }

  TimePoint ended_at_{};
};

// ------------------------------------------------------------------- Finalize

TEST_F(OnceSettlingTest, WhatWasExecutedIsRecordedAndDelivered) {
  RunGranted();
  Operation operation = TheOperation();
  FunctionEnds(Executed{ResponseOf(201, "own")});
  EXPECT_FALSE(permitted());
  const SendFinalize finalize = NextBesideCheckpoints<SendFinalize>();
  EXPECT_EQ(finalize.request.scope(), "payments");
  EXPECT_EQ(finalize.request.key(), "key");
  EXPECT_EQ(finalize.request.claim_token(), kToken);
  EXPECT_EQ(finalize.request.response().status_code(), 201);
  EXPECT_EQ(finalize.request.response().body(), "own");
  EXPECT_EQ(finalize.timeout, operation.finalize_timeout);
  EXPECT_TRUE(NothingToDo()) << "the answer is waited for";
  Finalized(v1::FinalizeResponse::RESULT_RECORDED);
  const RunResult result = Next<Deliver>().result;
  EXPECT_EQ(result.outcome, RunOutcome::kExecuted);
  EXPECT_EQ(result.response.body(), "own");
  EXPECT_TRUE(result.recorded);
  EXPECT_TRUE(result.status.ok());
  Next<End>();
  EXPECT_TRUE(HasEnded());
}

TEST_F(OnceSettlingTest, TheResultSaysWhetherTheRecordHoldsTheResponse) {
  const std::vector<std::pair<v1::FinalizeResponse::Result, bool>> results = {
      {v1::FinalizeResponse::RESULT_RECORDED_WITHOUT_BODY, true},
      {v1::FinalizeResponse::RESULT_RELEASED, false},
      {v1::FinalizeResponse::RESULT_IN_DOUBT, false},
      {v1::FinalizeResponse::RESULT_UNSPECIFIED, false}};
  for (const auto& [answer, recorded] : results) {
    RunExecuted();
    Finalized(answer);
    const RunResult result = Next<Deliver>().result;
    EXPECT_EQ(result.outcome, RunOutcome::kExecuted);
    EXPECT_EQ(result.recorded, recorded);
    Next<End>();
  }
}

TEST_F(OnceSettlingTest, AnUnansweredFinalizeDeliversTheResponseOnce) {
  RunExecuted();
  Pass(seconds(5));
  Finalized(NoAnswer());
  const RunResult result = Next<Deliver>().result;
  EXPECT_EQ(result.outcome, RunOutcome::kExecuted);
  EXPECT_EQ(result.response.body(), "own");
  EXPECT_FALSE(result.recorded);
  EXPECT_TRUE(NothingToDo());
  ASSERT_TRUE(Wake());
  EXPECT_EQ(Next<SendFinalize>().request.response().body(), "own");
  Finalized(v1::FinalizeResponse::RESULT_RECORDED);
  Next<End>();
  EXPECT_TRUE(HasEnded());
}

TEST_F(OnceSettlingTest, AnUnansweredFinalizeIsSentForALeaseThenGivenUpOnce) {
  for (const absl::Status& failure : {NoAnswer(), Overloaded()}) {
    RunExecuted();
    Finalized(failure);
    Next<Deliver>();
    int sent = 0;
    while (!NextIs<SendRelease>()) {
      const TimePoint failed = now_;
      ASSERT_TRUE(Wake());
      EXPECT_GE(now_ - failed, milliseconds(25)) << "not in a tight loop";
      EXPECT_LE(now_ - failed, seconds(2));
      Next<SendFinalize>();
      ASSERT_LT(++sent, 200);
      Pass(milliseconds(1));
      Finalized(failure);
    }
    EXPECT_GT(sent, 5);
    EXPECT_GE(now_, ended_at_ + kLease);
    EXPECT_LE(now_, ended_at_ + kLease + seconds(1));
    EXPECT_EQ(Next<SendRelease>().request.disposition(),
              Disposition::DISPOSITION_OUTCOME_UNKNOWN);
    Pass(seconds(5));
    Released(NoAnswer());
    Next<End>();
    EXPECT_TRUE(HasEnded());
  }
}

TEST_F(OnceSettlingTest, WhoFinishesSendsWhatIsUnansweredOnceMore) {
  RunExecuted();
  Finalized(NoAnswer());
  Next<Deliver>();
  EXPECT_TRUE(NothingToDo());

  Finish();
  Next<SendFinalize>();
  Finalized(NoAnswer());
  EXPECT_EQ(Next<SendRelease>().request.disposition(),
            Disposition::DISPOSITION_OUTCOME_UNKNOWN);
  Released(NoAnswer());
  Next<End>();
  EXPECT_TRUE(HasEnded());
}

TEST_F(OnceSettlingTest, AFunctionThatEndsAfterFinishIsRecordedInOneTry) {
  RunGranted();
  Finish();
  EXPECT_TRUE(permitted());
  FunctionEnds(Executed{ResponseOf(201, "own")});
  NextBesideCheckpoints<SendFinalize>();
  Finalized(NoAnswer());
  Next<Deliver>();
  Next<SendRelease>();
  Released(v1::ReleaseResponse());
  Next<End>();
  EXPECT_TRUE(HasEnded());
}

TEST_F(OnceSettlingTest, AClaimThatIsCancelledByFinishIsGivenBackOnce) {
  Make(TheOperation());
  Start();
  Next<SendClaim>();
  Finish();
  EXPECT_EQ(Next<Deliver>().result.outcome, RunOutcome::kHungUp);
  Claimed(absl::CancelledError("cancelled"));
  EXPECT_EQ(NextBesideCheckpoints<SendRelease>().request.disposition(),
            Disposition::DISPOSITION_NOT_EXECUTED);
  Released(NoAnswer());
  Next<End>();
  EXPECT_TRUE(HasEnded());
}

TEST_F(OnceSettlingTest, TheTimeToFinalizeIsALeaseAlsoAfterALongRun) {
  RunGranted();
  Pass(5 * kLease);
  FunctionEnds(Executed{ResponseOf(201, "own")});
  NextBesideCheckpoints<SendFinalize>();
  Finalized(NoAnswer());
  Next<Deliver>();
  ASSERT_TRUE(Wake());
  Next<SendFinalize>();
}

TEST_F(OnceSettlingTest, ResendsAreSpreadOverHalfThePause) {
  std::vector<nanoseconds> pauses;
  for (const double random : {0.0, 0.999}) {
    random_ = random;
    RunExecuted();
    Finalized(NoAnswer());
    Next<Deliver>();
    pauses.push_back(*machine_->wake_at() - now_);
  }
  EXPECT_EQ(pauses[0], nanoseconds(kLease) / 40);
  EXPECT_GT(pauses[1], pauses[0] * 19 / 10);
}

TEST_F(OnceSettlingTest, AResponseThatCannotBeRecordedIsNotDelivered) {
  for (const absl::Status& refusal :
       {ServiceError(absl::StatusCode::kInvalidArgument, "INVALID_FIELD")}) {
    RunExecuted();
    Finalized(refusal);
    EXPECT_EQ(NextBesideCheckpoints<SendRelease>().request.disposition(),
              Disposition::DISPOSITION_OUTCOME_UNKNOWN);
    EXPECT_TRUE(NothingToDo());
    Released(v1::ReleaseResponse());
    const RunResult result = Next<Deliver>().result;
    EXPECT_EQ(result.outcome, RunOutcome::kUnknown);
    EXPECT_EQ(result.status, refusal);
    EXPECT_FALSE(result.has_response());
    Next<End>();
    EXPECT_TRUE(HasEnded());
  }
}

// A proxy's 401, 403 and 404, which say nothing of the record.
TEST_F(OnceSettlingTest, WhatTheServiceDidNotSayDecidesNothing) {
  for (const absl::Status& failure :
       {absl::PermissionDeniedError("no"), absl::UnimplementedError("no"),
        absl::UnauthenticatedError("no"), absl::NotFoundError("no"),
        absl::FailedPreconditionError("no"),
        absl::InvalidArgumentError("no")}) {
    RunExecuted();
    Finalized(failure);
    const RunResult result = Next<Deliver>().result;
    EXPECT_EQ(result.outcome, RunOutcome::kExecuted) << failure;
    EXPECT_FALSE(result.recorded);
    ASSERT_TRUE(Wake());
    Next<SendFinalize>();
    Finalized(v1::FinalizeResponse::RESULT_RECORDED);
    Next<End>();
    EXPECT_TRUE(HasEnded());
  }
}

TEST_F(OnceSettlingTest, AResultIsHeldBackNoLongerThanAskedAndSentAllTheSame) {
  for (const milliseconds hold_back : {milliseconds(0), milliseconds(200)}) {
    Operation operation = TheOperation();
    operation.finalize_timeout = hold_back;
    RunGranted(operation);
    FunctionEnds(Executed{ResponseOf(201, "own")});
    EXPECT_GE(NextBesideCheckpoints<SendFinalize>().timeout, seconds(1));
    EXPECT_EQ(machine_->wake_at(), now_ + hold_back);
    ASSERT_TRUE(Wake());
    const RunResult result = Next<Deliver>().result;
    EXPECT_EQ(result.outcome, RunOutcome::kExecuted);
    EXPECT_FALSE(result.recorded);
    Finalized(v1::FinalizeResponse::RESULT_RECORDED);
    Next<End>();
    EXPECT_TRUE(HasEnded());
  }
}

TEST_F(OnceSettlingTest, AResultWithoutAResponseSaysWhy) {
  for (const FunctionResult& said :
       {FunctionResult(NothingHappened{}), FunctionResult(OutcomeUnknown{})}) {
    RunGranted();
    FunctionEnds(said);
    NextBesideCheckpoints<SendRelease>();
    Released(v1::ReleaseResponse());
    EXPECT_FALSE(Next<Deliver>().result.status.ok());
  }
  RunGranted(TheOperation(), true, 2);
  ResolverEnds(StillUnknown{});
  NextBesideCheckpoints<SendRelease>();
  Released(v1::ReleaseResponse());
  EXPECT_FALSE(Next<Deliver>().result.status.ok());
}

TEST_F(OnceSettlingTest, AfterFinishNoFunctionStarts) {
  RunGranted();
  Finish();
  EXPECT_FALSE(FunctionMayStart());
  EXPECT_EQ(NextBesideCheckpoints<SendRelease>().request.disposition(),
            Disposition::DISPOSITION_NOT_EXECUTED);
  Released(v1::ReleaseResponse());
  EXPECT_EQ(Next<Deliver>().result.outcome, RunOutcome::kHungUp);
  Next<End>();
}

// ----------------------------------------------------------- Finalize refused

TEST_F(OnceSettlingTest, ARefusedResponseIsNeverDelivered) {
  for (const absl::Status& refusal :
       {Superseded(),
        ServiceError(absl::StatusCode::kFailedPrecondition,
                     "ALREADY_FINALIZED"),
        ServiceError(absl::StatusCode::kFailedPrecondition, "CLAIM_RELEASED"),
        ServiceError(absl::StatusCode::kNotFound, "RECORD_NOT_FOUND")}) {
    RunExecuted();
    Finalized(refusal);
    const SendLookup lookup = Next<SendLookup>();
    EXPECT_EQ(lookup.request.scope(), "payments");
    EXPECT_EQ(lookup.request.key(), "key");
    EXPECT_EQ(lookup.timeout, TheOperation().claim_timeout);
    EXPECT_TRUE(NothingToDo());
    LookedUp(Final(TheOperation().request_hash));
    const RunResult result = Next<Deliver>().result;
    EXPECT_EQ(result.outcome, RunOutcome::kWinner);
    EXPECT_EQ(result.response.body(), "the winner's");
    EXPECT_TRUE(result.recorded);
    EXPECT_TRUE(result.status.ok());
    Next<End>();
    EXPECT_TRUE(HasEnded());
  }
}

TEST_F(OnceSettlingTest, WithoutAWinnerTheRefusalIsTheAnswer) {
  v1::LookupResponse running;
  running.mutable_record()->set_state(v1::Record::STATE_IN_PROGRESS);
  running.mutable_record()->set_request_hash(TheOperation().request_hash);
  const std::vector<absl::StatusOr<v1::LookupResponse>> answers = {
      Final("the hash of another request"), running, v1::LookupResponse(),
      NoAnswer(),
      ServiceError(absl::StatusCode::kNotFound, "RECORD_NOT_FOUND")};
  for (const auto& answer : answers) {
    RunExecuted();
    Finalized(Superseded());
    Next<SendLookup>();
    LookedUp(answer);
    const RunResult result = Next<Deliver>().result;
    EXPECT_EQ(result.outcome, RunOutcome::kConflict);
    EXPECT_EQ(result.status, Superseded());
    EXPECT_FALSE(result.has_response());
    Next<End>();
    EXPECT_TRUE(HasEnded());
  }
}

TEST_F(OnceSettlingTest, ARefusalAfterTheDeliveryEndsQuietly) {
  RunExecuted();
  Finalized(NoAnswer());
  Next<Deliver>();
  ASSERT_TRUE(Wake());
  Next<SendFinalize>();
  Finalized(Superseded());
  Next<End>();
  EXPECT_TRUE(HasEnded());
}

// -------------------------------------------------------------------- Release

TEST_F(OnceSettlingTest, WhereNothingHappenedTheClaimIsGivenBack) {
  RunGranted();
  FunctionEnds(NothingHappened{absl::UnavailableError("no channel")});
  const SendRelease release = NextBesideCheckpoints<SendRelease>();
  EXPECT_EQ(release.request.scope(), "payments");
  EXPECT_EQ(release.request.key(), "key");
  EXPECT_EQ(release.request.claim_token(), kToken);
  EXPECT_EQ(release.request.disposition(),
            Disposition::DISPOSITION_NOT_EXECUTED);
  EXPECT_EQ(release.timeout, TheOperation().finalize_timeout);
  EXPECT_TRUE(NothingToDo());
  Released(v1::ReleaseResponse());
  const RunResult result = Next<Deliver>().result;
  EXPECT_EQ(result.outcome, RunOutcome::kNothingHappened);
  EXPECT_EQ(result.status, absl::UnavailableError("no channel"));
  Next<End>();
  EXPECT_TRUE(HasEnded());
}

TEST_F(OnceSettlingTest, AnUnknownOutcomeIsGivenUp) {
  RunGranted();
  FunctionEnds(OutcomeUnknown{absl::UnknownError("it threw")});
  EXPECT_EQ(NextBesideCheckpoints<SendRelease>().request.disposition(),
            Disposition::DISPOSITION_OUTCOME_UNKNOWN);
  Released(v1::ReleaseResponse());
  const RunResult result = Next<Deliver>().result;
  EXPECT_EQ(result.outcome, RunOutcome::kUnknown);
  EXPECT_EQ(result.status, absl::UnknownError("it threw"));
  Next<End>();
}

TEST_F(OnceSettlingTest, AnUnansweredReleaseDeliversAndIsSentForALease) {
  RunGranted();
  FunctionEnds(OutcomeUnknown{absl::UnknownError("it threw")});
  ended_at_ = now_;
  NextBesideCheckpoints<SendRelease>();
  Released(NoAnswer());
  EXPECT_EQ(Next<Deliver>().result.outcome, RunOutcome::kUnknown);
  int sent = 0;
  while (!NextIs<End>()) {
    const TimePoint failed = now_;
    ASSERT_TRUE(Wake());
    EXPECT_GE(now_ - failed, milliseconds(25)) << "not in a tight loop";
    EXPECT_EQ(Next<SendRelease>().request.disposition(),
              Disposition::DISPOSITION_OUTCOME_UNKNOWN);
    ASSERT_LT(++sent, 200);
    Released(NoAnswer());
  }
  EXPECT_GT(sent, 5);
  EXPECT_GE(now_, ended_at_ + kLease);
  EXPECT_LE(now_, ended_at_ + kLease + seconds(1));
  Next<End>();
  EXPECT_TRUE(HasEnded());
}

TEST_F(OnceSettlingTest, ARefusedReleaseIsTheEnd) {
  for (const absl::Status& refusal :
       {Superseded(), ServiceError(absl::StatusCode::kFailedPrecondition,
                                   "ALREADY_FINALIZED")}) {
    RunGranted();
    FunctionEnds(NothingHappened{absl::CancelledError("no")});
    NextBesideCheckpoints<SendRelease>();
    Released(refusal);
    EXPECT_EQ(Next<Deliver>().result.outcome, RunOutcome::kNothingHappened);
    Next<End>();
    EXPECT_TRUE(HasEnded());
  }
}

TEST_F(OnceSettlingTest, AClaimOfUnknownFateIsGivenBackForHalfAMinute) {
  Make(TheOperation());
  Start();
  Next<SendClaim>();
  Claimed(NoAnswer());
  Next<Deliver>();
  NextBesideCheckpoints<SendRelease>();
  const TimePoint start = now_;
  Released(NoAnswer());
  while (Wake()) {
    Next<SendRelease>();
    Released(NoAnswer());
  }
  Next<End>();
  EXPECT_GE(now_, start + seconds(30));
  EXPECT_LE(now_, start + seconds(33));
}

TEST_F(OnceSettlingTest, AnswersNobodyWaitsForChangeNothing) {
  RunExecuted();
  FunctionEnds(NothingHappened{absl::CancelledError("too late")});
  ResolverEnds(NeverExecuted{});
  EXPECT_TRUE(NothingToDo());
  Finalized(v1::FinalizeResponse::RESULT_RECORDED);
  EXPECT_EQ(Next<Deliver>().result.outcome, RunOutcome::kExecuted);
  Next<End>();
}

}  // namespace
}  // namespace idempotency
