// RunOnce against a real server: what the function, its caller and everybody
// else with the same key are told.
#include "client/run_once.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/integration/wire_fixture.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class RunOnceTest : public WireTest {
 protected:
  RunOnceTest() : once_(RunOnce::Connect(replica().target())) {}

  Operation AnOperation(const std::string& policy = "default") {
    return {.scope = "payments",
            .key = NewKey(),
            .request_hash = std::string(32, 'h'),
            .policy = policy,
            .wait = milliseconds(0)};
  }

  const std::unique_ptr<RunOnce> once_;
};

FunctionResult MustNotRun(Execution&) {
  ADD_FAILURE() << "the function ran";
  return OutcomeUnknown{};
}

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

}  // namespace
}  // namespace idempotency
