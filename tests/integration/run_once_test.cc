// RunOnce against a real server: what the function, its caller and everybody
// else with the same key are told.
#include "client/run_once.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "client/status.h"
#include "tests/integration/once_fixture.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_F(RunOnceTest, TheFirstExecutesAndTheNextGetsItsResponse) {
  const Operation operation = AnOperation();

  const RunResult first = once_->Run(operation, [](Execution& execution) {
    EXPECT_EQ(execution.attempt(), 1);
    EXPECT_TRUE(execution.permitted());
    EXPECT_EQ(execution.abandoned(), nullptr);
    EXPECT_GT(execution.fencing_token(), 0);
    EXPECT_EQ(execution.downstream_key().size(), 36u);
    return Respond(201, "{\"id\":1}");
  });
  const RunResult second = once_->Run(operation, MustNotRun);

  EXPECT_EQ(first.outcome, RunOutcome::kExecuted) << first.status;
  EXPECT_TRUE(first.recorded);
  EXPECT_EQ(second.outcome, RunOutcome::kReplayed) << second.status;
  EXPECT_EQ(second.response.SerializeAsString(),
            first.response.SerializeAsString());
}

TEST_F(RunOnceTest, AFunctionThatDidNothingLeavesTheKeyFree) {
  const Operation operation = AnOperation("payment");

  const RunResult first = once_->Run(operation, [](Execution&) {
    return NothingHappened{absl::InvalidArgumentError("no such account")};
  });
  const RunResult second =
      once_->Run(operation, [](Execution&) { return Respond(201, ""); });

  EXPECT_EQ(first.outcome, RunOutcome::kNothingHappened);
  EXPECT_EQ(first.status.message(), "no such account");
  EXPECT_EQ(second.outcome, RunOutcome::kExecuted) << second.status;
}

TEST_F(RunOnceTest, AFunctionThatThrowsLeavesTheOutcomeUnknown) {
  const Operation operation = AnOperation();

  const RunResult first =
      once_->Run(operation, [](Execution&) -> FunctionResult {
        throw std::runtime_error("the line went dead");
      });
  const RunResult second = once_->Run(operation, [](Execution& execution) {
    EXPECT_EQ(execution.attempt(), 2);
    EXPECT_NE(execution.abandoned(), nullptr);
    if (execution.abandoned() != nullptr) {
      EXPECT_EQ(execution.abandoned()->reason(),
                v1::Abandoned::REASON_OUTCOME_UNKNOWN);
    }
    return Respond(201, "");
  });

  EXPECT_EQ(first.outcome, RunOutcome::kUnknown);
  EXPECT_THAT(std::string(first.status.message()),
              testing::HasSubstr("the line went dead"));
  EXPECT_EQ(second.outcome, RunOutcome::kExecuted) << second.status;
}

// --------------------------------------------------- somebody else's answer

TEST_F(RunOnceTest, AnotherRequestWithTheKeyIsAMismatch) {
  Operation operation = AnOperation();
  once_->Run(operation, [](Execution&) { return Respond(201, "paid"); });
  operation.request_hash = std::string(32, 'x');

  const RunResult other = Ask(operation);

  EXPECT_EQ(other.outcome, RunOutcome::kMismatch) << other.status;
  EXPECT_FALSE(other.has_response());
  EXPECT_EQ(other.status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(RunOnceTest, WhileItRunsADuplicateIsToldWhenToAskAgain) {
  const Operation operation = AnOperation();
  RunResult duplicate;

  once_->Run(operation, [&](Execution&) {
    duplicate = Ask(operation);
    return Respond(201, "");
  });

  EXPECT_EQ(duplicate.outcome, RunOutcome::kInProgress) << duplicate.status;
  EXPECT_EQ(duplicate.status.code(), absl::StatusCode::kAborted);
  const auto retry_after = RetryDelayOf(duplicate.status);
  ASSERT_TRUE(retry_after.has_value());
  EXPECT_GT(*retry_after, milliseconds(0));
  EXPECT_LE(*retry_after, seconds(2));
}

TEST_F(RunOnceTest, ThoseWhoWaitGetTheFirstOnesResponse) {
  constexpr int kWaiters = 8;
  const Operation operation = AnOperation();
  std::vector<RunResult> waited(kWaiters);
  std::vector<std::jthread> waiters;

  const RunResult first = once_->Run(operation, [&](Execution&) {
    std::atomic<int> asking{0};
    for (RunResult& result : waited) {
      waiters.emplace_back([&] {
        ++asking;
        result = Ask(Waiting(operation));
      });
    }
    WaitUntil([&] { return asking == kWaiters; });
    return Respond(201, "the first one's");
  });
  waiters.clear();

  ASSERT_TRUE(Answers(first, RunOutcome::kExecuted, "the first one's"));
  for (const RunResult& result : waited) {
    EXPECT_TRUE(Answers(result, RunOutcome::kReplayed, "the first one's"));
    EXPECT_EQ(result.response.SerializeAsString(),
              first.response.SerializeAsString());
  }
}

// ------------------------------------------------------------------- in doubt

TEST_F(RunOnceTest, HeldInDoubtNobodyExecutesWithoutAResolver) {
  const Operation operation = AnOperation("payment");
  Abandon(operation);

  const RunResult second = Ask(operation);

  EXPECT_EQ(second.outcome, RunOutcome::kInDoubt) << second.status;
  EXPECT_EQ(second.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(RecordOf(operation).state(), v1::Record::STATE_IN_DOUBT);
}

TEST_F(RunOnceTest, WhatTheResolverFindsDoneIsTheAnswerForAll) {
  const Operation operation = AnOperation("payment");
  Abandon(operation);
  std::string asked_for;

  const RunResult second =
      once_->Run(operation, MustNotRun, [&](Execution& execution) {
        EXPECT_NE(execution.abandoned(), nullptr);
        asked_for = execution.downstream_key();
        v1::Response found;
        found.set_status_code(201);
        found.set_body("found");
        return WasExecuted{found};
      });

  EXPECT_TRUE(Answers(second, RunOutcome::kResolved, "found"));
  EXPECT_TRUE(second.recorded);
  EXPECT_EQ(asked_for, RecordOf(operation).abandoned().downstream_key());
  EXPECT_TRUE(Answers(Ask(operation), RunOutcome::kReplayed, "found"));
}

TEST_F(RunOnceTest, WhatTheResolverFindsUndoneIsExecutedWithTheSameKey) {
  const Operation operation = AnOperation("payment");
  std::string first_key;
  once_->Run(operation, [&](Execution& execution) {
    first_key = execution.downstream_key();
    return OutcomeUnknown{};
  });

  const RunResult second = once_->Run(
      operation,
      [&](Execution& execution) {
        EXPECT_EQ(execution.attempt(), 2);
        EXPECT_EQ(execution.downstream_key(), first_key);
        EXPECT_TRUE(execution.permitted());
        return Respond(201, "the second one's");
      },
      [](Execution&) { return NeverExecuted{}; });

  EXPECT_TRUE(Answers(second, RunOutcome::kExecuted, "the second one's"));
  EXPECT_TRUE(second.recorded);
}

TEST_F(RunOnceTest, WhatTheResolverCannotTellStaysInDoubt) {
  const Operation operation = AnOperation("payment");
  Abandon(operation);

  const RunResult second =
      once_->Run(operation, MustNotRun, [](Execution&) -> Resolution {
        return StillUnknown{absl::UnavailableError("no answer")};
      });
  const RunResult third = once_->Run(
      operation, MustNotRun,
      [](Execution&) -> Resolution { throw std::runtime_error("no line"); });

  EXPECT_EQ(second.outcome, RunOutcome::kInDoubt);
  EXPECT_EQ(second.status.message(), "no answer");
  EXPECT_EQ(third.outcome, RunOutcome::kInDoubt);
  EXPECT_THAT(std::string(third.status.message()),
              testing::HasSubstr("no line"));
  EXPECT_EQ(RecordOf(operation).state(), v1::Record::STATE_IN_DOUBT);
  EXPECT_EQ(Ask(operation).outcome, RunOutcome::kInDoubt);
}

TEST_F(RunOnceTest, WithoutAHoldAResolverIsAskedBeforeTheFunction) {
  const Operation operation = AnOperation();
  Abandon(operation);
  bool resolved = false;

  const RunResult second = once_->Run(
      operation,
      [&](Execution&) {
        EXPECT_TRUE(resolved);
        return Respond(201, "");
      },
      [&](Execution&) {
        resolved = true;
        return NeverExecuted{};
      });

  EXPECT_EQ(second.outcome, RunOutcome::kExecuted) << second.status;
}

// -------------------------------------------- responses that are not replayed

TEST_F(RunOnceTest, AServerErrorIsAnsweredAndTheNextOneIsTold) {
  const Operation operation = AnOperation();

  const RunResult first = once_->Run(
      operation, [](Execution&) { return Respond(503, "overloaded"); });
  const RunResult second = once_->Run(operation, [](Execution& execution) {
    EXPECT_NE(execution.abandoned(), nullptr);
    if (execution.abandoned() != nullptr) {
      EXPECT_EQ(execution.abandoned()->reason(),
                v1::Abandoned::REASON_SERVER_ERROR);
      EXPECT_EQ(execution.abandoned()->status_code(), 503);
    }
    return Respond(201, "paid");
  });

  EXPECT_TRUE(Answers(first, RunOutcome::kExecuted, "overloaded"));
  EXPECT_FALSE(first.recorded);
  EXPECT_TRUE(Answers(second, RunOutcome::kExecuted, "paid"));
  EXPECT_TRUE(second.recorded);
}

TEST_F(RunOnceTest, AServerErrorOfAPaymentIsHeld) {
  const Operation operation = AnOperation("payment");

  const RunResult first = once_->Run(
      operation, [](Execution&) { return Respond(504, "no answer"); });

  EXPECT_TRUE(Answers(first, RunOutcome::kExecuted, "no answer"));
  EXPECT_FALSE(first.recorded);
  EXPECT_EQ(Ask(operation).outcome, RunOutcome::kInDoubt);
}

TEST_F(RunOnceTest, AResponseTooLongToKeepIsReplayedWithoutItsBody) {
  const Operation operation = AnOperation();
  const std::string body((std::size_t{1} << 20) + 1, 'x');

  const RunResult first =
      once_->Run(operation, [&](Execution&) { return Respond(201, body); });
  const RunResult second = Ask(operation);

  EXPECT_TRUE(Answers(first, RunOutcome::kExecuted, body));
  EXPECT_TRUE(first.recorded);
  EXPECT_TRUE(Answers(second, RunOutcome::kReplayed, ""));
  EXPECT_EQ(second.response.status_code(), 201);
  EXPECT_TRUE(second.response.body_omitted());
}

TEST_F(RunOnceTest, AResponseThatCannotBeRecordedLeavesTheOutcomeUnknown) {
  const Operation operation = AnOperation("payment");

  const RunResult first =
      once_->Run(operation, [](Execution&) { return Respond(1000, ""); });

  EXPECT_EQ(first.outcome, RunOutcome::kUnknown);
  EXPECT_EQ(first.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Ask(operation).outcome, RunOutcome::kInDoubt);
}

}  // namespace
}  // namespace idempotency
