#include "server/json_log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace idempotency {
namespace {

const char* NameOf(Severity severity) {
  switch (severity) {
    case Severity::kInfo:
      return "INFO";
    case Severity::kWarning:
      return "WARNING";
    case Severity::kError:
      return "ERROR";
  }
  return "ERROR";
}

}  // namespace

JsonLog::JsonLog()
    : logger_(std::make_shared<spdlog::logger>(
          "idempotency", std::make_shared<spdlog::sinks::stderr_sink_mt>())) {
  logger_->set_pattern("%v");
}

JsonLog::~JsonLog() = default;

void JsonLog::Write(Severity severity, std::string_view message,
                    const LogFields& fields) {
  nlohmann::ordered_json line = {
      {"ts", absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::Now(),
                              absl::UTCTimeZone())},
      {"severity", NameOf(severity)},
      {"msg", std::string(message)}};
  for (const auto& [name, value] : fields) line[name] = value;
  // An error text of the system need not be UTF-8.
  logger_->info(
      line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace idempotency
