// What the simulation has to find, planted one at a time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>

#include "tests/simulation/simulation_seeds.h"
#include "tests/simulation/world.h"

namespace idempotency {
namespace {

// Each shows long before.
constexpr std::uint64_t kSeedsForABug = 6000;

struct BugCase {
  PlantedBug bug;
  const char* name;
  // The promises of which it must break one.
  std::set<std::string> promises;
  // One that shows seldom is looked for where it does, to save time.
  std::uint64_t first_seed = 1;
};

class PlantedBugTest : public ::testing::TestWithParam<BugCase> {};

TEST_P(PlantedBugTest, IsFound) {
  const BugCase& planted = GetParam();
  const std::set<std::string> broken =
      BrokenPromises(planted.promises, planted.first_seed, kSeedsForABug,
                     [&](std::uint64_t seed) {
                       World world(seed, planted.bug);
                       world.Run();
                       return world.violations();
                     });
  EXPECT_TRUE(AnyOf(planted.promises, broken))
      << ::testing::PrintToString(broken);
}

INSTANTIATE_TEST_SUITE_P(
    Bugs, PlantedBugTest,
    ::testing::Values(
        BugCase{PlantedBug::kGuardIsNotReadAgain,
                "GuardIsNotReadAgain",
                {"S2", "S3", "S6"}},
        BugCase{
            PlantedBug::kInsertDoesNotWait, "InsertDoesNotWait", {"S18", "S2"}},
        BugCase{PlantedBug::kAnswerBeforeCommit, "AnswerBeforeCommit", {"S1"}},
        BugCase{PlantedBug::kCancelledWaitIsSuccess,
                "CancelledWaitIsSuccess",
                {"S2", "S8"}},
        BugCase{
            PlantedBug::kReleaseIsNotDurable, "ReleaseIsNotDurable", {"S12"}},
        BugCase{PlantedBug::kGiveUpIsNotDurable, "GiveUpIsNotDurable", {"S7"}},
        BugCase{
            PlantedBug::kEvidenceIsNotDurable, "EvidenceIsNotDurable", {"S7"}},
        BugCase{PlantedBug::kLostAnswerCountsAsUndone,
                "LostAnswerCountsAsUndone",
                {"S15"}},
        BugCase{PlantedBug::kClockIsReadAfterwards,
                "ClockIsReadAfterwards",
                {"S2", "S7", "S12"},
                1800},
        BugCase{PlantedBug::kConfirmedWithoutAWrite,
                "ConfirmedWithoutAWrite",
                {"S2", "S8"}},
        BugCase{PlantedBug::kReplaceIgnoresTheGuard,
                "ReplaceIgnoresTheGuard",
                {"S6"}},
        BugCase{PlantedBug::kFinalizeIgnoresTheOwner,
                "FinalizeIgnoresTheOwner",
                {"S7"}},
        BugCase{PlantedBug::kReadsFromTheStandby,
                "ReadsFromTheStandby",
                {"S5", "S8", "S10"}},
        BugCase{PlantedBug::kSweepDoesNotLookAgain,
                "SweepDoesNotLookAgain",
                {"S18"}},
        BugCase{PlantedBug::kBodyIsNormalised, "BodyIsNormalised", {"S9"}},
        BugCase{PlantedBug::kFencingTokenPerRow,
                "FencingTokenPerRow",
                {"S1", "S2"}},
        BugCase{PlantedBug::kTakeoverIsNotTold, "TakeoverIsNotTold", {"S16"}},
        BugCase{
            PlantedBug::kRetriedClaimIsNew, "RetriedClaimIsNew", {"S1", "S5"}},
        BugCase{PlantedBug::kReleasedClaimComesBack,
                "ReleasedClaimComesBack",
                {"S12"}},
        BugCase{PlantedBug::kScopeIsForgotten, "ScopeIsForgotten", {"S13"}},
        BugCase{PlantedBug::kLooksFindNothing, "LooksFindNothing", {"S5"}},
        BugCase{PlantedBug::kUnfinishedIsCached,
                "UnfinishedIsCached",
                {"S5", "S8"}},
        BugCase{PlantedBug::kWaiterHearsOldNews,
                "WaiterHearsOldNews",
                {"S5", "S8", "S10", "S16"}},
        BugCase{PlantedBug::kQueuedCallsAreForgotten,
                "QueuedCallsAreForgotten",
                {"L3"}},
        BugCase{PlantedBug::kReplaysOutliveTheDatabase,
                "ReplaysOutliveTheDatabase",
                {"S10"}},
        BugCase{PlantedBug::kServingForgetsNothing,
                "ServingForgetsNothing",
                {"S10"}},
        BugCase{PlantedBug::kPermissionFromTheAnswer,
                "PermissionFromTheAnswer",
                {"permission"}},
        BugCase{PlantedBug::kOwnResponseAfterARefusal,
                "OwnResponseAfterARefusal",
                {"recorded"}},
        BugCase{PlantedBug::kHangUpSaysNeverExecuted,
                "HangUpSaysNeverExecuted",
                {"S14"}},
        BugCase{
            PlantedBug::kThrowSaysNotExecuted, "ThrowSaysNotExecuted", {"S14"}},
        BugCase{PlantedBug::kResolverIsSkipped,
                "ResolverIsSkipped",
                {"charged-knowingly"}},
        BugCase{PlantedBug::kFunctionStartsUnasked,
                "FunctionStartsUnasked",
                {"permission"}},
        BugCase{PlantedBug::kDownstreamKeyOfTheAttempt,
                "DownstreamKeyOfTheAttempt",
                {"S14"}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace idempotency
