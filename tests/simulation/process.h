// A replica's process: its fibers stand still together and die together.
#ifndef IDEMPOTENCY_TESTS_SIMULATION_PROCESS_H_
#define IDEMPOTENCY_TESTS_SIMULATION_PROCESS_H_

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/simulation/scheduler.h"

namespace idempotency {

// Not thread-safe.
class Process {
 public:
  explicit Process(Scheduler& scheduler) : scheduler_(scheduler) {}

  Scheduler& scheduler() const { return scheduler_; }
  // Then nothing it does is of any effect, and its fibers are to end.
  bool dead() const { return dead_; }

  // In one of its fibers. False: `at_most` passed, or the process died.
  bool WaitAt(Gate& gate, Microseconds at_most) {
    if (dead_) return false;
    gates_.push_back(&gate);
    const bool opened = gate.WaitFor(at_most);
    std::erase(gates_, &gate);
    StandStill();
    return opened && !dead_;
  }
  void Sleep(Microseconds duration) {
    Gate gate(scheduler_);
    WaitAt(gate, duration);
  }

  void Kill() {
    dead_ = true;
    for (Gate* const gate : gates_) gate->Open();
  }
  void Pause(Microseconds duration) {
    paused_until_ = std::max(paused_until_, scheduler_.Now() + duration);
  }
  // How long it still stands still.
  Microseconds pause_left() const {
    return std::chrono::duration_cast<Microseconds>(paused_until_ -
                                                    scheduler_.Now());
  }

 private:
  void StandStill() {
    while (!dead_ && scheduler_.Now() < paused_until_) {
      Gate gate(scheduler_);
      gates_.push_back(&gate);
      gate.WaitFor(pause_left());
      std::erase(gates_, &gate);
    }
  }

  Scheduler& scheduler_;
  bool dead_ = false;
  SteadyTime paused_until_{};
  std::vector<Gate*> gates_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_PROCESS_H_
