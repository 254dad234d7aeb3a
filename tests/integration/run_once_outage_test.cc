// RunOnce while the coordinator, or the way to it, is away.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "client/run_once.h"
#include "client/status.h"
#include "tests/integration/fault_calls.h"
#include "tests/integration/once_fixture.h"
#include "tests/integration/stepped_coordinator.h"
#include "tests/support/port.h"
#include "tests/support/tcp_gate.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

std::string TargetOf(int port) { return "127.0.0.1:" + std::to_string(port); }

class RunOnceOutageTest : public RunOnceTest {
 protected:
  void SetUp() override {
    gate_ = Require(TcpGate::Make(replica().port()));
    once_by_gate_ = RunOnce::Connect(TargetOf(gate_->port()));
  }
  // A replica that a test has killed is there for the next one.
  void TearDown() override {
    once_by_gate_.reset();
    if (!replica().running()) RequireOk(replica().Restart());
  }

  static Operation Impatient(Operation operation) {
    operation.claim_timeout = milliseconds(400);
    operation.finalize_timeout = milliseconds(400);
    return operation;
  }

  static void WaitUntilSettled(const RunOnce& once) {
    WaitUntil([&] { return once.operations() == 0; });
  }

  std::unique_ptr<TcpGate> gate_;
  std::unique_ptr<RunOnce> once_by_gate_;
};

TEST_F(RunOnceOutageTest, WithoutACoordinatorTheFunctionDoesNotRun) {
  auto once = RunOnce::Connect(TargetOf(FreePort()));
  Operation operation = Impatient(AnOperation("payment"));
  operation.lease = milliseconds(300);
  const auto begin = steady_clock::now();

  const RunResult result = once->Run(operation, MustNotRun);

  EXPECT_EQ(result.outcome, RunOutcome::kUnavailable);
  EXPECT_FALSE(result.has_response());
  EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable)
      << result.status;
  // What might have been granted is given back for as long as it might last.
  once.reset();
  EXPECT_LT(steady_clock::now() - begin, seconds(5));
}

TEST_F(RunOnceOutageTest, ASilentCoordinatorIsWaitedForNoLongerThanAllowed) {
  gate_->BlackHole();
  const auto begin = steady_clock::now();

  const RunResult result =
      once_by_gate_->Run(Impatient(AnOperation()), MustNotRun);

  EXPECT_EQ(result.outcome, RunOutcome::kUnavailable) << result.status;
  EXPECT_GE(steady_clock::now() - begin, milliseconds(400));
  EXPECT_LT(steady_clock::now() - begin, seconds(5));
  gate_->Open();
}

TEST_F(RunOnceOutageTest, TheEndIsBoundedWhateverIsUnanswered) {
  const auto once = [this] {
    RunOnceOptions options;
    options.finish_timeout = milliseconds(300);
    return RunOnce::Connect(TargetOf(gate_->port()), options);
  };
  const auto time_to_end = [](std::unique_ptr<RunOnce> ending) {
    const auto begin = steady_clock::now();
    ending.reset();
    return steady_clock::now() - begin;
  };
  gate_->BlackHole();

  // A claim that may take a minute.
  auto claiming = once();
  Operation patient = Impatient(AnOperation());
  patient.wait = seconds(60);
  std::atomic<bool> hung_up{false};
  claiming->Start(
      patient, [](auto, auto) {},
      [&](const RunResult& result) {
        hung_up = result.outcome == RunOutcome::kHungUp;
      });
  EXPECT_LT(time_to_end(std::move(claiming)), seconds(5));
  EXPECT_TRUE(hung_up);

  // A response that nobody takes, for a lease of an hour.
  gate_->Open();
  auto settling = once();
  Operation long_lease = Impatient(AnOperation());
  long_lease.lease = std::chrono::hours(1);
  const RunResult executed = settling->Run(long_lease, [&](Execution&) {
    gate_->BlackHole();
    return Respond(201, "");
  });
  EXPECT_EQ(executed.outcome, RunOutcome::kExecuted) << executed.status;
  EXPECT_FALSE(executed.recorded);
  EXPECT_LT(time_to_end(std::move(settling)), seconds(5));
  gate_->Open();
}

TEST_F(RunOnceOutageTest, ABadRequestIsRefusedBeforeTheFunctionRuns) {
  Operation operation = AnOperation();
  operation.request_hash = "short";

  const RunResult result = Ask(operation);

  EXPECT_EQ(result.outcome, RunOutcome::kInvalid);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReasonOf(result.status), "INVALID_FIELD");
}

TEST_F(RunOnceOutageTest, AClaimWhoseAnswerIsLostIsGivenBack) {
  const Operation operation = AnOperation("payment");
  // So that there is a connection, which asks for no reply before it sends.
  EXPECT_EQ(
      once_by_gate_
          ->Run(AnOperation(), [](Execution&) { return Respond(200, ""); })
          .outcome,
      RunOutcome::kExecuted);
  gate_->SwallowReplies(true);

  const RunResult lost = once_by_gate_->Run(Impatient(operation), MustNotRun);
  // It was granted; the Release may be on its way by now.
  EXPECT_EQ(RecordOf(operation).attempt(), 1);
  gate_->Open();
  gate_->CutAll();
  WaitUntilSettled(*once_by_gate_);
  const RunResult next = once_->Run(operation, [](Execution& execution) {
    EXPECT_EQ(execution.abandoned(), nullptr);
    return Respond(201, "the next one's");
  });

  EXPECT_EQ(lost.outcome, RunOutcome::kUnavailable);
  EXPECT_EQ(ErrorReasonOf(lost.status), "OUTCOME_UNKNOWN") << lost.status;
  EXPECT_TRUE(Answers(next, RunOutcome::kExecuted, "the next one's"));
}

TEST_F(RunOnceOutageTest,
       ACoordinatorThatDiesInBetweenHoldsTheAnswerBackBriefly) {
  Operation operation = Impatient(AnOperation("payment"));
  steady_clock::time_point executed;

  const RunResult result = once_->Run(operation, [&](Execution&) {
    replica().Kill();
    RequireOk(replica().WaitForExit().status());
    executed = steady_clock::now();
    return Respond(201, "paid");
  });
  const auto held_back = steady_clock::now() - executed;
  EXPECT_EQ(once_->operations(), 1u);
  RequireOk(replica().Restart());
  WaitUntilSettled(*once_);

  EXPECT_TRUE(Answers(result, RunOutcome::kExecuted, "paid"));
  EXPECT_FALSE(result.recorded);
  EXPECT_LT(held_back, seconds(3));
  // The sender went on after the answer.
  const RunResult replay = Ask(operation);
  EXPECT_TRUE(Answers(replay, RunOutcome::kReplayed, "paid"));
  EXPECT_EQ(replay.response.SerializeAsString(),
            result.response.SerializeAsString());
}

TEST_F(RunOnceOutageTest, ACoordinatorThatIsBackInTimeRecordsAsIfNothingWere) {
  Operation operation = AnOperation("payment");
  operation.finalize_timeout = seconds(30);
  std::jthread restart;

  const RunResult result = once_->Run(operation, [&](Execution&) {
    replica().Kill();
    RequireOk(replica().WaitForExit().status());
    restart = std::jthread([] { RequireOk(replica().Restart()); });
    return Respond(201, "paid");
  });
  restart.join();

  EXPECT_TRUE(Answers(result, RunOutcome::kExecuted, "paid"));
  WaitUntilSettled(*once_);
  EXPECT_TRUE(Answers(Ask(operation), RunOutcome::kReplayed, "paid"));
}

TEST_F(RunOnceOutageTest,
       ACoordinatorThatStaysAwayIsTriedForALeaseAndNoLonger) {
  Operation operation = AnOperation("payment");
  operation.lease = milliseconds(1000);
  operation.finalize_timeout = milliseconds(200);

  const RunResult result = once_by_gate_->Run(operation, [&](Execution&) {
    gate_->Refuse();
    return Respond(201, "paid");
  });
  const auto answered = steady_clock::now();
  WaitUntilSettled(*once_by_gate_);
  const auto settled = steady_clock::now() - answered;

  EXPECT_TRUE(Answers(result, RunOutcome::kExecuted, "paid"));
  EXPECT_FALSE(result.recorded);
  EXPECT_LT(settled, seconds(5));
  EXPECT_EQ(RecordOf(operation).state(), v1::Record::STATE_IN_DOUBT);
  EXPECT_EQ(Ask(operation).outcome, RunOutcome::kInDoubt);
}

TEST_F(RunOnceOutageTest, ALeaseThatCannotBeRenewedIsWithdrawnAtItsEnd) {
  Operation operation = AnOperation();
  operation.lease = milliseconds(600);
  std::atomic<bool> withdrawn{false};

  const RunResult result =
      once_by_gate_->Run(operation, [&](Execution& execution) {
        execution.OnWithdrawn([&] { withdrawn = true; });
        gate_->BlackHole();
        EXPECT_TRUE(execution.permitted());
        WaitUntil([&] { return withdrawn.load(); });
        EXPECT_FALSE(execution.permitted());
        gate_->Open();
        return Respond(201, "late");
      });

  // Nobody took over, so that its response counts.
  EXPECT_TRUE(Answers(result, RunOutcome::kExecuted, "late"));
}

TEST_F(RunOnceOutageTest, ARenewalThatIsLostIsMadeAgainInTime) {
  Operation operation = AnOperation();
  operation.lease = milliseconds(1500);
  std::atomic<int> renewals{0};
  RunOnce once(std::make_shared<SteppedCoordinator>(
      AsyncClient::Connect(TargetOf(gate_->port())),
      [&](const std::string& step) {
        if (step == "renewal to be sent" && renewals++ == 0) gate_->CutAll();
      }));

  const RunResult result = once.Run(operation, [&](Execution& execution) {
    const auto end = steady_clock::now() + 2 * *operation.lease;
    WaitUntil(
        [&] { return !execution.permitted() || steady_clock::now() > end; });
    EXPECT_TRUE(execution.permitted());
    return Respond(201, "");
  });

  EXPECT_EQ(result.outcome, RunOutcome::kExecuted) << result.status;
  EXPECT_GT(renewals, 1);
  EXPECT_EQ(RecordOf(operation).attempt(), 1);
}

}  // namespace
}  // namespace idempotency
