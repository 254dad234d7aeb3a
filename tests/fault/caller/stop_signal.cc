#include "tests/fault/caller/stop_signal.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

namespace idempotency::fault {

StopSignal::StopSignal() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_ = signalfd(-1, &set, SFD_CLOEXEC);
  struct stat status {};
  const bool has_harness =
      fstat(STDIN_FILENO, &status) == 0 &&
      (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode));
  // poll() passes over descriptors below zero.
  input_fd_ = has_harness ? STDIN_FILENO : -1;
}

StopSignal::~StopSignal() { close(signals_); }

bool StopSignal::WaitFor(std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + timeout;
  while (!stopped_) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0) return false;
    pollfd fds[] = {{signals_, POLLIN, 0}, {input_fd_, POLLIN, 0}};
    if (poll(fds, 2, static_cast<int>(left.count())) <= 0) continue;
    stopped_ = fds[0].revents != 0 || (fds[1].revents != 0 && ReadInput());
  }
  return true;
}

void StopSignal::Wait() {
  while (!WaitFor(std::chrono::hours(1))) {
  }
}

bool StopSignal::ReadInput() {
  char bytes[256];
  const ssize_t got = read(input_fd_, bytes, sizeof(bytes));
  if (got <= 0) return true;
  input_.append(bytes, static_cast<std::size_t>(got));
  for (std::size_t end; (end = input_.find('\n')) != std::string::npos;) {
    if (input_.substr(0, end) == "stop") return true;
    input_.erase(0, end + 1);
  }
  return false;
}

}  // namespace idempotency::fault
