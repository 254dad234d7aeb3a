#include "server/rpc/library_log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/core/mutex.h"

namespace idempotency {
namespace {

// gRPC's errors carry whole trees of causes.
constexpr std::size_t kMessageBytesMax = 1000;

// Each failed handshake is one: a port scanner would fill the disk.
constexpr std::chrono::minutes kPeriod{1};
constexpr int kLinesPerPeriod = 10;

// What gRPC 1.51 says before it gives a listener up.
constexpr char kListenerLost[] = "Failed accept4";

// The libraries take plain functions without a context of their own.
std::atomic<Log*> the_log{nullptr};
std::atomic<const std::function<void()>*> the_listener_lost{nullptr};

// Bounds how many lines are written. Thread-safe.
class LineBudget {
 public:
  // How many lines were left out in the period that has just ended; nothing if
  // this one is to be left out too.
  std::optional<int> Take(std::chrono::steady_clock::time_point now) {
    MutexLock lock(mutex_);
    int left_out = 0;
    if (now >= period_ends_) {
      period_ends_ = now + kPeriod;
      left_out = std::max(lines_ - kLinesPerPeriod, 0);
      lines_ = 0;
    }
    if (lines_++ >= kLinesPerPeriod) return std::nullopt;
    return left_out;
  }

 private:
  Mutex mutex_;
  std::chrono::steady_clock::time_point period_ends_ ABSL_GUARDED_BY(mutex_);
  int lines_ ABSL_GUARDED_BY(mutex_) = 0;
};

void Write(const char* library, std::string message) {
  Log* const log = the_log.load();
  if (log == nullptr) return;
  static auto* const budget = new LineBudget();
  const auto left_out = budget->Take(std::chrono::steady_clock::now());
  if (!left_out.has_value()) return;
  if (*left_out > 0) {
    log->Write(Severity::kWarning, "errors of libraries were left out",
               {{"lines", absl::StrCat(*left_out)}});
  }
  if (message.size() > kMessageBytesMax) message.resize(kMessageBytesMax);
  log->Write(Severity::kWarning, "a library reports an error",
             {{"library", library}, {"error", std::move(message)}});
}

void WriteGrpc(gpr_log_func_args* args) {
  if (args->severity != GPR_LOG_SEVERITY_ERROR) return;
  Write("grpc", args->message);
  const auto* const listener_lost = the_listener_lost.load();
  if (listener_lost != nullptr &&
      absl::StartsWith(args->message, kListenerLost)) {
    (*listener_lost)();
  }
}

void WriteProtobuf(google::protobuf::LogLevel level, const char*, int,
                   const std::string& message) {
  if (level == google::protobuf::LOGLEVEL_FATAL) Write("protobuf", message);
}

}  // namespace

void SendLibraryLogsTo(Log* log, std::function<void()> listener_lost) {
  the_log = log;
  // Never deleted: gRPC's threads may be about to call it.
  the_listener_lost = listener_lost == nullptr
                          ? nullptr
                          : new std::function<void()>(std::move(listener_lost));
  gpr_set_log_function(&WriteGrpc);
  google::protobuf::SetLogHandler(&WriteProtobuf);
}

}  // namespace idempotency
