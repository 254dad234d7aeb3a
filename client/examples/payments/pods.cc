#include "client/examples/payments/pods.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <utility>

namespace idempotency::payments {
namespace {

// Long enough for somebody who watches to see that it is gone.
constexpr std::chrono::seconds kRestartPause{5};
// How often it is looked whether one is to be started.
constexpr timespec kRound{.tv_sec = 0, .tv_nsec = 100'000'000};

// 0 if it cannot be started.
pid_t Start(const Pod& pod) {
  // Ends when this process does.
  std::vector<std::string> words = {"setpriv", "--pdeathsig", "TERM"};
  words.insert(words.end(), pod.command.begin(), pod.command.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  // A group of its own: Ctrl-C reaches the supervisor only.
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, arguments[0], nullptr, &attributes,
                                 arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    std::fprintf(stderr, "cannot start %s: %s\n", pod.name.c_str(),
                 std::strerror(error));
    return 0;
  }
  std::fprintf(stderr, "%s is started, process %d\n", pod.name.c_str(), pid);
  return pid;
}

}  // namespace

Pods::Pods(std::vector<Pod> pods)
    : pods_(std::move(pods)), processes_(pods_.size()) {}

std::vector<PodState> Pods::States() const {
  absl::MutexLock lock(&mutex_);
  std::vector<PodState> states;
  for (std::size_t i = 0; i < pods_.size(); ++i) {
    states.push_back({pods_[i].name, processes_[i].pid});
  }
  return states;
}

void Pods::Kill(std::size_t index) {
  absl::MutexLock lock(&mutex_);
  const pid_t pid = processes_[index].pid;
  if (pid == 0) return;
  std::fprintf(stderr, "kill -9 %d: %s dies\n", pid, pods_[index].name.c_str());
  kill(pid, SIGKILL);
}

void Pods::Supervise(const sigset_t& end_signals) {
  sigset_t signals = end_signals;
  sigaddset(&signals, SIGCHLD);
  for (;;) {
    StartDue();
    const int signal = sigtimedwait(&signals, nullptr, &kRound);
    if (signal > 0 && signal != SIGCHLD) break;
    Reap();
  }
  EndAll();
}

void Pods::StartDue() {
  absl::MutexLock lock(&mutex_);
  for (std::size_t i = 0; i < pods_.size(); ++i) {
    Process& process = processes_[i];
    if (process.pid != 0 || Clock::now() < process.start_at) continue;
    process.pid = Start(pods_[i]);
    process.start_at = Clock::now() + kRestartPause;
  }
}

void Pods::Reap() {
  absl::MutexLock lock(&mutex_);
  for (Process& process : processes_) {
    if (process.pid == 0 || waitpid(process.pid, nullptr, WNOHANG) == 0) {
      continue;
    }
    process = {.pid = 0, .start_at = Clock::now() + kRestartPause};
  }
}

void Pods::EndAll() {
  absl::MutexLock lock(&mutex_);
  for (const Process& process : processes_) {
    if (process.pid != 0) kill(process.pid, SIGTERM);
  }
  for (Process& process : processes_) {
    if (process.pid != 0) waitpid(process.pid, nullptr, 0);
    process.pid = 0;
  }
}

}  // namespace idempotency::payments
