#ifndef IDEMPOTENCY_CLIENT_EXAMPLES_PAYMENTS_PODS_H_
#define IDEMPOTENCY_CLIENT_EXAMPLES_PAYMENTS_PODS_H_

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace idempotency::payments {

struct Pod {
  std::string name;
  int port = 0;                      // of 127.0.0.1
  std::vector<std::string> command;  // the program and its arguments
};

struct PodState {
  std::string name;
  pid_t pid = 0;  // 0: not running
};

// Processes that are started again when they end, as in a cluster.
// Thread-safe, except for Supervise().
class Pods {
 public:
  explicit Pods(std::vector<Pod> pods);

  const std::vector<Pod>& pods() const { return pods_; }
  std::vector<PodState> States() const;

  // SIGKILL, if it runs. `index` counts pods().
  void Kill(std::size_t index);

  // Starts all, and again what ended, after a pause, until one of `end_signals`
  // comes; then ends all. They and SIGCHLD must be blocked. To be called in a
  // thread that lasts: pods are told to end when it does.
  void Supervise(const sigset_t& end_signals);

 private:
  using Clock = std::chrono::steady_clock;
  struct Process {
    pid_t pid = 0;
    Clock::time_point start_at = {};
  };

  void StartDue() ABSL_LOCKS_EXCLUDED(mutex_);
  void Reap() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndAll() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::vector<Pod> pods_;
  mutable absl::Mutex mutex_;
  std::vector<Process> processes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace idempotency::payments

#endif  // IDEMPOTENCY_CLIENT_EXAMPLES_PAYMENTS_PODS_H_
