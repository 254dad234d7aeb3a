// RunOnce and its lease: renewed, lapsed, taken over, lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "client/run_once.h"
#include "client/status.h"
#include "tests/integration/once_fixture.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class RunOnceLeaseTest : public RunOnceTest {
 protected:
  static std::string Evidence(const Operation& operation) {
    return Sql(
        "SELECT status_code, count FROM idempotency_conflicts WHERE key = '" +
        operation.key + "'");
  }

  // Takes over as soon as the lease that runs is over.
  RunResult TakeOver(const Operation& operation, const std::string& body) {
    return once_->Run(Waiting(operation), [&](Execution& execution) {
      ExpectTakeover(execution);
      return Respond(200, body);
    });
  }

  static void ExpectTakeover(const Execution& execution) {
    EXPECT_EQ(execution.attempt(), 2);
    ASSERT_NE(execution.abandoned(), nullptr);
    EXPECT_EQ(execution.abandoned()->attempt(), 1);
    EXPECT_EQ(execution.abandoned()->reason(),
              v1::Abandoned::REASON_LEASE_LAPSED);
    EXPECT_LT(execution.abandoned()->fencing_token(),
              execution.fencing_token());
  }
};

TEST_F(RunOnceLeaseTest, RenewedForSixLeasesDuplicatesSeeItInProgress) {
  constexpr milliseconds kLease{800};
  Operation operation = AnOperation();
  operation.lease = kLease;
  int duplicates = 0;

  const RunResult first = once_->Run(operation, [&](Execution& execution) {
    const auto end = steady_clock::now() + 6 * kLease;
    while (steady_clock::now() < end) {
      const RunResult duplicate = Ask(operation);
      EXPECT_EQ(duplicate.outcome, RunOutcome::kInProgress) << duplicate.status;
      if (duplicate.outcome != RunOutcome::kInProgress) break;
      ++duplicates;
      std::this_thread::sleep_for(milliseconds(10));
    }
    EXPECT_TRUE(execution.permitted());
    return Respond(201, "the first one's");
  });

  EXPECT_TRUE(Answers(first, RunOutcome::kExecuted, "the first one's"));
  EXPECT_TRUE(first.recorded);
  EXPECT_GT(duplicates, 12);
  EXPECT_EQ(RecordOf(operation).attempt(), 1);
}

TEST_F(RunOnceLeaseTest, NotRenewedItIsTakenOverAndItsLateResponseRefused) {
  const Operation operation = AnOperation();
  RunResult second;

  const RunResult first =
      once_->Run(Lapsing(operation), [&](Execution& execution) {
        second = TakeOver(operation, "the second one's");
        EXPECT_FALSE(execution.permitted());
        return Respond(201, "the first one's");
      });

  EXPECT_TRUE(Answers(second, RunOutcome::kExecuted, "the second one's"));
  EXPECT_TRUE(second.recorded);
  EXPECT_TRUE(Answers(first, RunOutcome::kWinner, "the second one's"));
  EXPECT_EQ(first.response.SerializeAsString(),
            second.response.SerializeAsString());
  EXPECT_EQ(Evidence(operation), "201\t1");
  EXPECT_TRUE(
      Answers(Ask(operation), RunOutcome::kReplayed, "the second one's"));
}

TEST_F(RunOnceLeaseTest, LateWhileNobodyHasAnsweredYetItHasNoResponse) {
  const Operation operation = AnOperation();
  absl::Notification taken_over;
  absl::Notification first_is_back;
  RunResult second;
  std::jthread taker;

  const RunResult first = once_->Run(Lapsing(operation), [&](Execution&) {
    taker = std::jthread([&] {
      second = once_->Run(Waiting(operation), [&](Execution& execution) {
        ExpectTakeover(execution);
        taken_over.Notify();
        first_is_back.WaitForNotification();
        return Respond(200, "the second one's");
      });
    });
    taken_over.WaitForNotification();
    return Respond(201, "the first one's");
  });
  first_is_back.Notify();
  taker.join();

  EXPECT_EQ(first.outcome, RunOutcome::kConflict);
  EXPECT_FALSE(first.has_response());
  EXPECT_EQ(ErrorReasonOf(first.status), "CLAIM_SUPERSEDED");
  EXPECT_TRUE(Answers(second, RunOutcome::kExecuted, "the second one's"));
  EXPECT_TRUE(
      Answers(Ask(operation), RunOutcome::kReplayed, "the second one's"));
}

TEST_F(RunOnceLeaseTest, LateForAnotherRequestItIsNotShownThatOnesResponse) {
  const Operation operation = AnOperation();
  Operation other = operation;
  other.request_hash = std::string(32, 'x');

  const RunResult first = once_->Run(Lapsing(operation), [&](Execution&) {
    WaitUntil([&] {
      return RecordOf(operation).state() == v1::Record::STATE_IN_DOUBT;
    });
    Sql("DELETE FROM idempotency_records WHERE key = '" + operation.key + "'");
    EXPECT_TRUE(Answers(
        once_->Run(other, [](Execution&) { return Respond(200, "another's"); }),
        RunOutcome::kExecuted, "another's"));
    return Respond(201, "the first one's");
  });

  EXPECT_EQ(first.outcome, RunOutcome::kConflict) << first.status;
  EXPECT_FALSE(first.has_response());
}

TEST_F(RunOnceLeaseTest, LateWithoutATakeoverItIsStillRecorded) {
  const Operation operation = AnOperation();

  const RunResult first = once_->Run(Lapsing(operation), [&](Execution&) {
    WaitUntil([&] {
      return RecordOf(operation).state() == v1::Record::STATE_IN_DOUBT;
    });
    return Respond(201, "the first one's");
  });

  EXPECT_TRUE(Answers(first, RunOutcome::kExecuted, "the first one's"));
  EXPECT_TRUE(first.recorded);
}

TEST_F(RunOnceLeaseTest, CheckpointsAreHandedToWhoeverTakesOver) {
  const Operation operation = AnOperation();
  RunResult second;

  once_->Run(Lapsing(operation), [&](Execution& execution) {
    EXPECT_EQ(execution.SaveCheckpoint("the card was asked"), absl::OkStatus());
    EXPECT_EQ(execution.SaveCheckpoint("the card was charged"),
              absl::OkStatus());
    second = once_->Run(Waiting(operation), [&](Execution& taker) {
      ExpectTakeover(taker);
      EXPECT_EQ(taker.abandoned()->checkpoint(), "the card was charged");
      return Respond(200, "");
    });
    EXPECT_FALSE(execution.SaveCheckpoint("too late").ok());
    return Respond(201, "");
  });

  EXPECT_EQ(second.outcome, RunOutcome::kExecuted) << second.status;
}

TEST_F(RunOnceLeaseTest, ACheckpointTooLongIsRefusedAndTheAttemptGoesOn) {
  const Operation operation = AnOperation();

  const RunResult result = once_->Run(operation, [](Execution& execution) {
    EXPECT_EQ(execution.SaveCheckpoint(std::string(4097, 'x')).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(execution.SaveCheckpoint(std::string(4096, 'x')),
              absl::OkStatus());
    EXPECT_TRUE(execution.permitted());
    return Respond(201, "");
  });

  EXPECT_EQ(result.outcome, RunOutcome::kExecuted) << result.status;
}

TEST_F(RunOnceLeaseTest, AClaimThatIsLostWhileItRunsIsWithdrawn) {
  Operation operation = AnOperation();
  operation.lease = milliseconds(600);
  std::atomic<int> withdrawn{0};

  // Its record is gone: the next renewal is refused.
  const RunResult result = once_->Run(operation, [&](Execution& execution) {
    absl::Notification told;
    execution.OnWithdrawn([&] {
      ++withdrawn;
      told.Notify();
    });
    EXPECT_TRUE(execution.permitted());
    Sql("DELETE FROM idempotency_records WHERE key = '" + operation.key + "'");
    EXPECT_TRUE(told.WaitForNotificationWithTimeout(
        absl::FromChrono(std::chrono::nanoseconds(kPatience))));
    EXPECT_FALSE(execution.permitted());
    return Respond(201, "");
  });

  EXPECT_EQ(withdrawn, 1);
  EXPECT_EQ(result.outcome, RunOutcome::kConflict) << result.status;
}

TEST_F(RunOnceLeaseTest, ALeaseThatIsNotRenewedIsWithdrawnAtItsEnd) {
  const Operation operation = AnOperation();

  once_->Run(Lapsing(operation), [&](Execution& execution) {
    absl::Notification told;
    execution.OnWithdrawn([&] { told.Notify(); });
    EXPECT_TRUE(told.WaitForNotificationWithTimeout(
        absl::FromChrono(std::chrono::nanoseconds(kPatience))));
    EXPECT_FALSE(execution.permitted());
    return NothingHappened{};
  });
}

}  // namespace
}  // namespace idempotency
