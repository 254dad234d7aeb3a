#include "tests/support/server_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/postgres/child_process.h"

extern char** environ;

namespace idempotency {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kOutputBytesMax = 16 * 1024 * 1024;
constexpr std::size_t kOutputEndBytes = 4000;
constexpr std::chrono::milliseconds kPortInterval{10};

std::vector<std::string> Merged(const std::vector<std::string>& over) {
  const auto name = [](const std::string& variable) {
    return variable.substr(0, variable.find('='));
  };
  std::vector<std::string> merged = over;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const bool replaced = std::any_of(
        over.begin(), over.end(),
        [&](const std::string& v) { return name(v) == name(*variable); });
    if (!replaced) merged.emplace_back(*variable);
  }
  return merged;
}

bool Accepts(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<in_port_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool accepted =
      connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return accepted;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(
    Options options) {
  std::unique_ptr<ServerProcess> process(new ServerProcess(std::move(options)));
  if (!process->options_.output_file.empty()) {
    process->file_.open(process->options_.output_file, std::ios::binary);
    if (!process->file_) {
      return absl::InternalError(
          absl::StrCat("cannot write ", process->options_.output_file));
    }
  }
  std::promise<absl::StatusOr<pid_t>> promise;
  std::future<absl::StatusOr<pid_t>> started = promise.get_future();
  process->thread_ =
      std::thread([p = process.get(), &promise] { p->Run(&promise); });
  absl::StatusOr<pid_t> pid = started.get();
  if (!pid.ok()) return pid.status();
  process->pid_ = *pid;
  return process;
}

ServerProcess::~ServerProcess() {
  {
    MutexLock lock(mutex_);
    // While it is not reaped, no other process or group has its number.
    if (pid_ != 0 && !exit_) kill(-pid_, SIGKILL);
  }
  if (thread_.joinable()) thread_.join();
}

void ServerProcess::Run(std::promise<absl::StatusOr<pid_t>>* started) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    started->set_value(absl::ErrnoToStatus(errno, "pipe"));
    return;
  }
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  SpawnOptions spawn;
  spawn.command = options_.arguments;
  spawn.command.insert(spawn.command.begin(), options_.program);
  spawn.environment = Merged(options_.environment);
  spawn.output = ends[1];
  spawn.own_session = true;
  spawn.dies_with_thread = true;
  absl::StatusOr<pid_t> child = Spawn(spawn);
  close(ends[1]);
  if (!child.ok()) {
    close(ends[0]);
    started->set_value(child.status());
    return;
  }
  const pid_t pid = *child;
  const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (process < 0) {
    const int error = errno;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    close(ends[0]);
    started->set_value(absl::ErrnoToStatus(error, "pidfd_open"));
    return;
  }
  started->set_value(pid);
  ReadUntilEnd(ends[0], process);
  close(ends[0]);
  close(process);

  MutexLock lock(mutex_);
  int wait_status = 0;
  while (waitpid(pid, &wait_status, 0) < 0 && errno == EINTR) {
  }
  exit_ = WIFSIGNALED(wait_status)
              ? Exit{.code = -1, .signal = WTERMSIG(wait_status)}
              : Exit{.code = WEXITSTATUS(wait_status), .signal = 0};
  changed_.notify_all();
}

// Ends with the program, not with its output: a child of its own may hold that
// open.
void ServerProcess::ReadUntilEnd(int output, int process) {
  char buffer[16 * 1024];
  bool open = true;
  while (true) {
    pollfd fds[2] = {{process, POLLIN, 0}, {open ? output : -1, POLLIN, 0}};
    if (poll(fds, 2, -1) < 0) continue;
    // What was written before the end is read before the end is told.
    const bool ended = fds[0].revents != 0;
    ssize_t got = 0;
    while (open && (got = read(output, buffer, sizeof(buffer))) > 0) {
      Keep(buffer, static_cast<std::size_t>(got));
    }
    if (got == 0) open = false;
    if (ended) return;
  }
}

void ServerProcess::Keep(const char* bytes, std::size_t size) {
  if (file_.is_open())
    file_.write(bytes, static_cast<std::streamsize>(size)).flush();
  MutexLock lock(mutex_);
  output_.append(bytes, size);
  if (output_.size() > 2 * kOutputBytesMax) {
    output_.erase(0, output_.size() - kOutputBytesMax);
  }
  changed_.notify_all();
}

std::string ServerProcess::Output() const {
  MutexLock lock(mutex_);
  return output_;
}

std::optional<std::string> ServerProcess::FindLine(
    const std::string& text) const {
  const std::size_t at = output_.find(text);
  if (at == std::string::npos) return std::nullopt;
  const std::size_t end = output_.find('\n', at + text.size());
  if (end == std::string::npos) return std::nullopt;
  const std::size_t before =
      at == 0 ? std::string::npos : output_.rfind('\n', at - 1);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  return output_.substr(begin, end - begin);
}

std::string ServerProcess::OutputEnd() const {
  if (output_.size() <= kOutputEndBytes) return output_;
  return output_.substr(output_.size() - kOutputEndBytes);
}

absl::StatusOr<std::string> ServerProcess::WaitForLine(
    const std::string& text, std::chrono::milliseconds timeout) const {
  const Clock::time_point deadline = Clock::now() + timeout;
  MutexLock lock(mutex_);
  while (true) {
    std::optional<std::string> line = FindLine(text);
    if (line) return *std::move(line);
    if (exit_) {
      return absl::FailedPreconditionError(
          absl::StrCat(options_.program, " ended (status ", exit_->code,
                       ", signal ", exit_->signal, ") without a line with \"",
                       text, "\":\n", OutputEnd()));
    }
    if (changed_.wait_until(mutex_, deadline) == std::cv_status::timeout) {
      return absl::DeadlineExceededError(
          absl::StrCat("no line with \"", text, "\" within ", timeout.count(),
                       " ms:\n", OutputEnd()));
    }
  }
}

absl::Status ServerProcess::WaitForPort(
    int port, std::chrono::milliseconds timeout) const {
  const Clock::time_point deadline = Clock::now() + timeout;
  while (!Accepts(port)) {
    MutexLock lock(mutex_);
    if (exit_) {
      return absl::FailedPreconditionError(absl::StrCat(
          options_.program, " ended (status ", exit_->code, ", signal ",
          exit_->signal, ") before it listened:\n", OutputEnd()));
    }
    if (Clock::now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("nobody listens at port ", port, " after ",
                       timeout.count(), " ms:\n", OutputEnd()));
    }
    changed_.wait_for(mutex_, kPortInterval);
  }
  return absl::OkStatus();
}

void ServerProcess::Signal(int signal) {
  MutexLock lock(mutex_);
  if (!exit_) kill(pid_, signal);
}

void ServerProcess::Terminate() { Signal(SIGTERM); }
void ServerProcess::Kill() { Signal(SIGKILL); }
void ServerProcess::Pause() { Signal(SIGSTOP); }
void ServerProcess::Resume() { Signal(SIGCONT); }

absl::StatusOr<ServerProcess::Exit> ServerProcess::WaitForExit(
    std::chrono::milliseconds timeout) const {
  const Clock::time_point deadline = Clock::now() + timeout;
  MutexLock lock(mutex_);
  while (!exit_) {
    if (changed_.wait_until(mutex_, deadline) == std::cv_status::timeout &&
        !exit_) {
      return absl::DeadlineExceededError(
          absl::StrCat(options_.program, " still runs after ", timeout.count(),
                       " ms:\n", OutputEnd()));
    }
  }
  return *exit_;
}

bool ServerProcess::running() const {
  MutexLock lock(mutex_);
  return !exit_;
}

}  // namespace idempotency
