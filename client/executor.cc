#include "client/executor.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "client/mutex.h"

namespace idempotency {
namespace {

using internal::ConditionVariable;
using internal::Mutex;
using internal::MutexLock;

constexpr int kThreadsMax = 256;

class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int threads) {
    for (int i = 0; i < std::clamp(threads, 1, kThreadsMax); ++i) {
      threads_.emplace_back([this] { Work(); });
    }
  }

  ~ThreadPool() override {
    {
      MutexLock lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
  }

  void Run(std::function<void()> task) override {
    {
      MutexLock lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

 private:
  void Work() {
    while (const auto task = Next()) (*task)();
  }

  // Empty: there is none and there will be none.
  std::optional<std::function<void()>> Next() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<Mutex> lock(mutex_);
    changed_.wait(lock, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return ending_ || !tasks_.empty();
    });
    if (tasks_.empty()) return std::nullopt;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }

  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  // Last, so that they end before what they use goes away.
  std::vector<std::jthread> threads_;
};

}  // namespace

std::unique_ptr<Executor> NewThreadPool(int threads) {
  return std::make_unique<ThreadPool>(threads);
}

}  // namespace idempotency
