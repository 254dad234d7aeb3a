// A Coordinator, a ClientEnvironment and an Executor whose answers, time and
// turns a test decides.
#ifndef IDEMPOTENCY_TESTS_UNIT_SCRIPTED_COORDINATOR_H_
#define IDEMPOTENCY_TESTS_UNIT_SCRIPTED_COORDINATOR_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "client/coordinator.h"
#include "client/environment.h"
#include "client/executor.h"

namespace idempotency {

// Answers from four threads of its own, each call by its function there, which
// may block. Set them before the first call. Thread-safe.
class ScriptedCoordinator final : public Coordinator {
 public:
  std::function<absl::StatusOr<v1::ClaimResponse>(const v1::ClaimRequest&)>
      on_claim;
  std::function<absl::StatusOr<v1::ClaimResponse>(const v1::ClaimRequest&)>
      on_renewal;
  std::function<absl::StatusOr<v1::FinalizeResponse>(
      const v1::FinalizeRequest&)>
      on_finalize;

  void Claim(const v1::ClaimRequest& request, const CallOptions&,
             Answered<v1::ClaimResponse> answered) override {
    threads_->Run([this, request, answered = std::move(answered)] {
      answered(request.renew_fencing_token() != 0 ? on_renewal(request)
                                                  : on_claim(request));
    });
  }
  void Finalize(const v1::FinalizeRequest& request, const CallOptions&,
                Answered<v1::FinalizeResponse> answered) override {
    threads_->Run([this, request, answered = std::move(answered)] {
      answered(on_finalize(request));
    });
  }
  void Lookup(const v1::LookupRequest&, const CallOptions&,
              Answered<v1::LookupResponse> answered) override {
    threads_->Run([answered = std::move(answered)] {
      answered(absl::NotFoundError("no record"));
    });
  }
  void Release(const v1::ReleaseRequest& request, const CallOptions&,
               Answered<v1::ReleaseResponse> answered) override {
    {
      const std::lock_guard lock(mutex_);
      releases_.push_back(request.disposition());
    }
    threads_->Run(
        [answered = std::move(answered)] { answered(v1::ReleaseResponse()); });
  }

  std::vector<v1::ReleaseRequest::Disposition> releases() const {
    const std::lock_guard lock(mutex_);
    return releases_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<v1::ReleaseRequest::Disposition> releases_;
  // Last: it ends first, once every call has been answered.
  const std::unique_ptr<Executor> threads_ = NewThreadPool(4);
};

// Time stands still until it is advanced; timers fire in the thread that does.
// Thread-safe.
class ManualEnvironment final : public ClientEnvironment {
 public:
  TimePoint Now() override {
    const std::lock_guard lock(timers_->mutex);
    return timers_->now;
  }

  std::unique_ptr<Timer> RunAfter(std::chrono::nanoseconds duration,
                                  std::function<void()> callback) override {
    const std::lock_guard lock(timers_->mutex);
    const std::uint64_t id = ++timers_->latest;
    timers_->open[id] = {timers_->now + duration, std::move(callback)};
    return std::make_unique<ManualTimer>(timers_, id);
  }

  std::uint64_t Random() override {
    const std::lock_guard lock(timers_->mutex);
    return ++timers_->latest * 0x9e3779b97f4a7c15;
  }

  void Advance(std::chrono::nanoseconds duration) {
    {
      const std::lock_guard lock(timers_->mutex);
      timers_->now += duration;
    }
    while (const auto due = NextDue()) due();
  }

 private:
  struct Timers {
    std::mutex mutex;
    TimePoint now{std::chrono::hours(1)};
    std::uint64_t latest = 0;
    std::map<std::uint64_t, std::pair<TimePoint, std::function<void()>>> open;
  };

  class ManualTimer final : public Timer {
   public:
    ManualTimer(std::shared_ptr<Timers> timers, std::uint64_t id)
        : timers_(std::move(timers)), id_(id) {}
    ~ManualTimer() override {
      std::function<void()> dropped;
      const std::lock_guard lock(timers_->mutex);
      const auto found = timers_->open.find(id_);
      if (found == timers_->open.end()) return;
      dropped = std::move(found->second.second);
      timers_->open.erase(found);
    }

   private:
    const std::shared_ptr<Timers> timers_;
    const std::uint64_t id_;
  };

  std::function<void()> NextDue() {
    const std::lock_guard lock(timers_->mutex);
    const auto due = std::find_if(
        timers_->open.begin(), timers_->open.end(),
        [&](const auto& timer) { return timer.second.first <= timers_->now; });
    if (due == timers_->open.end()) return nullptr;
    std::function<void()> callback = std::move(due->second.second);
    timers_->open.erase(due);
    return callback;
  }

  const std::shared_ptr<Timers> timers_ = std::make_shared<Timers>();
};

// Runs nothing by itself. Thread-safe.
class HoldingExecutor final : public Executor {
 public:
  void Run(std::function<void()> task) override {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }
  // Waits for the next task.
  std::function<void()> Take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !tasks_.empty(); });
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_UNIT_SCRIPTED_COORDINATOR_H_
