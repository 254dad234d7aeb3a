#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <memory>

#include "absl/synchronization/mutex.h"
#include "server/app.h"
#include "server/config.h"
#include "server/json_log.h"
#include "server/rpc/library_log.h"

// Read by jemalloc, when it is linked. Few arenas: the lanes free what gRPC's
// threads allocated, and more arenas only hold more memory for it.
extern "C" {
extern const char* malloc_conf;
const char* malloc_conf = "narenas:2,dirty_decay_ms:1000";
}

namespace {

constexpr int kBadSetting = 2;

// Blocks the signals that end the server in all threads, so that main() can
// wait for them.
sigset_t BlockEndSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // A peer that is gone is an error of its connection, not of the process.
  signal(SIGPIPE, SIG_IGN);
  return signals;
}

// Every connection is a file, and what runs out of them is not the server but
// the default of a shell: services are given the rest for the asking.
void AllowAsManyFilesAsMayBe() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

std::atomic<bool> is_ending{false};
std::atomic<bool> port_is_lost{false};

// A server that can't be reached is of no use, and looks well to those that are
// connected: it ends, so that whoever looks after it starts it again.
void EndWithoutPort() {
  // While it drains, a second signal would be one too many.
  if (is_ending.exchange(true)) return;
  port_is_lost = true;
  kill(getpid(), SIGTERM);
}

// A second signal ends the process at once.
void UnblockEndSignals(const sigset_t& signals) {
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  // The distribution's Abseil checks every lock of gRPC for deadlocks, at a
  // fifth of the server's time.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const sigset_t signals = BlockEndSignals();

  absl::StatusOr<idempotency::Config> config =
      idempotency::ReadConfig(argc, argv);
  if (!config.ok()) {
    std::cerr << "idempotency-server: " << config.status().message() << "\n";
    return kBadSetting;
  }
  idempotency::JsonLog log;
  AllowAsManyFilesAsMayBe();
  idempotency::SendLibraryLogsTo(&log, &EndWithoutPort);
  absl::StatusOr<std::unique_ptr<idempotency::App>> app =
      idempotency::App::Start(*std::move(config), log);
  if (!app.ok()) {
    log.Write(idempotency::Severity::kError, "the server could not start",
              idempotency::ErrorField(app.status()));
    return absl::IsInvalidArgument(app.status()) ? kBadSetting : EXIT_FAILURE;
  }
  int signal_number = 0;
  sigwait(&signals, &signal_number);
  is_ending = true;
  UnblockEndSignals(signals);
  if (port_is_lost) {
    log.Write(idempotency::Severity::kError,
              "no connections are taken any more; the server ends, to be "
              "started again",
              {{"remedy", "let it open more files (ulimit -n)"}});
  }
  (*app)->Drain();
  return port_is_lost ? EXIT_FAILURE : EXIT_SUCCESS;
}
