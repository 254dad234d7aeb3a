#include "server/rpc/library_log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <atomic>
#include <cstddef>
#include <string>

namespace idempotency {
namespace {

// gRPC's errors carry whole trees of causes.
constexpr std::size_t kMessageBytesMax = 1000;

// The libraries take plain functions without a context of their own.
std::atomic<Log*> the_log{nullptr};

void Write(const char* library, std::string message) {
  Log* const log = the_log.load();
  if (log == nullptr) return;
  if (message.size() > kMessageBytesMax) message.resize(kMessageBytesMax);
  log->Write(Severity::kWarning, "a library reports an error",
             {{"library", library}, {"error", std::move(message)}});
}

void WriteGrpc(gpr_log_func_args* args) {
  if (args->severity == GPR_LOG_SEVERITY_ERROR) Write("grpc", args->message);
}

void WriteProtobuf(google::protobuf::LogLevel level, const char*, int,
                   const std::string& message) {
  if (level == google::protobuf::LOGLEVEL_FATAL) Write("protobuf", message);
}

}  // namespace

void SendLibraryLogsTo(Log* log) {
  the_log = log;
  gpr_set_log_function(&WriteGrpc);
  google::protobuf::SetLogHandler(&WriteProtobuf);
}

}  // namespace idempotency
