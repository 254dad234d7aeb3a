#include "server/core/errors.h"

#include <gtest/gtest.h>

#include <vector>

namespace idempotency {
namespace {

using absl::StatusCode;

struct Known {
  Reason reason;
  const char* name;
  StatusCode code;
};

// What callers in every language rely on.
const std::vector<Known>& KnownReasons() {
  static const auto* const known = new std::vector<Known>{
      {Reason::kInvalidField, "INVALID_FIELD", StatusCode::kInvalidArgument},
      {Reason::kUnknownPolicy, "UNKNOWN_POLICY", StatusCode::kInvalidArgument},
      {Reason::kPolicyNotAllowed, "POLICY_NOT_ALLOWED",
       StatusCode::kInvalidArgument},
      {Reason::kClaimReleased, "CLAIM_RELEASED",
       StatusCode::kFailedPrecondition},
      {Reason::kClaimSuperseded, "CLAIM_SUPERSEDED",
       StatusCode::kFailedPrecondition},
      {Reason::kAlreadyFinalized, "ALREADY_FINALIZED",
       StatusCode::kFailedPrecondition},
      {Reason::kRecordNotFound, "RECORD_NOT_FOUND", StatusCode::kNotFound},
      {Reason::kStoreUnavailable, "STORE_UNAVAILABLE",
       StatusCode::kUnavailable},
      {Reason::kOverloaded, "OVERLOADED", StatusCode::kUnavailable},
      {Reason::kDraining, "DRAINING", StatusCode::kUnavailable},
      {Reason::kOutcomeUnknown, "OUTCOME_UNKNOWN", StatusCode::kUnavailable},
      {Reason::kDeadlineExceeded, "DEADLINE_EXCEEDED",
       StatusCode::kDeadlineExceeded},
      {Reason::kRecordCorrupt, "RECORD_CORRUPT", StatusCode::kDataLoss},
      {Reason::kInternal, "INTERNAL", StatusCode::kInternal},
  };
  return *known;
}

TEST(ErrorsTest, EveryReasonHasItsStableNameAndCode) {
  for (const Known& known : KnownReasons()) {
    EXPECT_EQ(ReasonName(known.reason), known.name);
    EXPECT_EQ(CodeOf(known.reason), known.code) << known.name;
  }
}

TEST(ErrorsTest, TheReasonTravelsWithTheError) {
  for (const Known& known : KnownReasons()) {
    const absl::Status error = MakeError(known.reason, "what to do");
    EXPECT_EQ(error.code(), known.code);
    EXPECT_EQ(error.message(), "what to do");
    EXPECT_TRUE(HasReason(error));
    EXPECT_EQ(ReasonOf(error), known.reason);
    const absl::Status copy = error;
    EXPECT_EQ(ReasonOf(copy), known.reason);
  }
}

TEST(ErrorsTest, AnInvalidFieldIsNamed) {
  const absl::Status error = InvalidField("scope", "must not be empty");
  EXPECT_EQ(ReasonOf(error), Reason::kInvalidField);
  EXPECT_EQ(FieldOf(error), "scope");
  EXPECT_EQ(error.message(), "scope: must not be empty");
  EXPECT_EQ(FieldOf(MakeError(Reason::kInternal, "")), "");
}

TEST(ErrorsTest, AnErrorMaySayWhenToComeBack) {
  const absl::Status error = MakeError(Reason::kOverloaded, "later");
  EXPECT_EQ(DelayAskedBy(error), std::nullopt);
  const absl::Status timed =
      WithRetryDelay(error, std::chrono::milliseconds(1234));
  EXPECT_EQ(DelayAskedBy(timed), std::chrono::milliseconds(1234));
  EXPECT_EQ(ReasonOf(timed), Reason::kOverloaded);
}

TEST(ErrorsTest, AnErrorFromElsewhereHasTheReasonOfItsCode) {
  EXPECT_FALSE(HasReason(absl::UnavailableError("")));
  EXPECT_EQ(ReasonOf(absl::UnavailableError("")), Reason::kStoreUnavailable);
  EXPECT_EQ(ReasonOf(absl::DeadlineExceededError("")),
            Reason::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(absl::UnknownError("")), Reason::kInternal);
  EXPECT_FALSE(HasReason(absl::OkStatus()));
}

}  // namespace
}  // namespace idempotency
