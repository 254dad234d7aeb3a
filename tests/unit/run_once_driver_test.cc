// RunOnce with real threads: callbacks, their threads, and its end.

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

#include "client/run_once.h"
#include "tests/unit/once_fixture.h"
#include "tests/unit/scripted_coordinator.h"

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

constexpr seconds kLease{9};

Operation TheOperation() {
  return {
      .scope = "payments", .key = "key", .request_hash = std::string(32, 'h')};
}

class RunOnceDriverTest : public ::testing::Test {
 protected:
  RunOnceDriverTest() {
    coordinator_->on_claim = [](const v1::ClaimRequest&) {
      return ClaimedFor(kLease);
    };
    coordinator_->on_renewal = coordinator_->on_claim;
    coordinator_->on_finalize = [](const v1::FinalizeRequest&) {
      v1::FinalizeResponse recorded;
      recorded.set_result(v1::FinalizeResponse::RESULT_RECORDED);
      return recorded;
    };
    options_.client.environment = environment_;
  }
  ~RunOnceDriverTest() override { once_.reset(); }

  void TakesOver() {
    coordinator_->on_claim = [](const v1::ClaimRequest&) {
      return ClaimedFor(kLease, 2);
    };
  }

  RunOnce& once() {
    if (once_ == nullptr) {
      once_ = std::make_unique<RunOnce>(coordinator_, options_);
    }
    return *once_;
  }

  // Starts it; the future has its one result.
  std::future<RunResult> Start(AsyncFunction function,
                               AsyncResolver resolve = nullptr) {
    const auto result = std::make_shared<std::promise<RunResult>>();
    once().Start(
        TheOperation(), std::move(function),
        [result](const RunResult& delivered) { result->set_value(delivered); },
        std::move(resolve));
    return result->get_future();
  }

  std::shared_ptr<ScriptedCoordinator> coordinator_ =
      std::make_shared<ScriptedCoordinator>();
  const std::shared_ptr<ManualEnvironment> environment_ =
      std::make_shared<ManualEnvironment>();
  RunOnceOptions options_;
  std::unique_ptr<RunOnce> once_;
};

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

// -------------------------------------------------------------------- the end

TEST_F(RunOnceDriverTest, ItsEndWaitsForRunningFunctions) {
  std::promise<void> runs;
  std::promise<void> go_on;
  std::future<RunResult> result = Start([&](const auto&, const auto& done) {
    runs.set_value();
    go_on.get_future().wait();
    done(Respond(201, "done"));
  });
  runs.get_future().wait();
  std::atomic<bool> ended{false};
  std::jthread ends([&] {
    once_.reset();
    ended = true;
  });
  std::this_thread::yield();
  EXPECT_FALSE(ended);
  go_on.set_value();
  ends.join();
  EXPECT_EQ(result.get().outcome, RunOutcome::kExecuted);
}

TEST_F(RunOnceDriverTest, ItsEndWaitsNoLongerForOtherOwners) {
  std::latch claimed(1);
  coordinator_->on_claim = [&](const v1::ClaimRequest&) {
    claimed.count_down();
    return InProgressFor(seconds(1));
  };
  std::future<RunResult> result =
      Start([](const auto&, const auto& done) { done(Respond(201, "")); });
  claimed.wait();
  once_.reset();
  EXPECT_EQ(result.get().outcome, RunOutcome::kHungUp);
}

TEST_F(RunOnceDriverTest, AClaimGrantedAfterTheHangUpIsGivenBack) {
  std::promise<void> asked;
  std::promise<void> answer;
  coordinator_->on_claim = [&](const v1::ClaimRequest&) {
    asked.set_value();
    answer.get_future().wait();
    return ClaimedFor(kLease);
  };
  std::promise<RunResult> result;
  std::atomic<bool> called{false};
  const std::unique_ptr<Running> running = once().Start(
      TheOperation(),
      [&](const auto&, const auto& done) {
        called = true;
        done(Respond(201, ""));
      },
      [&](const RunResult& delivered) { result.set_value(delivered); });
  asked.get_future().wait();
  running->HangUp();
  running->HangUp();
  EXPECT_EQ(result.get_future().get().outcome, RunOutcome::kHungUp);
  answer.set_value();
  once_.reset();
  running->HangUp();
  EXPECT_FALSE(called);
  EXPECT_EQ(coordinator_->releases(),
            std::vector(1, v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED));
}

TEST_F(RunOnceDriverTest, ARenewalUnderWayDoesNotOutliveItsEnd) {
  std::promise<void> asked;
  std::promise<void> answer;
  coordinator_->on_renewal = [&](const v1::ClaimRequest&) {
    asked.set_value();
    answer.get_future().wait();
    return ClaimedFor(kLease);
  };
  once().Run(TheOperation(), [&](Execution&) {
    environment_->Advance(kLease / 2);
    asked.get_future().wait();
    return Respond(201, "done");
  });
  once_.reset();
  answer.set_value();
}

TEST_F(RunOnceDriverTest, AnExecutionMayBeKept) {
  std::shared_ptr<Execution> kept;
  Start([&](const std::shared_ptr<Execution>& execution, const auto& done) {
    kept = execution;
    done(Respond(201, "done"));
  }).get();
  once_.reset();
  EXPECT_FALSE(kept->permitted());
  EXPECT_EQ(kept->attempt(), 1);
  EXPECT_FALSE(kept->SaveCheckpoint("late").ok());
  bool told = false;
  kept->OnWithdrawn([&] { told = true; });
  EXPECT_TRUE(told);
  absl::Status status;
  kept->SaveCheckpoint("late", [&](absl::Status s) { status = std::move(s); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  environment_->Advance(2 * kLease);
}

// --------------------------------------------------------------------- bounds

TEST_F(RunOnceDriverTest, MoreOperationsThanAllowedAreRefused) {
  options_.operations_max = 1;
  std::promise<void> runs;
  std::promise<void> go_on;
  std::future<RunResult> first = Start([&](const auto&, const auto& done) {
    runs.set_value();
    go_on.get_future().wait();
    done(Respond(201, "done"));
  });
  runs.get_future().wait();
  EXPECT_EQ(once().operations(), 1u);
  const RunResult refused =
      once().Run(TheOperation(), [](Execution&) { return Respond(201, ""); });
  EXPECT_EQ(refused.outcome, RunOutcome::kUnavailable);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kResourceExhausted);
  go_on.set_value();
  EXPECT_EQ(first.get().outcome, RunOutcome::kExecuted);
}

// Asks back while it is handed a task, as one with a bounded queue waits.
class CuriousExecutor final : public Executor {
 public:
  void Run(std::function<void()> task) override {
    if (RunOnce* const once = asked_.load()) once->operations();
    threads_->Run(std::move(task));
  }
  void Ask(RunOnce* once) { asked_ = once; }

 private:
  std::atomic<RunOnce*> asked_{nullptr};
  const std::unique_ptr<Executor> threads_ = NewThreadPool(2);
};

TEST_F(RunOnceDriverTest, NoLockIsHeldWhileATaskIsHandedOver) {
  const auto executor = std::make_shared<CuriousExecutor>();
  options_.executor = executor;
  executor->Ask(&once());
  EXPECT_EQ(Start([](const auto&, const auto& done) { done(Respond(201, "")); })
                .get()
                .outcome,
            RunOutcome::kExecuted);
}

TEST_F(RunOnceDriverTest, ManyOperationsHaveOneResultEach) {
  constexpr int kOperations = 2000;
  std::vector<std::atomic<int>> results(kOperations);
  std::atomic<int> claims{0};
  coordinator_->on_claim = [&](const v1::ClaimRequest&) {
    switch (claims++ % 4) {
      case 0:
        return absl::StatusOr<v1::ClaimResponse>(Overloaded());
      case 1:
        return absl::StatusOr<v1::ClaimResponse>(
            ReplayOf(ResponseOf(200, "before")));
      default:
        return absl::StatusOr<v1::ClaimResponse>(ClaimedFor(kLease));
    }
  };
  once();
  {
    std::vector<std::jthread> callers;
    for (int thread = 0; thread < 4; ++thread) {
      callers.emplace_back([&, thread] {
        for (int i = thread; i < kOperations; i += 4) {
          const auto running = once_->Start(
              TheOperation(),
              [i](const auto& execution, const auto& done) {
                execution->OnWithdrawn([] {});
                execution->SaveCheckpoint("", [](const absl::Status&) {});
                if (i % 3 != 0) done(Respond(201, "done"));
              },
              [&results, i](const RunResult&) { ++results[i]; });
          if (i % 5 == 0) running->HangUp();
          if (i % 50 == 0) environment_->Advance(milliseconds(100));
        }
      });
    }
  }
  once_.reset();
  for (const std::atomic<int>& count : results) EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace idempotency
