// Hundreds of operations at a time, whose calls go over a stream, while servers
// are told to end or are killed: each is executed once and recorded.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include "client/run_once.h"
#include "tests/integration/fault_calls.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kAtATime = 400;
constexpr seconds kPatient{60};

// Starts the next operation when one has its result.
class Operations {
 public:
  explicit Operations(const std::string& target)
      // As many attempts as a restart of the only server may take.
      : once_(RunOnce::Connect(target,
                               {.client = {.retry = {.attempts_max = 20}}})) {
    for (int i = 0; i < kAtATime; ++i) StartOne();
  }
  ~Operations() { End(); }

  // False: they do not go on.
  bool AwaitFurther(int count) const {
    const int until = done_ + count;
    return Await([&] { return done_ >= until; });
  }

  // Waits for those under way.
  bool End() {
    ending_ = true;
    return Await([&] { return done_ == started_; });
  }

  int started() const { return started_; }
  int executed() const { return executed_; }
  int recorded() const { return recorded_; }

 private:
  void StartOne() {
    Operation operation;
    operation.scope = kFaultScope;
    operation.key = "bulk-" + std::to_string(++started_);
    operation.request_hash = std::string(32, 'h');
    operation.lease = kPatient;
    operation.claim_timeout = kPatient;
    operation.finalize_timeout = kPatient;
    once_->Start(
        operation,
        [this, key = operation.key](const std::shared_ptr<Execution>&,
                                    const Completion<FunctionResult>& answer) {
          ++executed_;
          answer(Respond(201, key));
        },
        [this](const RunResult& result) {
          if (result.outcome == RunOutcome::kExecuted && result.recorded) {
            ++recorded_;
          } else {
            ADD_FAILURE() << NameOf(result.outcome) << " " << result.status;
          }
          if (!ending_) StartOne();
          ++done_;
        });
  }

  static bool Await(const std::function<bool()>& reached) {
    const auto end = steady_clock::now() + kPatient;
    while (!reached()) {
      if (steady_clock::now() > end) return false;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
  }

  std::atomic<bool> ending_ = false;
  std::atomic<int> started_ = 0;
  std::atomic<int> done_ = 0;
  std::atomic<int> executed_ = 0;
  std::atomic<int> recorded_ = 0;
  const std::unique_ptr<RunOnce> once_;  // ends before what it uses
};

class RunOnceBulkTest : public testing::Test {
 protected:
  void ExpectAllRecorded(Operations& operations) const {
    ASSERT_TRUE(operations.End());
    std::cout << operations.started() << " operations\n";
    EXPECT_EQ(operations.executed(), operations.started());
    EXPECT_EQ(operations.recorded(), operations.started());
    EXPECT_EQ(Require(TempPostgres::RunAt(
                  database_,
                  "SELECT count(*) FROM idempotency_records WHERE NOT "
                  "in_flight AND body = convert_to(key, 'UTF8')")),
              std::to_string(operations.started()));
  }

  const std::string database_ = Require(TempPostgres::SharedDatabase());
};

TEST_F(RunOnceBulkTest, AServerThatIsToldToEndAndStartedAgainLosesNothing) {
  const auto replica = StartReplica(database_, {"--drain_delay=0s"});
  Operations operations(replica->target());
  ASSERT_TRUE(operations.AwaitFurther(2 * kAtATime));

  replica->Terminate();
  EXPECT_EQ(Require(replica->WaitForExit()).code, 0) << replica->Log();
  RequireOk(replica->Restart());

  EXPECT_TRUE(operations.AwaitFurther(2 * kAtATime));
  ExpectAllRecorded(operations);
}

TEST_F(RunOnceBulkTest, WhicheverOfTwoServersIsKilledTheOtherTakesOver) {
  const auto first = StartReplica(database_);
  const auto second = StartReplica(database_);
  Operations operations("ipv4:" + first->target() + "," + second->target());
  ASSERT_TRUE(operations.AwaitFurther(2 * kAtATime));

  // The stream was on one of them.
  first->Kill();
  EXPECT_TRUE(operations.AwaitFurther(2 * kAtATime));
  RequireOk(first->Restart());
  second->Kill();

  EXPECT_TRUE(operations.AwaitFurther(2 * kAtATime));
  ExpectAllRecorded(operations);
}

}  // namespace
}  // namespace idempotency
