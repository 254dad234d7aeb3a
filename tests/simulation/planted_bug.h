// What the checks have to notice.
#ifndef IDEMPOTENCY_TESTS_SIMULATION_PLANTED_BUG_H_
#define IDEMPOTENCY_TESTS_SIMULATION_PLANTED_BUG_H_

namespace idempotency {

enum class PlantedBug {
  kNone,
  // In the database, or in how it is used.
  kGuardIsNotReadAgain,
  kInsertDoesNotWait,
  kAnswerBeforeCommit,
  kCancelledWaitIsSuccess,
  kReleaseIsNotDurable,
  kGiveUpIsNotDurable,
  kEvidenceIsNotDurable,
  kLostAnswerCountsAsUndone,
  kClockIsReadAfterwards,
  kConfirmedWithoutAWrite,
  kReplaceIgnoresTheGuard,
  kFinalizeIgnoresTheOwner,
  kReadsFromTheStandby,
  kSweepDoesNotLookAgain,
  kBodyIsNormalised,
  kFencingTokenPerRow,
  // In what is decided.
  kTakeoverIsNotTold,
  kRetriedClaimIsNew,
  kReleasedClaimComesBack,
  kScopeIsForgotten,
  kLooksFindNothing,
  kUnfinishedIsCached,
  kWaiterHearsOldNews,
  kQueuedCallsAreForgotten,
  kReplaysOutliveTheDatabase,
  kServingForgetsNothing,
  // In the client.
  kPermissionFromTheAnswer,
  kOwnResponseAfterARefusal,
  kHangUpSaysNeverExecuted,
  kThrowSaysNotExecuted,
  kResolverIsSkipped,
  kFunctionStartsUnasked,
  kDownstreamKeyOfTheAttempt,
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_PLANTED_BUG_H_
