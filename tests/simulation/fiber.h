// Code that can stop in the middle and go on later, in one thread.
#ifndef IDEMPOTENCY_TESTS_SIMULATION_FIBER_H_
#define IDEMPOTENCY_TESTS_SIMULATION_FIBER_H_

#include <boost/context/fiber.hpp>
#include <cstddef>

#include "absl/functional/any_invocable.h"

namespace idempotency {

// Not thread-safe. A fiber must have ended before it is destroyed, and its body
// must not throw. AddressSanitizer is told of every switch; ThreadSanitizer is
// not, and one thread has nothing to show it.
class Fiber {
 public:
  explicit Fiber(absl::AnyInvocable<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body on until it suspends itself or ends. Not from a fiber.
  void Resume();
  bool ended() const { return ended_; }

  // Back to whoever resumed this fiber. Only from its body.
  void Suspend();

 private:
  // How AddressSanitizer knows the stack that is left.
  struct Stack {
    void* fake = nullptr;
    const void* bottom = nullptr;
    std::size_t size = 0;
  };

  void Entered();

  absl::AnyInvocable<void()> body_;
  boost::context::fiber other_side_;
  bool ended_ = false;
  Stack own_;
  Stack resumer_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_FIBER_H_
