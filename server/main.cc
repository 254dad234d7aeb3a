#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
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

// Ends the server from within. Always blocked, so that it ends nothing if it
// comes while the server ends already.
int ListenerLostSignal() { return SIGRTMIN; }

// Blocks the signals that end the server in all threads, so that main() can
// wait for them.
sigset_t BlockEndSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, ListenerLostSignal());
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // A peer that is gone is an error of its connection, not of the process.
  signal(SIGPIPE, SIG_IGN);
  return signals;
}

// Every connection takes a file descriptor; the usual limit of 1,024 is meant
// for programs that use select().
void RaiseFileLimit() {
  constexpr rlim_t kFilesMax = 1'048'576;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur =
      std::max(limit.rlim_cur, std::min(limit.rlim_max, kFilesMax));
  setrlimit(RLIMIT_NOFILE, &limit);
}

// A second signal ends the process at once.
void UnblockEndSignals(sigset_t signals) {
  sigdelset(&signals, ListenerLostSignal());
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  // The distribution's Abseil checks every lock of gRPC for deadlocks, at a
  // fifth of the server's time.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const sigset_t signals = BlockEndSignals();
  RaiseFileLimit();

  absl::StatusOr<idempotency::Config> config =
      idempotency::ReadConfig(argc, argv);
  if (!config.ok()) {
    std::cerr << "idempotency-server: " << config.status().message() << "\n";
    return kBadSetting;
  }
  idempotency::JsonLog log;
  // Whoever starts servers can do what this one cannot: listen anew.
  std::atomic<bool> listener_lost = false;
  idempotency::SendLibraryLogsTo(&log, [&log, &listener_lost] {
    if (listener_lost.exchange(true)) return;
    log.Write(idempotency::Severity::kError,
              "no connection is accepted any more: ending, to be started "
              "again; if it was for want of file descriptors, raise the limit "
              "(ulimit -n)",
              {});
    kill(getpid(), ListenerLostSignal());
  });
  absl::StatusOr<std::unique_ptr<idempotency::App>> app =
      idempotency::App::Start(*std::move(config), log);
  if (!app.ok()) {
    log.Write(idempotency::Severity::kError, "the server could not start",
              idempotency::ErrorField(app.status()));
    return absl::IsInvalidArgument(app.status()) ? kBadSetting : EXIT_FAILURE;
  }
  int signal_number = 0;
  sigwait(&signals, &signal_number);
  UnblockEndSignals(signals);
  (*app)->Drain();
  app->reset();
  idempotency::SendLibraryLogsTo(nullptr);
  return listener_lost ? EXIT_FAILURE : EXIT_SUCCESS;
}
