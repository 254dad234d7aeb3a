// Simulated time, and who goes on in it: tasks that run through, and fibers
// that stop in the middle.
#ifndef IDEMPOTENCY_TESTS_SIMULATION_SCHEDULER_H_
#define IDEMPOTENCY_TESTS_SIMULATION_SCHEDULER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "server/core/clock.h"
#include "tests/simulation/fiber.h"
#include "tests/simulation/random.h"

namespace idempotency {

using Microseconds = std::chrono::microseconds;
using Milliseconds = std::chrono::milliseconds;

// What is due at one time goes in an order that the seed decides. Time is in
// whole microseconds and passes only between steps. Not thread-safe.
class Scheduler final : public Clock {
 public:
  using Task = absl::AnyInvocable<void()>;

  explicit Scheduler(std::uint64_t seed) : random_(seed) {}
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  SteadyTime Now() const override { return SteadyTime(now_); }
  Random& random() { return random_; }

  void After(Microseconds delay, Task task);
  // Now, and in an order that was drawn before: for those who come in an order
  // that no seed decides, such as that of a hash table.
  void AsDrawn(std::uint64_t order, Task task);
  // Runs `body` as a fiber, from now + `delay` on.
  void Spawn(Microseconds delay, Task body);

  // In a fiber only.
  void Sleep(Microseconds duration);

  // Runs what is due next; false when nothing ever is.
  bool RunNext();
  // Forgets all tasks, and those that are added meanwhile.
  // REQUIRES: no fiber is left.
  void Clear();

  // Tasks that ran and fibers that went on, so far.
  std::uint64_t steps() const { return steps_; }
  // Those that have not ended.
  std::size_t fibers() const { return fibers_; }

 private:
  friend class Gate;

  // A fiber, then another one in its place. It is waited for by number: what
  // was to wake it up earlier has no effect later.
  struct Berth {
    std::optional<Fiber> fiber;
    Task body;
    std::uint64_t wait = 0;
  };
  // A task by its place in tasks_, or a fiber that goes on. Small, since many
  // are moved for each that is added.
  struct Due {
    Microseconds at;
    std::uint64_t order = 0;
    std::size_t task = 0;
    Berth* berth = nullptr;
    std::uint64_t wait = 0;
  };
  struct Later {
    bool operator()(const Due& a, const Due& b) const {
      return a.at != b.at ? a.at > b.at : a.order > b.order;
    }
  };

  void Push(const Due& due);
  std::size_t Keep(Task task);
  void WakeAfter(Microseconds delay, Berth& berth);
  // Suspends the running fiber until it is woken up.
  void Suspend();
  void GoOn(Berth& berth);

  Random random_;
  Microseconds now_{std::chrono::hours(1)};
  std::vector<Due> due_;  // a heap
  std::vector<Task> tasks_;
  std::vector<std::size_t> free_tasks_;
  std::vector<std::unique_ptr<Berth>> berths_;
  std::vector<Berth*> free_berths_;
  Berth* running_ = nullptr;
  std::size_t fibers_ = 0;
  std::uint64_t steps_ = 0;
};

// What one fiber at a time waits at. Must outlive the wait.
class Gate {
 public:
  explicit Gate(Scheduler& scheduler) : scheduler_(scheduler) {}

  // In a fiber. False: `at_most` passed without Open().
  bool WaitFor(Microseconds at_most);
  // Lets the fiber that waits now go on, if there is one.
  void Open();

 private:
  Scheduler& scheduler_;
  Scheduler::Berth* waiting_ = nullptr;
  bool opened_ = false;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_SCHEDULER_H_
