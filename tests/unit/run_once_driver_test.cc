// RunOnce with real threads: callbacks and their threads.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/run_once_driver_fixture.h"

#if defined(__SANITIZE_THREAD__)
// The library that counts a Status's references was not built for it.
extern "C" const char* __tsan_default_suppressions() {
  return "race:absl::debian*::Status::Unref\n";
}
#endif

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// ------------------------------------------------------------------- answers

TEST_F(RunOnceDriverTest, TheFunctionRunsInTheCallingThread) {
  std::thread::id ran_in;
  const RunResult result =
      once().Run(TheOperation(), [&](Execution& execution) {
        ran_in = std::this_thread::get_id();
        EXPECT_EQ(execution.attempt(), 1);
        EXPECT_EQ(execution.fencing_token(), 41);
        EXPECT_EQ(execution.downstream_key(), "downstream");
        EXPECT_EQ(execution.abandoned(), nullptr);
        EXPECT_TRUE(execution.permitted());
        return Respond(201, "done");
      });
  EXPECT_EQ(ran_in, std::this_thread::get_id());
  EXPECT_EQ(result.outcome, RunOutcome::kExecuted);
  EXPECT_EQ(result.response.body(), "done");
  EXPECT_TRUE(result.recorded);
}

TEST_F(RunOnceDriverTest, ResolverAndFunctionRunOneAfterTheOther) {
  TakesOver();
  std::string order;
  const RunResult result = once().Run(
      TheOperation(),
      [&](Execution&) {
        order += " function";
        return Respond(201, "done");
      },
      [&](Execution& execution) -> Resolution {
        EXPECT_EQ(execution.abandoned()->attempt(), 1);
        order += "resolver";
        return NeverExecuted{};
      });
  EXPECT_EQ(order, "resolver function");
  EXPECT_EQ(result.outcome, RunOutcome::kExecuted);
}

TEST_F(RunOnceDriverTest, AFunctionThatThrowsLeavesItsOutcomeUnknown) {
  const RunResult result =
      once().Run(TheOperation(), [](Execution&) -> FunctionResult {
        throw std::runtime_error("the channel hung up");
      });
  EXPECT_EQ(result.outcome, RunOutcome::kUnknown);
  EXPECT_NE(result.status.message().find("the channel hung up"),
            absl::string_view::npos);
  EXPECT_EQ(Start([](const auto&, const auto&) { throw 1; }).get().outcome,
            RunOutcome::kUnknown);
  EXPECT_EQ(coordinator_->releases(),
            std::vector(2, v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN));
}

TEST_F(RunOnceDriverTest, AResolverThatThrowsLeavesItInDoubt) {
  TakesOver();
  const RunResult result = once().Run(
      TheOperation(), [](Execution&) { return Respond(201, "done"); },
      [](Execution&) -> Resolution { throw std::runtime_error("no"); });
  EXPECT_EQ(result.outcome, RunOutcome::kInDoubt);
}

TEST_F(RunOnceDriverTest, ADroppedCompletionIsAnUnknownOutcome) {
  EXPECT_EQ(Start([](const auto&, const auto&) {}).get().outcome,
            RunOutcome::kUnknown);
  EXPECT_EQ(coordinator_->releases(),
            std::vector(1, v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN));
}

TEST_F(RunOnceDriverTest, AResolversDroppedCompletionLeavesItInDoubt) {
  TakesOver();
  EXPECT_EQ(Start([](const auto&, const auto& done) { done(Respond(200, "")); },
                  [](const auto&, const auto&) {})
                .get()
                .outcome,
            RunOutcome::kInDoubt);
}

TEST_F(RunOnceDriverTest, TheFirstAnswerCounts) {
  const RunResult result = Start([](const auto&, const auto& done) {
                             done(Respond(201, "first"));
                             done(Respond(201, "second"));
                             throw std::runtime_error("third");
                           }).get();
  EXPECT_EQ(result.outcome, RunOutcome::kExecuted);
  EXPECT_EQ(result.response.body(), "first");
}

TEST_F(RunOnceDriverTest, AnAnswerMayComeFromAnotherThread) {
  std::promise<Completion<FunctionResult>> handed_out;
  std::future<RunResult> result =
      Start([&](const auto&, const auto& done) { handed_out.set_value(done); });
  handed_out.get_future().get()(Respond(201, "later"));
  EXPECT_EQ(result.get().response.body(), "later");
}

// ---------------------------------------------------------------- permission

TEST_F(RunOnceDriverTest, TheWithdrawalIsToldOnceToTheLatestCallback) {
  coordinator_->on_renewal = [](const v1::ClaimRequest&) {
    return Superseded();
  };
  std::atomic<int> replaced{0};
  std::atomic<int> told{0};
  const RunResult result =
      once().Run(TheOperation(), [&](Execution& execution) {
        std::promise<void> withdrawn;
        execution.OnWithdrawn([&] { ++replaced; });
        execution.OnWithdrawn([&] {
          ++told;
          withdrawn.set_value();
        });
        environment_->Advance(kLease / 2);
        withdrawn.get_future().wait();
        EXPECT_FALSE(execution.permitted());
        return NothingHappened{absl::CancelledError("withdrawn")};
      });
  EXPECT_EQ(result.outcome, RunOutcome::kNothingHappened);
  EXPECT_EQ(replaced, 0);
  EXPECT_EQ(told, 1);
}

TEST_F(RunOnceDriverTest, AWithdrawalThatHasHappenedIsToldAtOnce) {
  once().Run(TheOperation(), [&](Execution& execution) {
    environment_->Advance(kLease);
    EXPECT_FALSE(execution.permitted());
    std::promise<void> withdrawn;
    execution.OnWithdrawn([&] { withdrawn.set_value(); });
    withdrawn.get_future().wait();
    return Respond(201, "late");
  });
}

TEST_F(RunOnceDriverTest, ACallbackMayBeTakenBack) {
  options_.threads = 1;
  for (int i = 0; i < 3; ++i) {
    once().Run(TheOperation(), [&](Execution& execution) {
      execution.OnWithdrawn([] { ADD_FAILURE() << "taken back"; });
      execution.OnWithdrawn(nullptr);
      environment_->Advance(kLease);
      execution.OnWithdrawn(nullptr);
      execution.SaveCheckpoint("late", nullptr);
      return Respond(201, "done");
    });
  }
  // The pool's one thread is still there.
  EXPECT_EQ(
      Start([](const auto&, const auto& done) { done(Respond(201, "done")); })
          .get()
          .outcome,
      RunOutcome::kExecuted);
}

TEST_F(RunOnceDriverTest, AReplacedCallbackMayEndTheAttemptAsItGoes) {
  std::future<RunResult> result =
      Start([&](const std::shared_ptr<Execution>& execution, auto done) {
        auto last = std::make_shared<Completion<FunctionResult>>(done);
        execution->OnWithdrawn([last] {});
        last.reset();
        done = Completion<FunctionResult>([](const FunctionResult&) {});
        execution->OnWithdrawn([] {});
      });
  EXPECT_EQ(result.get().outcome, RunOutcome::kUnknown);
}

TEST_F(RunOnceDriverTest, WithoutAFunctionNothingIsClaimed) {
  const RunResult result = once().Run(TheOperation(), nullptr);
  EXPECT_EQ(result.outcome, RunOutcome::kInvalid);
  EXPECT_EQ(once().operations(), 0u);
}

TEST_F(RunOnceDriverTest, AFunctionThatGotNoThreadDuringItsLeaseIsNotCalled) {
  const auto executor = std::make_shared<HoldingExecutor>();
  options_.executor = executor;
  bool called = false;
  std::future<RunResult> result = Start([&](const auto&, const auto& done) {
    called = true;
    done(Respond(201, "too late"));
  });
  const std::function<void()> function = executor->Take();
  environment_->Advance(2 * kLease);
  function();
  executor->Take()();
  EXPECT_EQ(result.get().outcome, RunOutcome::kUnavailable);
  EXPECT_FALSE(called);
}

TEST_F(RunOnceDriverTest, ACallbackThatHoldsItsExecutionDoesNotKeepIt) {
  std::weak_ptr<Execution> kept;
  Start([&](const std::shared_ptr<Execution>& execution, const auto& done) {
    kept = execution;
    execution->OnWithdrawn([execution] {});
    done(Respond(201, "done"));
  }).get();
  once_.reset();
  coordinator_.reset();  // its threads may just be letting go
  EXPECT_TRUE(kept.expired());
}

// --------------------------------------------------------------- checkpoints

TEST_F(RunOnceDriverTest, ACheckpointCanBeWaitedFor) {
  std::string stored;
  coordinator_->on_renewal = [&](const v1::ClaimRequest& request) {
    stored = request.checkpoint();
    return ClaimedFor(kLease);
  };
  once().Run(TheOperation(), [&](Execution& execution) {
    EXPECT_TRUE(execution.SaveCheckpoint("half").ok());
    EXPECT_EQ(stored, "half");
    EXPECT_EQ(execution.SaveCheckpoint(std::string(4097, 'x')).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(execution.SaveCheckpoint(std::string(4096, 'x')).ok());
    return Respond(201, "done");
  });
}

TEST_F(RunOnceDriverTest, ARefusedCheckpointWithdrawsThePermission) {
  coordinator_->on_renewal = [](const v1::ClaimRequest&) {
    return Superseded();
  };
  once().Run(TheOperation(), [&](Execution& execution) {
    EXPECT_EQ(execution.SaveCheckpoint("half"), Superseded());
    EXPECT_FALSE(execution.permitted());
    return Respond(201, "done");
  });
}

TEST_F(RunOnceDriverTest, EveryCheckpointIsAnsweredOnce) {
  constexpr int kCheckpoints = 50;
  std::atomic<int> answers{0};
  Start([&](const std::shared_ptr<Execution>& execution, const auto& done) {
    for (int i = 0; i < kCheckpoints; ++i) {
      execution->SaveCheckpoint(std::to_string(i),
                                [&](const absl::Status&) { ++answers; });
    }
    done(Respond(201, "done"));
  }).get();
  once_.reset();
  EXPECT_EQ(answers, kCheckpoints);
}

}  // namespace
}  // namespace idempotency
