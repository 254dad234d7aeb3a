// Drives the state machines of operations: makes their calls, keeps their
// timers and runs their callbacks. For run_once.cc; not installed.
#ifndef IDEMPOTENCY_CLIENT_ONCE_RUN_H_
#define IDEMPOTENCY_CLIENT_ONCE_RUN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

#include "client/coordinator.h"
#include "client/environment.h"
#include "client/execution.h"
#include "client/executor.h"
#include "client/mutex.h"
#include "client/once_machine.h"

namespace idempotency {

class OnceRun;

// What the caller gave for one operation.
struct OnceCallbacks {
  AsyncFunction function;
  AsyncResolver resolver;  // may be null
  std::function<void(const RunResult&)> done;
  // Runs those three. Null: the common executor.
  std::shared_ptr<Executor> executor = nullptr;
};

// The operations under way and what they share. Thread-safe.
class OnceRuns : public std::enable_shared_from_this<OnceRuns> {
 public:
  // Coordinator and executor must live until AwaitEnd() has returned.
  OnceRuns(Coordinator& coordinator, Executor& executor,
           std::shared_ptr<ClientEnvironment> environment,
           std::size_t operations_max);

  // Null when it was refused; `done` is called then too.
  std::shared_ptr<OnceRun> Start(const Operation& operation,
                                 OnceCallbacks callbacks);
  void Ended(const std::shared_ptr<OnceRun>& run);

  // Starts no more, and lets every operation finish.
  void Finish();
  // Waits until all have ended; false: not within `timeout`.
  bool AwaitEnd(std::chrono::milliseconds timeout);
  void AwaitEnd();
  std::size_t size() const;

  // Only for operations that have not ended.
  Coordinator& coordinator() const { return coordinator_; }
  ClientEnvironment& environment() const { return *environment_; }
  // In the common executor; after AwaitEnd(), at once.
  void Run(std::function<void()> task);

 private:
  bool AllHaveEnded() const;

  Coordinator& coordinator_;
  const std::shared_ptr<ClientEnvironment> environment_;
  const std::size_t operations_max_;

  mutable internal::Mutex mutex_;
  internal::ConditionVariable changed_;
  std::unordered_set<std::shared_ptr<OnceRun>> runs_ ABSL_GUARDED_BY(mutex_);
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  Executor* executor_ ABSL_GUARDED_BY(mutex_);  // null after AwaitEnd()
  // Threads that are handing a task to the executor, without the lock.
  int handing_over_ ABSL_GUARDED_BY(mutex_) = 0;
};

// One operation. Every event locks, asks the machine, unlocks, and then does
// what it says. It has ended when that has been done for every event.
class OnceRun final : public Execution,
                      public std::enable_shared_from_this<OnceRun> {
 public:
  OnceRun(std::shared_ptr<OnceRuns> runs, const Operation& operation,
          OnceCallbacks callbacks);

  void Start();
  // Instead of Start().
  void Refuse(RunOutcome outcome, absl::Status why);
  void HangUp();
  void Finish();

  const v1::Claimed& claimed() const override { return claimed_; }
  bool permitted() const override;
  void OnWithdrawn(std::function<void()> withdrawn) override;
  void SaveCheckpoint(std::string checkpoint,
                      std::function<void(absl::Status)> stored) override;
  absl::Status SaveCheckpoint(std::string checkpoint) override;

 private:
  using Stored = std::function<void(absl::Status)>;

  // Calls `event(machine, moment, actions)` under the lock and then performs
  // the actions.
  template <typename Event>
  void Feed(const Event& event);
  // What feeds a call's answer to the machine.
  template <typename Response>
  using AnswerEvent = void (OnceMachine::*)(absl::StatusOr<Response>,
                                            OnceMachine::Moment,
                                            OnceMachine::Actions&);
  template <typename Response>
  Answered<Response> FeedTo(AnswerEvent<Response> event);
  bool FunctionMayStart();
  // In the executor of the callbacks.
  void RunThere(std::function<void()> task);
  // To be called before the function or the resolver runs.
  void KeepClaimed();
  void SetTimer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `stored` is called wherever the answer comes in, and must not block.
  void SaveAnd(std::string checkpoint, Stored stored);

  void Perform(OnceMachine::SendClaim& action);
  void Perform(OnceMachine::SendRenewal& action);
  void Perform(OnceMachine::SendFinalize& action);
  void Perform(OnceMachine::SendLookup& action);
  void Perform(OnceMachine::SendRelease& action);
  void Perform(OnceMachine::RunFunction& action);
  void Perform(OnceMachine::RunResolver& action);
  void Perform(OnceMachine::Withdraw& action);
  void Perform(OnceMachine::CheckpointStored& action);
  void Perform(OnceMachine::Deliver& action);
  void Perform(OnceMachine::End& action);

  const std::shared_ptr<OnceRuns> runs_;
  // Each is taken out where it is called.
  OnceCallbacks callbacks_;
  // Constant once the function or the resolver runs.
  v1::Claimed claimed_;

  mutable internal::Mutex mutex_;
  OnceMachine machine_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Timer> timer_ ABSL_GUARDED_BY(mutex_);
  std::optional<OnceMachine::TimePoint> timer_at_ ABSL_GUARDED_BY(mutex_);
  std::map<std::int64_t, Stored> checkpoints_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> withdrawn_ ABSL_GUARDED_BY(mutex_);
  int performing_ ABSL_GUARDED_BY(mutex_) = 0;  // events, by their threads
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_ONCE_RUN_H_
