#include "client/proxy/log.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace idempotency {
namespace {

constexpr std::chrono::seconds kPause{1};

const char* NameOf(LogSeverity severity) {
  switch (severity) {
    case LogSeverity::kInfo:
      return "INFO";
    case LogSeverity::kWarning:
      return "WARNING";
    case LogSeverity::kError:
      break;
  }
  return "ERROR";
}

}  // namespace

void WriteLog(LogSeverity severity, std::string_view message,
              const LogFields& fields) {
  nlohmann::ordered_json object = {
      {"ts", absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::Now(),
                              absl::UTCTimeZone())},
      {"severity", NameOf(severity)},
      {"msg", std::string(message)}};
  for (const auto& [name, value] : fields) object[name] = value;
  // An error text of the system need not be UTF-8.
  const std::string line =
      object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
      "\n";
  // Lines of several threads do not mix: stdio locks the stream.
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void SparseLog::Write(LogSeverity severity, const std::string& message,
                      LogFields fields) {
  {
    internal::MutexLock lock(mutex_);
    Kind& kind = kinds_[message];
    const auto now = std::chrono::steady_clock::now();
    if (now < kind.next) {
      ++kind.left_out;
      return;
    }
    if (kind.left_out > 0) {
      fields.emplace_back("left_out", std::to_string(kind.left_out));
    }
    kind = {.next = now + kPause, .left_out = 0};
  }
  WriteLog(severity, message, fields);
}

}  // namespace idempotency
