// Ten thousand operations at a time in one process.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/environment.h"
#include "client/run_once.h"
#include "server/core/mutex.h"
#include "tests/integration/once_fixture.h"

namespace idempotency {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kOperations = 10'000;
constexpr int kThreadsMax = 40;
constexpr seconds kEach{60};

// A number of /proc/self/status.
int OfThisProcess(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) {
      return std::stoi(line.substr(name.size() + 1));
    }
  }
  return -1;
}

// Functions that have begun and wait for something, as calls downstream do.
class UnderWay {
 public:
  void Add(std::string body, Completion<FunctionResult> completion) {
    MutexLock lock(mutex_);
    waiting_.emplace_back(std::move(body), std::move(completion));
  }

  int count() const {
    MutexLock lock(mutex_);
    return static_cast<int>(waiting_.size());
  }

  // Ends each of them by a timer of its own.
  void EndAll() {
    const auto environment = SystemEnvironment();
    MutexLock lock(mutex_);
    for (auto& [body, completion] : waiting_) {
      const milliseconds after(environment->Random() % 500);
      timers_.push_back(environment->RunAfter(
          after, [body = std::move(body), completion = std::move(completion)] {
            completion(Respond(201, body));
          }));
    }
    waiting_.clear();
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::pair<std::string, Completion<FunctionResult>>> waiting_
      ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Timer>> timers_ ABSL_GUARDED_BY(mutex_);
};

void WaitFor(const std::function<bool()>& reached) {
  const auto end = steady_clock::now() + kEach;
  while (!reached() && steady_clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(5));
  }
}

TEST_F(RunOnceTest, TenThousandOperationsAtATimeTakeAFewThreads) {
  UnderWay under_way;
  std::atomic<int> executed{0};
  std::atomic<int> done{0};
  // After what its callbacks use.
  const std::unique_ptr<RunOnce> once = RunOnce::Connect(replica().target());
  const int rss_before = OfThisProcess("VmRSS");
  const auto begin = steady_clock::now();

  for (int i = 0; i < kOperations; ++i) {
    Operation operation = AnOperation();
    operation.key = "many-" + std::to_string(i);
    operation.lease = kEach;
    operation.claim_timeout = kEach;
    operation.finalize_timeout = kEach;
    once->Start(
        operation,
        [&under_way, key = operation.key](
            const std::shared_ptr<Execution>&,
            Completion<FunctionResult> completion) {
          under_way.Add(key, std::move(completion));
        },
        [&](const RunResult& result) {
          if (result.outcome == RunOutcome::kExecuted && result.recorded) {
            ++executed;
          } else {
            ADD_FAILURE() << NameOf(result.outcome) << " " << result.status;
          }
          ++done;
        });
  }
  WaitFor([&] { return under_way.count() == kOperations || done > 0; });
  const auto granted = steady_clock::now();
  EXPECT_EQ(under_way.count(), kOperations);
  EXPECT_EQ(once->operations(), static_cast<std::size_t>(kOperations));
  const int threads = OfThisProcess("Threads");
  const int rss = OfThisProcess("VmRSS");
  under_way.EndAll();
  WaitFor([&] { return done == kOperations; });
  const auto end = steady_clock::now();

  EXPECT_EQ(executed, kOperations);
  EXPECT_LT(threads, kThreadsMax);
  EXPECT_EQ(Sql("SELECT count(*) FROM idempotency_records WHERE NOT in_flight "
                "AND status_code = 201 AND body = convert_to(key, 'UTF8')"),
            std::to_string(kOperations));
  std::cout << kOperations << " functions under way at the same moment, after "
            << duration_cast<milliseconds>(granted - begin).count()
            << " ms; all recorded "
            << duration_cast<milliseconds>(end - granted).count()
            << " ms later; " << threads << " threads, "
            << (rss - rss_before) / 1024 << " MiB more than before\n";
}

}  // namespace
}  // namespace idempotency
