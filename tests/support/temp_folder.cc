#include "tests/support/temp_folder.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/postgres/child_process.h"

namespace idempotency {
namespace {

// $1 is the folder. The subshell in the background has init as its parent, so
// that a test runner that kills a test's descendants leaves it alone. Servers
// get an immediate shutdown first, which frees their shared memory.
constexpr char kWatchdog[] = R"sh(
folder=$1
runs() {
  [ -r "/proc/$1/cmdline" ] && tr '\0' '\n' <"/proc/$1/cmdline" |
    grep -qF "$folder/"
}
stop() {
  pid=$(sed -n 1p "$1" 2>/dev/null)
  [ -n "$pid" ] && runs "$pid" || return
  all="$pid $(cat "/proc/$pid/task/$pid/children" 2>/dev/null)"
  kill -CONT $all
  kill -QUIT "$pid"
  tries=0
  while runs "$pid" && [ $tries -lt 100 ]; do
    sleep 0.1
    tries=$((tries + 1))
  done
  runs "$pid" && kill -KILL $all
}
watch() {
  read -r nothing
  for file in "$folder"/postmaster.pid "$folder"/*/postmaster.pid \
      "$folder"/*/*/postmaster.pid; do
    [ -e "$file" ] && stop "$file"
  done
  tries=0
  while ! rm -rf "$folder" && [ $tries -lt 20 ]; do
    sleep 0.1
    tries=$((tries + 1))
  done
}
cd /
exec 3<&0
watch <&3 2>/dev/null &
)sh";

constexpr int kDoneTimeoutMs = 30000;
constexpr std::chrono::seconds kWatchdogStartTimeout{20};

struct Pipe {
  int read_end = -1;
  int write_end = -1;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  return Pipe{ends[0], ends[1]};
}

absl::Status StartWatchdog(const std::string& folder, int input, int output) {
  SpawnOptions shell;
  shell.command = {"/bin/sh", "-c", kWatchdog, "watchdog", folder};
  shell.environment = {"PATH=/usr/bin:/bin"};
  shell.input = input;
  shell.output = output;
  shell.own_session = true;
  absl::StatusOr<pid_t> started = Spawn(shell);
  if (!started.ok()) return started.status();
  const std::optional<int> ended =
      WaitForChild(*started, kWatchdogStartTimeout);
  if (ended == 0) return absl::OkStatus();
  return absl::InternalError("the watchdog did not start");
}

}  // namespace

absl::StatusOr<std::unique_ptr<TempFolder>> TempFolder::Make() {
  const char* parent = std::getenv("TMPDIR");
  std::string path =
      absl::StrCat(parent == nullptr || *parent == '\0' ? "/tmp" : parent,
                   "/idempotency-test-XXXXXX");
  if (mkdtemp(path.data()) == nullptr || chmod(path.c_str(), 0755) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", path));
  }
  absl::StatusOr<Pipe> alive = MakePipe();
  if (!alive.ok()) return alive.status();
  absl::StatusOr<Pipe> done = MakePipe();
  if (!done.ok()) return done.status();
  const absl::Status started =
      StartWatchdog(path, alive->read_end, done->write_end);
  close(alive->read_end);
  close(done->write_end);
  std::unique_ptr<TempFolder> folder(
      new TempFolder(path, alive->write_end, done->read_end));
  if (!started.ok()) {
    std::filesystem::remove_all(path);
    return started;
  }
  return folder;
}

TempFolder::~TempFolder() {
  close(alive_fd_);
  pollfd done{done_fd_, POLLIN, 0};
  while (poll(&done, 1, kDoneTimeoutMs) < 0 && errno == EINTR) {
  }
  close(done_fd_);
}

}  // namespace idempotency
