#ifndef IDEMPOTENCY_TESTS_SUPPORT_SERVER_PROCESS_H_
#define IDEMPOTENCY_TESTS_SUPPORT_SERVER_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/mutex.h"

namespace idempotency {

// A program run as a child of the test, in a session of its own, with all that
// it writes kept. It is killed, and its process group with it, when this
// object is destroyed; it also dies with the test process. A PostgreSQL that it
// started in a session of its own is left: give it a TempFolder to live in.
//
// Thread-safe.
class ServerProcess {
 public:
  struct Options {
    std::string program;
    std::vector<std::string> arguments;
    // NAME=value, over the test's own environment.
    std::vector<std::string> environment;
    // Everything it writes is also written here. Empty: nowhere.
    std::string output_file;
  };

  struct Exit {
    // The exit status, or -1 if a signal ended it.
    int code = -1;
    // The signal that ended it, or zero.
    int signal = 0;
    friend bool operator==(const Exit&, const Exit&) = default;
  };

  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(Options options);

  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  ~ServerProcess();

  pid_t pid() const { return pid_; }

  // Standard output and standard error together, the last 16 MiB of it.
  std::string Output() const;

  // Waits for a line that has `text` in it and returns the first such line,
  // complete. FAILED_PRECONDITION if the program ended without one,
  // DEADLINE_EXCEEDED after `timeout`; both carry the end of its output.
  absl::StatusOr<std::string> WaitForLine(
      const std::string& text,
      std::chrono::milliseconds timeout = std::chrono::seconds(60)) const;

  // Waits until something accepts connections at that port of 127.0.0.1.
  absl::Status WaitForPort(int port, std::chrono::milliseconds timeout =
                                         std::chrono::seconds(60)) const;

  // Sends a signal, to the program only. Nothing happens after its end.
  void Signal(int signal);
  void Terminate();  // SIGTERM
  void Kill();       // SIGKILL
  void Pause();      // SIGSTOP
  void Resume();     // SIGCONT

  // Waits until it has ended.
  absl::StatusOr<Exit> WaitForExit(
      std::chrono::milliseconds timeout = std::chrono::seconds(60)) const;
  bool running() const;

 private:
  explicit ServerProcess(Options options) : options_(std::move(options)) {}

  void Run(std::promise<absl::StatusOr<pid_t>>* started);
  void ReadUntilEnd(int output, int process);
  void Keep(const char* bytes, std::size_t size);
  std::optional<std::string> FindLine(const std::string& text) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string OutputEnd() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  pid_t pid_ = 0;
  std::ofstream file_;

  mutable Mutex mutex_;
  // Notified when the output grows and when the program ends.
  mutable ConditionVariable changed_;
  std::string output_ ABSL_GUARDED_BY(mutex_);
  std::optional<Exit> exit_ ABSL_GUARDED_BY(mutex_);

  // Starts the program, reads its output and reaps it: the child dies with the
  // thread that started it, so that thread has to live as long.
  std::thread thread_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SUPPORT_SERVER_PROCESS_H_
