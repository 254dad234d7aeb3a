#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_CHILD_PROCESS_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_CHILD_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace idempotency {

struct Identity {
  uid_t user = 0;
  gid_t group = 0;
};

struct SpawnOptions {
  // The program (its path, PATH is not searched) and its arguments.
  std::vector<std::string> command;
  // The whole environment, as NAME=value.
  std::vector<std::string> environment;
  // Whom the program runs as. Needs root.
  std::optional<Identity> run_as;
  // Entered as `run_as`. Empty: stays where the caller is.
  std::string working_directory;
  // What becomes standard input. Below zero: /dev/null.
  int input = -1;
  // What becomes standard output and standard error. Below zero: `output_file`,
  // or /dev/null if that is empty too.
  int output = -1;
  // Appended to, made if absent (mode 0600), opened as `run_as`.
  std::string output_file;
  // A session of its own: signals from the caller's terminal or sent to the
  // caller's process group do not reach the program.
  bool own_session = false;
  // The program gets SIGKILL when the *thread* that called Spawn ends.
  bool dies_with_thread = false;
};

// Starts a program. Safe in a process with many threads. The program inherits
// no file descriptor but those above, no blocked signal and no ignored one.
//
// Thread-safe. On success the caller owns the child and must reap it. An
// error says which step failed; no process is left then.
absl::StatusOr<pid_t> Spawn(const SpawnOptions& options);

// Waits until the child has ended, at most for `timeout`, and reaps it.
// Returns its wait status (as waitpid gives it), or nothing if it still runs.
std::optional<int> WaitForChild(pid_t child, std::chrono::milliseconds timeout);

// A wait status in words: "exit status 1", "signal 9".
std::string DescribeWaitStatus(int wait_status);

struct ProgramResult {
  int wait_status = 0;
  // The last 64 KiB of what it wrote to standard output and standard error.
  std::string output;
};

// Runs a program to its end. `output` and `output_file` are ignored. A program
// that is still running after `timeout` is killed: DEADLINE_EXCEEDED.
absl::StatusOr<ProgramResult> RunProgram(SpawnOptions options,
                                         std::chrono::milliseconds timeout);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_CHILD_PROCESS_H_
