#include "tests/simulation/fiber.h"

#include <sys/mman.h>

#include <boost/context/stack_context.hpp>
#include <cstdlib>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define IDEMPOTENCY_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define IDEMPOTENCY_ASAN 1
#endif
#endif

#if defined(IDEMPOTENCY_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif

namespace idempotency {
namespace {

namespace context = boost::context;

constexpr std::size_t kPage = 4096;
#if defined(IDEMPOTENCY_ASAN)
constexpr std::size_t kStackBytes = 256 * kPage;
#else
constexpr std::size_t kStackBytes = 32 * kPage;
#endif

// Stacks with a page in front of each that nobody may touch. They are kept for
// the next fiber, as there is one for every statement.
class StackPool {
 public:
  ~StackPool() {
    for (void* const stack : free_) munmap(stack, kPage + kStackBytes);
  }

  context::stack_context Take() {
    void* stack = nullptr;
    if (free_.empty()) {
      stack = mmap(nullptr, kPage + kStackBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (stack == MAP_FAILED || mprotect(stack, kPage, PROT_NONE) != 0) {
        std::abort();
      }
    } else {
      stack = free_.back();
      free_.pop_back();
    }
    context::stack_context taken;
    taken.size = kStackBytes;
    taken.sp = static_cast<char*>(stack) + kPage + kStackBytes;
    return taken;
  }

  void Give(const context::stack_context& given) {
    free_.push_back(static_cast<char*>(given.sp) - kStackBytes - kPage);
  }

 private:
  std::vector<void*> free_;
};

StackPool& Pool() {
  thread_local StackPool pool;
  return pool;
}

// As Boost.Context asks for it.
struct PooledStacks {
  context::stack_context allocate() { return Pool().Take(); }
  void deallocate(context::stack_context& stack) { Pool().Give(stack); }
};

void StartSwitch([[maybe_unused]] void** fake,
                 [[maybe_unused]] const void* bottom,
                 [[maybe_unused]] std::size_t size) {
#if defined(IDEMPOTENCY_ASAN)
  __sanitizer_start_switch_fiber(fake, bottom, size);
#endif
}

void FinishSwitch([[maybe_unused]] void* fake,
                  [[maybe_unused]] const void** bottom,
                  [[maybe_unused]] std::size_t* size) {
#if defined(IDEMPOTENCY_ASAN)
  __sanitizer_finish_switch_fiber(fake, bottom, size);
#endif
}

}  // namespace

Fiber::Fiber(absl::AnyInvocable<void()> body) : body_(std::move(body)) {
  PooledStacks stacks;
  const context::stack_context stack = stacks.allocate();
  own_.bottom = static_cast<char*>(stack.sp) - stack.size;
  own_.size = stack.size;
  other_side_ = context::fiber(
      std::allocator_arg, context::preallocated(stack.sp, stack.size, stack),
      stacks, [this](context::fiber&& resumer) {
        other_side_ = std::move(resumer);
        Entered();
        body_();
        ended_ = true;
        // The stack is not needed any more: no fake one is kept.
        StartSwitch(nullptr, resumer_.bottom, resumer_.size);
        return std::move(other_side_);
      });
}

Fiber::~Fiber() {
  if (!ended_) std::abort();
}

void Fiber::Entered() {
  FinishSwitch(own_.fake, &resumer_.bottom, &resumer_.size);
}

void Fiber::Resume() {
  StartSwitch(&resumer_.fake, own_.bottom, own_.size);
  other_side_ = std::move(other_side_).resume();
  FinishSwitch(resumer_.fake, nullptr, nullptr);
}

void Fiber::Suspend() {
  StartSwitch(&own_.fake, resumer_.bottom, resumer_.size);
  other_side_ = std::move(other_side_).resume();
  Entered();
}

}  // namespace idempotency
