// Where the callbacks of a caller run.
#ifndef IDEMPOTENCY_CLIENT_EXECUTOR_H_
#define IDEMPOTENCY_CLIENT_EXECUTOR_H_

#include <functional>
#include <memory>

namespace idempotency {

// Thread-safe, and so must every implementation be.
class Executor {
 public:
  virtual ~Executor() = default;
  // Runs `task`, which is not empty, later, not within this call, and every
  // task once. Tasks may run beside each other.
  virtual void Run(std::function<void()> task) = 0;
};

// Threads of its own, 1 to 256. Its queue has no bound: whoever hands tasks to
// it bounds them. Destroyed, it runs what it has and ends; not from a task.
std::unique_ptr<Executor> NewThreadPool(int threads);

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_EXECUTOR_H_
