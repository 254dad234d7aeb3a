// The sidecar's log: lines of JSON on standard error, as the server's.
#ifndef IDEMPOTENCY_CLIENT_PROXY_LOG_H_
#define IDEMPOTENCY_CLIENT_PROXY_LOG_H_

#include <chrono>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/mutex.h"

namespace idempotency {

enum class LogSeverity { kInfo, kWarning, kError };
using LogFields = std::vector<std::pair<std::string, std::string>>;

// One object a line: "ts" (RFC 3339, UTC), "severity", "msg" and the fields.
// Thread-safe.
void WriteLog(LogSeverity severity, std::string_view message,
              const LogFields& fields = {});

// For what each of many requests may say: one line a second of each kind, which
// tells how many were left out since the last. Thread-safe.
class SparseLog {
 public:
  void Write(LogSeverity severity, const std::string& message,
             LogFields fields = {});

 private:
  struct Kind {
    std::chrono::steady_clock::time_point next = {};
    std::size_t left_out = 0;
  };

  internal::Mutex mutex_;
  std::map<std::string, Kind> kinds_ ABSL_GUARDED_BY(mutex_);  // by message
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_PROXY_LOG_H_
