#include "client/run_once.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "client/mutex.h"
#include "client/once_run.h"

namespace idempotency {
namespace {

using internal::ConditionVariable;
using internal::Mutex;
using internal::MutexLock;

// Runs what it is handed in the thread that calls RunUntilStopped(), and drops
// what comes later.
class CallingThread final : public Executor {
 public:
  void Run(std::function<void()> task) override {
    {
      MutexLock lock(mutex_);
      if (stopped_) return;
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

  void Stop() {
    MutexLock lock(mutex_);
    stopped_ = true;
  }

  void RunUntilStopped() {
    while (const auto task = Next()) (*task)();
  }

 private:
  std::optional<std::function<void()>> Next() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<Mutex> lock(mutex_);
    changed_.wait(lock, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return stopped_ || !tasks_.empty();
    });
    if (stopped_) return std::nullopt;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }

  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

class RunningOperation final : public Running {
 public:
  explicit RunningOperation(const std::shared_ptr<OnceRun>& run) : run_(run) {}
  void HangUp() override {
    if (const auto run = run_.lock()) run->HangUp();
  }

 private:
  const std::weak_ptr<OnceRun> run_;
};

std::shared_ptr<ClientEnvironment> EnvironmentOf(
    const RunOnceOptions& options) {
  return options.client.environment ? options.client.environment
                                    : SystemEnvironment();
}

std::shared_ptr<Executor> ExecutorOf(const RunOnceOptions& options) {
  return options.executor
             ? options.executor
             : std::shared_ptr<Executor>(NewThreadPool(options.threads));
}

}  // namespace

std::unique_ptr<RunOnce> RunOnce::Connect(const std::string& target,
                                          const RunOnceOptions& options) {
  std::shared_ptr<AsyncClient> client =
      AsyncClient::Connect(target, options.client);
  auto once = std::make_unique<RunOnce>(client, options);
  once->cancel_calls_ = [calls = client.get()] { calls->CancelCalls(); };
  return once;
}

RunOnce::RunOnce(std::shared_ptr<Coordinator> coordinator,
                 const RunOnceOptions& options)
    : executor_(ExecutorOf(options)),
      coordinator_(std::move(coordinator)),
      finish_timeout_(std::clamp<std::chrono::milliseconds>(
          options.finish_timeout, std::chrono::milliseconds(0),
          std::chrono::hours(24))),
      runs_(std::make_shared<OnceRuns>(*coordinator_, *executor_,
                                       EnvironmentOf(options),
                                       options.operations_max)) {}

// The rest ends with the members: the coordinator, once it has answered every
// call, and then the executor, once it has run every task.
RunOnce::~RunOnce() {
  runs_->Finish();
  if (!runs_->AwaitEnd(finish_timeout_) && cancel_calls_) cancel_calls_();
  runs_->AwaitEnd();
  // A task that is still in it may call this object.
  coordinator_.reset();
  executor_.reset();
}

RunResult RunOnce::Run(
    const Operation& operation,
    const std::function<FunctionResult(Execution&)>& function,
    const std::function<Resolution(Execution&)>& resolve) {
  const auto here = std::make_shared<CallingThread>();
  RunResult result;
  OnceCallbacks callbacks;
  callbacks.executor = here;
  // These are called before RunUntilStopped() returns or not at all.
  if (function) {
    callbacks.function = [&function](
                             const std::shared_ptr<Execution>& execution,
                             const Completion<FunctionResult>& answer) {
      answer(function(*execution));
    };
  }
  if (resolve) {
    callbacks.resolver = [&resolve](const std::shared_ptr<Execution>& execution,
                                    const Completion<Resolution>& answer) {
      answer(resolve(*execution));
    };
  }
  callbacks.done = [&](const RunResult& delivered) {
    result = delivered;
    here->Stop();
  };
  runs_->Start(operation, std::move(callbacks));
  here->RunUntilStopped();
  return result;
}

std::unique_ptr<Running> RunOnce::Start(
    const Operation& operation, AsyncFunction function,
    std::function<void(const RunResult&)> done, AsyncResolver resolve) {
  return std::make_unique<RunningOperation>(
      runs_->Start(operation, {.function = std::move(function),
                               .resolver = std::move(resolve),
                               .done = std::move(done)}));
}

std::size_t RunOnce::operations() const { return runs_->size(); }

}  // namespace idempotency
