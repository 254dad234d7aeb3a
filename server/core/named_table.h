// Counters by a name that is known only at run time, with a bound on how many
// names there can be.
#ifndef IDEMPOTENCY_SERVER_CORE_NAMED_TABLE_H_
#define IDEMPOTENCY_SERVER_CORE_NAMED_TABLE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/core/mutex.h"

namespace idempotency {

// A T for each of the first `kNamesMax` names, and one for all others.
// Thread-safe as far as T is. Entries live as long as the table. Only adding a
// name takes a lock.
template <typename T, std::size_t kNamesMax>
class NamedTable {
 public:
  // Stands for every name beyond the bound, and for itself.
  static constexpr std::string_view kOther = "other";

  T& At(std::string_view name) {
    if (T* const known = Find(name)) return *known;
    if (name != kOther && size_.load(std::memory_order_relaxed) < kNamesMax) {
      MutexLock lock(mutex_);
      // Another thread may have added it.
      if (T* const known = Find(name)) return *known;
      const std::size_t size = size_.load(std::memory_order_relaxed);
      if (size < kNamesMax) {
        entries_[size] = std::make_unique<Entry>(std::string(name));
        size_.store(size + 1, std::memory_order_release);
        return entries_[size]->value;
      }
    }
    other_used_.store(true, std::memory_order_relaxed);
    return other_.value;
  }

  // Calls `use(name, value)` for each entry, in the order in which the names
  // came; for kOther last, once it is in use.
  template <typename Use>
  void ForEach(Use use) const {
    const std::size_t size = size_.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < size; ++i) {
      use(std::string_view(entries_[i]->name), entries_[i]->value);
    }
    if (other_used_.load(std::memory_order_relaxed)) use(kOther, other_.value);
  }

 private:
  struct Entry {
    explicit Entry(std::string of) : name(std::move(of)) {}
    const std::string name;
    T value{};
  };

  T* Find(std::string_view name) {
    const std::size_t size = size_.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < size; ++i) {
      if (entries_[i]->name == name) return &entries_[i]->value;
    }
    return nullptr;
  }

  Mutex mutex_;  // held by whoever adds an entry
  // Entries below size_ never change.
  std::array<std::unique_ptr<Entry>, kNamesMax> entries_{};
  std::atomic<std::size_t> size_{0};
  Entry other_{std::string(kOther)};
  std::atomic<bool> other_used_{false};
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_NAMED_TABLE_H_
