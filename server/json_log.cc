#include "server/json_log.h"

#include <grpc/support/log.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
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

std::atomic<Log*> grpc_log{nullptr};

void WriteGrpcLog(gpr_log_func_args* args) {
  Log* const log = grpc_log.load(std::memory_order_acquire);
  if (log == nullptr || args->severity == GPR_LOG_SEVERITY_DEBUG) return;
  log->Write(args->severity == GPR_LOG_SEVERITY_ERROR ? Severity::kError
                                                      : Severity::kInfo,
             "grpc", {{"detail", args->message}});
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

void RouteGrpcLog(Log& log) {
  grpc_log.store(&log, std::memory_order_release);
  gpr_set_log_function(&WriteGrpcLog);
}

}  // namespace idempotency
