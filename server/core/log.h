// What the coordinator says to its operators. Events are named, their fields
// are few, and none of them ever holds a key, a token, a body, SQL or a
// connection string.
#ifndef IDEMPOTENCY_SERVER_CORE_LOG_H_
#define IDEMPOTENCY_SERVER_CORE_LOG_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace idempotency {

enum class Severity { kInfo, kWarning, kError };

using LogFields = std::vector<std::pair<std::string, std::string>>;

// Thread-safe.
class Log {
 public:
  virtual ~Log() = default;
  virtual void Write(Severity severity, std::string_view message,
                     const LogFields& fields) = 0;
};

// `status` as the field "error".
inline LogFields ErrorField(const absl::Status& status) {
  return {
      {"error", status.ToString(absl::StatusToStringMode::kWithNoExtraData)}};
}

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_LOG_H_
