// RunOnce with real threads: its end, and many operations at a time.

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

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

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
