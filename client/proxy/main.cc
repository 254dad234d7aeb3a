#include <signal.h>
#include <time.h>

#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "client/proxy/log.h"
#include "client/proxy/settings.h"
#include "client/proxy/sidecar.h"

namespace {

constexpr int kBadSetting = 2;
// How often the file of rules is looked at.
constexpr timespec kRereadInterval{.tv_sec = 1, .tv_nsec = 0};

// Blocks the signals that main() waits for in all threads.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signals;
}

// Until one comes that ends the process.
void ServeUntilSignal(const sigset_t& signals, idempotency::Sidecar& sidecar) {
  for (;;) {
    const int number = sigtimedwait(&signals, nullptr, &kRereadInterval);
    if (number == SIGTERM || number == SIGINT) return;
    if (number == SIGHUP || errno == EAGAIN) sidecar.Reread();
  }
}

}  // namespace

int main(int argc, char** argv) {
  // As in the server: the distribution's Abseil checks every lock of gRPC.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  for (const std::string& argument : arguments) {
    if (argument == "--help") {
      std::cout << idempotency::ProxyManual();
      return EXIT_SUCCESS;
    }
  }
  const sigset_t signals = BlockSignals();
  const auto settings = idempotency::ReadSettings(
      arguments, [](const std::string& variable) -> std::optional<std::string> {
        const char* const value = std::getenv(variable.c_str());
        if (value == nullptr) return std::nullopt;
        return value;
      });
  if (!settings.ok()) {
    std::cerr << "idempotency-proxy: " << settings.status().message() << "\n";
    return kBadSetting;
  }
  const auto sidecar = idempotency::Sidecar::Start(*settings);
  if (!sidecar.ok()) {
    std::cerr << "idempotency-proxy: " << sidecar.status().message() << "\n";
    return absl::IsInvalidArgument(sidecar.status()) ? kBadSetting
                                                     : EXIT_FAILURE;
  }
  ServeUntilSignal(signals, **sidecar);
  // A second signal ends the process at once.
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  (*sidecar)->Drain();
  return EXIT_SUCCESS;
}
