// How much memory answers may take until their callers have read them.
#ifndef IDEMPOTENCY_SERVER_RPC_REPLY_BUDGET_H_
#define IDEMPOTENCY_SERVER_RPC_REPLY_BUDGET_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "server/core/limits.h"

namespace idempotency {

// One for the whole process. Thread-safe.
class ReplyBudget {
 public:
  // `taken` counts the bytes, for others to see, and must outlive the budget.
  ReplyBudget(std::size_t max, std::atomic<std::uint64_t>& taken)
      : max_(max), taken_(taken) {}

  // For an answer of a stream that holds `held` bytes already. False, and
  // nothing is taken, if that would be more than the stream's share. Who holds
  // nothing may have all that is free.
  bool TryTakeShare(std::size_t held, std::size_t bytes) {
    const std::uint64_t taken = taken_.load(std::memory_order_relaxed) + bytes;
    if (held > 0 && taken + limits::kReplyFreeShare * (held + bytes) > max_) {
      return false;
    }
    return TryTake(bytes);
  }

  // False, and nothing is taken, if that would be too much.
  bool TryTake(std::size_t bytes) {
    const std::uint64_t before =
        taken_.fetch_add(bytes, std::memory_order_relaxed);
    if (before + bytes <= max_) return true;
    Give(bytes);
    return false;
  }

  // For answers that are given in any case.
  void Take(std::size_t bytes) {
    taken_.fetch_add(bytes, std::memory_order_relaxed);
  }
  void Give(std::size_t bytes) {
    // Most answers show no recorded response, and need not touch what all
    // threads share.
    if (bytes == 0) return;
    taken_.fetch_sub(bytes, std::memory_order_relaxed);
  }

  bool exhausted() const {
    return taken_.load(std::memory_order_relaxed) >= max_;
  }

 private:
  const std::uint64_t max_;
  std::atomic<std::uint64_t>& taken_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_REPLY_BUDGET_H_
