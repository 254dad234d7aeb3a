// A log that the test can read.
#ifndef IDEMPOTENCY_TESTS_SUPPORT_MEMORY_LOG_H_
#define IDEMPOTENCY_TESTS_SUPPORT_MEMORY_LOG_H_

#include <string>
#include <string_view>
#include <vector>

#include "server/core/log.h"
#include "server/core/mutex.h"

namespace idempotency {

// Thread-safe.
class MemoryLog final : public Log {
 public:
  void Write(Severity, std::string_view message,
             const LogFields& fields) override {
    std::string line(message);
    for (const auto& [name, value] : fields) {
      line.append(" ").append(name).append("=").append(value);
    }
    MutexLock lock(mutex_);
    lines_.push_back(std::move(line));
  }

  std::vector<std::string> lines() const {
    MutexLock lock(mutex_);
    return lines_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SUPPORT_MEMORY_LOG_H_
