// Logs as lines of JSON on standard error, through spdlog.
#ifndef IDEMPOTENCY_SERVER_JSON_LOG_H_
#define IDEMPOTENCY_SERVER_JSON_LOG_H_

#include <memory>
#include <string_view>

#include "server/core/log.h"

namespace spdlog {
class logger;
}  // namespace spdlog

namespace idempotency {

// One object a line: "ts" (RFC 3339, UTC), "severity", "msg" and the
// event's fields. Thread-safe.
class JsonLog final : public Log {
 public:
  JsonLog();
  ~JsonLog() override;
  void Write(Severity severity, std::string_view message,
             const LogFields& fields) override;

 private:
  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_JSON_LOG_H_
