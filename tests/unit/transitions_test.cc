// Every situation times every way of asking: the decision is the one that the
// tables state.
#include "server/core/transitions.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "server/core/errors.h"
#include "tests/unit/expected_outcomes.h"
#include "tests/unit/situations.h"

namespace idempotency {
namespace {

// Says what differs; empty when nothing does.
template <typename Outcome>
std::string Difference(const Expected<Outcome>& expected,
                       const Decision<Outcome>& decision,
                       const std::optional<Record>& before) {
  if (expected.error.has_value()) {
    if (decision.answer.ok()) return "an outcome instead of an error";
    if (!HasReason(decision.answer.status()) ||
        ReasonOf(decision.answer.status()) != *expected.error) {
      return "error " +
             std::string(ReasonName(ReasonOf(decision.answer.status())));
    }
  } else {
    if (!decision.answer.ok()) {
      return "error " + std::string(decision.answer.status().message());
    }
    if (*decision.answer != *expected.outcome) return "another outcome";
  }
  if (decision.evidence != expected.evidence) return "evidence";
  if (decision.write.has_value() != expected.after.has_value()) {
    return decision.write.has_value() ? "a write" : "no write";
  }
  if (!decision.write.has_value()) return "";
  if (Comparable(*decision.write) != Comparable(*expected.after)) {
    return "another record is written";
  }
  if (before.has_value() && decision.write->version <= before->version) {
    return "the version does not grow";
  }
  return "";
}

// Decides every choice in every situation and tells of the first differences.
template <typename Choices, typename Decide, typename Expect>
void CheckAll(const Choices& choices, const Decide& decide,
              const Expect& expect) {
  int differences = 0;
  for (const Situation& situation : AllSituations()) {
    const std::optional<Record> record = RecordIn(situation);
    const Record* const before = record.has_value() ? &*record : nullptr;
    for (const auto& choice : choices) {
      const auto expected = expect(situation, choice);
      const std::string difference =
          Difference(expected, decide(before, situation, choice), record);
      if (difference.empty()) continue;
      ADD_FAILURE() << Describe(situation) << "\n"
                    << Describe(choice) << "\nrow: " << expected.row
                    << "\ndiffers: " << difference;
      if (++differences == 10) return;
    }
  }
}

TEST(TransitionsTest, TheSpaceHoldsEveryKindOfRecord) {
  EXPECT_GT(AllSituations().size(), 3000u);
  EXPECT_EQ(AllClaimChoices().size(), 2u * 2 * 3 * 2 * 3 * 8);
  EXPECT_EQ(AllFinalizeChoices().size(), 2u * 5 * 2 * 2 * 2);
  EXPECT_EQ(AllReleaseChoices().size(), 2u * 3);
}

TEST(TransitionsTest, EveryClaimIsDecidedByTheFirstRowThatFits) {
  CheckAll(
      AllClaimChoices(),
      [](const Record* record, const Situation& s, const ClaimChoice& c) {
        return DecideClaim(record, ClaimOf(s, c), Now());
      },
      ExpectedClaim);
}

TEST(TransitionsTest, EveryFinalizeIsDecidedByTheFirstRowThatFits) {
  CheckAll(
      AllFinalizeChoices(),
      [](const Record* record, const Situation&, const FinalizeChoice& c) {
        return DecideFinalize(record, FinalizeOf(c), Now());
      },
      ExpectedFinalize);
}

TEST(TransitionsTest, EveryReleaseIsDecidedByTheFirstRowThatFits) {
  CheckAll(
      AllReleaseChoices(),
      [](const Record* record, const Situation&, const ReleaseChoice& c) {
        return DecideRelease(record, ReleaseOf(c), Now());
      },
      ExpectedRelease);
}

TEST(TransitionsTest, EveryLookupShowsTheRecordUnlessItIsAbsent) {
  for (const Situation& situation : AllSituations()) {
    SCOPED_TRACE(Describe(situation));
    const std::optional<Record> record = RecordIn(situation);
    const absl::StatusOr<LookupOutcome> outcome =
        DecideLookup(record.has_value() ? &*record : nullptr, Now());
    const std::optional<VisibleState> expected = ExpectedLookup(situation);
    ASSERT_EQ(outcome.ok(), expected.has_value());
    if (!outcome.ok()) {
      EXPECT_EQ(ReasonOf(outcome.status()), Reason::kRecordNotFound);
      continue;
    }
    EXPECT_EQ(outcome->state, *expected);
    EXPECT_EQ(outcome->record, *record);
    EXPECT_EQ(outcome->conflict_count, 0);
  }
}

}  // namespace
}  // namespace idempotency
