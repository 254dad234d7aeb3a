#include "client/operation.h"

#include <gtest/gtest.h>

#include <string>

namespace idempotency {
namespace {

TEST(OperationTest, Utf8IsWhatTheStandardSays) {
  for (const std::string text : {"", "plain", "caf\u00e9", "\u20ac",
                                 "\U0001f4b6", "\U0010ffff", "\x7f"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
  }
  // Not ended, not begun, longer than needed, half of a pair, too large.
  for (const std::string text :
       {"caf\xc3", "\xa9", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
        "\xf4\x90\x80\x80", "\xff", "\xf8\x88\x80\x80\x80"}) {
    EXPECT_FALSE(IsUtf8(text)) << text;
  }
  EXPECT_TRUE(IsUtf8(std::string(1, '\0')));
}

TEST(OperationTest, AResponseSaysItsTypeUnlessThereIsNone) {
  const v1::Response json = MakeResponse(201, "{}");
  EXPECT_EQ(json.status_code(), 201);
  EXPECT_EQ(json.body(), "{}");
  ASSERT_EQ(json.headers_size(), 1);
  EXPECT_EQ(json.headers(0).name(), "content-type");
  EXPECT_EQ(json.headers(0).value(), "application/json");
  EXPECT_EQ(MakeResponse(204, "", "").headers_size(), 0);
}

TEST(OperationTest, OnlyAnOutageAndAFullProcessAreNoCoordinator) {
  const auto without_coordinator = [](absl::StatusCode code) {
    return HasNoCoordinator({.outcome = RunOutcome::kUnavailable,
                             .status = absl::Status(code, "")});
  };
  EXPECT_TRUE(without_coordinator(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(without_coordinator(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(without_coordinator(absl::StatusCode::kResourceExhausted));
  EXPECT_FALSE(without_coordinator(absl::StatusCode::kFailedPrecondition));
  EXPECT_FALSE(without_coordinator(absl::StatusCode::kUnauthenticated));
  EXPECT_FALSE(without_coordinator(absl::StatusCode::kDataLoss));
  EXPECT_FALSE(HasNoCoordinator(
      {.outcome = RunOutcome::kInDoubt, .status = absl::UnavailableError("")}));
}

}  // namespace
}  // namespace idempotency
