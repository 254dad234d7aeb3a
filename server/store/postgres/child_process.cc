#include "server/store/postgres/child_process.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace idempotency {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kOutputBytesMax = 64 * 1024;
// Flag of close_range(2); older headers lack it.
constexpr unsigned kCloseRangeCloexec = 1U << 2;
// Descriptors beyond this are not marked on kernels without close_range(2).
constexpr long kDescriptorsMax = 65536;

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() { Reset(); }

  int get() const { return fd_; }
  void Reset(int fd = -1) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_;
};

// What the child found wrong before it became the program.
struct ChildError {
  const char* step;
  int error;
};

// Everything the child needs, made before the fork: afterwards nothing may
// allocate or lock.
struct Plan {
  std::vector<char*> arguments;
  std::vector<char*> environment;
  const char* working_directory = nullptr;
  const char* output_file = nullptr;
  int input = -1;
  int output = -1;
  int error_pipe = -1;
  bool change_identity = false;
  Identity identity;
  bool own_session = false;
  bool dies_with_parent = false;
  pid_t parent = 0;
  long descriptors = 0;
};

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& s : strings) {
    pointers.push_back(const_cast<char*>(s.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

// From here to ChildMain: only async-signal-safe calls, since another thread
// may have held any lock at the fork.

[[noreturn]] void Fail(const Plan& plan, const char* step) {
  const ChildError error{step, errno};
  // The parent shares this program's addresses, so `step` means the same there.
  [[maybe_unused]] const ssize_t written =
      write(plan.error_pipe, &error, sizeof(error));
  _exit(127);
}

void ResetSignals() {
  struct sigaction action;
  std::memset(&action, 0, sizeof(action));
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) {
    sigaction(signal, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// The system calls themselves: the library's wrappers would tell threads that
// do not exist in the child.
void ChangeIdentity(const Plan& plan) {
  const gid_t group = plan.identity.group;
  if (syscall(SYS_setgroups, 1, &group) != 0) Fail(plan, "setgroups");
  if (syscall(SYS_setgid, group) != 0) Fail(plan, "setgid");
  if (syscall(SYS_setuid, plan.identity.user) != 0) Fail(plan, "setuid");
}

void ConnectStandardStreams(const Plan& plan) {
  int input = plan.input;
  if (input < 0) input = open("/dev/null", O_RDONLY | O_CLOEXEC);
  int output = plan.output;
  if (output < 0) {
    output = plan.output_file == nullptr
                 ? open("/dev/null", O_WRONLY | O_CLOEXEC)
                 : open(plan.output_file,
                        O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
                        0600);
  }
  if (input < 0 || output < 0) Fail(plan, "open");
  // A stream that was closed in the parent may have come back as 0, 1 or 2.
  input = fcntl(input, F_DUPFD_CLOEXEC, 3);
  output = fcntl(output, F_DUPFD_CLOEXEC, 3);
  if (input < 0 || output < 0) Fail(plan, "fcntl");
  if (dup2(input, 0) < 0 || dup2(output, 1) < 0 || dup2(output, 2) < 0) {
    Fail(plan, "dup2");
  }
}

// Marks rather than closes: the error pipe must live until the exec.
void MarkDescriptorsForClosing(const Plan& plan) {
  if (syscall(SYS_close_range, 3U, ~0U, kCloseRangeCloexec) == 0) return;
  for (int fd = 3; fd < plan.descriptors; ++fd) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
}

[[noreturn]] void ChildMain(const Plan& plan) {
  ResetSignals();
  if (plan.own_session && setsid() < 0) Fail(plan, "setsid");
  if (plan.change_identity) ChangeIdentity(plan);
  if (plan.dies_with_parent) {
    // After the change of identity, which clears it.
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) Fail(plan, "prctl");
    if (getppid() != plan.parent) _exit(127);
  }
  if (plan.working_directory != nullptr && chdir(plan.working_directory) != 0) {
    Fail(plan, "chdir");
  }
  ConnectStandardStreams(plan);
  MarkDescriptorsForClosing(plan);
  execve(plan.arguments[0], plan.arguments.data(), plan.environment.data());
  Fail(plan, "exec");
}

Plan MakePlan(const SpawnOptions& options, int error_pipe) {
  Plan plan;
  plan.arguments = Pointers(options.command);
  plan.environment = Pointers(options.environment);
  if (!options.working_directory.empty()) {
    plan.working_directory = options.working_directory.c_str();
  }
  if (!options.output_file.empty()) {
    plan.output_file = options.output_file.c_str();
  }
  plan.input = options.input;
  plan.output = options.output;
  plan.error_pipe = error_pipe;
  plan.change_identity = options.run_as.has_value();
  if (options.run_as) plan.identity = *options.run_as;
  plan.own_session = options.own_session;
  plan.dies_with_parent = options.dies_with_thread;
  plan.parent = getpid();
  plan.descriptors = std::min(sysconf(_SC_OPEN_MAX), kDescriptorsMax);
  return plan;
}

absl::Status SystemError(absl::string_view what, int error) {
  return absl::ErrnoToStatus(error, what);
}

}  // namespace

absl::StatusOr<pid_t> Spawn(const SpawnOptions& options) {
  if (options.command.empty()) {
    return absl::InvalidArgumentError("no program to start");
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("pipe", errno);
  FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(fcntl(ends[1], F_DUPFD_CLOEXEC, 3));
  close(ends[1]);
  if (write_end.get() < 0) return SystemError("fcntl", errno);
  const Plan plan = MakePlan(options, write_end.get());

  // With every signal blocked, no handler of the parent runs in the child.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t child = fork();
  if (child == 0) ChildMain(plan);
  const int fork_error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (child < 0) return SystemError("fork", fork_error);

  write_end.Reset();
  ChildError error{};
  ssize_t got;
  do {
    got = read(read_end.get(), &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  if (got == 0) return child;
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (got != sizeof(error)) return SystemError("starting a program", EIO);
  return SystemError(
      absl::StrCat("cannot start ", options.command[0], ": ", error.step),
      error.error);
}

std::optional<int> WaitForChild(pid_t child,
                                std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  FileDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  while (true) {
    int wait_status = 0;
    const pid_t reaped = waitpid(child, &wait_status, WNOHANG);
    if (reaped == child) return wait_status;
    // Somebody else reaped it: it has ended all the same.
    if (reaped < 0 && errno == ECHILD) return 0;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return std::nullopt;
    if (process.get() >= 0) {
      pollfd ended{process.get(), POLLIN, 0};
      poll(&ended, 1, static_cast<int>(std::min<long>(left.count(), 60000)));
    } else {
      std::this_thread::sleep_for(
          std::min(left, std::chrono::milliseconds(10)));
    }
  }
}

std::string DescribeWaitStatus(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    return absl::StrCat("signal ", WTERMSIG(wait_status));
  }
  return absl::StrCat("exit status ", WEXITSTATUS(wait_status));
}

absl::StatusOr<ProgramResult> RunProgram(SpawnOptions options,
                                         std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("pipe", errno);
  FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);
  options.output = write_end.get();
  absl::StatusOr<pid_t> child = Spawn(options);
  if (!child.ok()) return child.status();
  write_end.Reset();

  const auto time_left = [&deadline] {
    return std::max(
        std::chrono::milliseconds(0),
        std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()));
  };
  ProgramResult result;
  char buffer[4096];
  while (true) {
    pollfd readable{read_end.get(), POLLIN, 0};
    const int ready = poll(&readable, 1, static_cast<int>(time_left().count()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) break;
    const ssize_t got = read(read_end.get(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    result.output.append(buffer, static_cast<std::size_t>(got));
    if (result.output.size() > 2 * kOutputBytesMax) {
      result.output.erase(0, result.output.size() - kOutputBytesMax);
    }
  }
  const std::optional<int> ended = WaitForChild(*child, time_left());
  if (!ended) {
    kill(*child, SIGKILL);
    while (waitpid(*child, nullptr, 0) < 0 && errno == EINTR) {
    }
    return absl::DeadlineExceededError(absl::StrCat(
        options.command[0], " did not end within ", timeout.count(), " ms"));
  }
  result.wait_status = *ended;
  if (result.output.size() > kOutputBytesMax) {
    result.output.erase(0, result.output.size() - kOutputBytesMax);
  }
  return result;
}

}  // namespace idempotency
