#include "client/environment.h"

#include <grpc/support/time.h>
#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "grpcpp/alarm.h"

namespace idempotency {
namespace {

class AlarmTimer final : public Timer {
 public:
  AlarmTimer(std::chrono::nanoseconds duration,
             std::function<void()> callback) {
    alarm_.Set(
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                     gpr_time_from_nanos(duration.count(), GPR_TIMESPAN)),
        [callback = std::move(callback)](bool due) {
          if (due) callback();
        });
  }

 private:
  grpc::Alarm alarm_;
};

class System final : public ClientEnvironment {
 public:
  TimePoint Now() override {
    std::timespec now{};
    clock_gettime(CLOCK_BOOTTIME, &now);
    return TimePoint(std::chrono::seconds(now.tv_sec) +
                     std::chrono::nanoseconds(now.tv_nsec));
  }

  std::unique_ptr<Timer> RunAfter(std::chrono::nanoseconds duration,
                                  std::function<void()> callback) override {
    return std::make_unique<AlarmTimer>(duration, std::move(callback));
  }

  // Asked anew each time: a generator kept in the process would hand the same
  // tokens to both sides of a fork.
  std::uint64_t Random() override {
    std::uint64_t value = 0;
    for (;;) {
      const ssize_t bytes = getrandom(&value, sizeof(value), 0);
      if (bytes == static_cast<ssize_t>(sizeof(value))) return value;
      if (bytes >= 0 || errno == EINTR) continue;
      std::perror("idempotency client: getrandom");
      std::abort();
    }
  }
};

}  // namespace

std::shared_ptr<ClientEnvironment> SystemEnvironment() {
  static const auto* const instance =
      new std::shared_ptr<ClientEnvironment>(std::make_shared<System>());
  return *instance;
}

// A double holds 53 bits.
double RandomFraction(ClientEnvironment& environment) {
  return static_cast<double>(environment.Random() >> 11) * 0x1.0p-53;
}

std::string NewClaimToken() { return NewClaimToken(*SystemEnvironment()); }

std::string NewClaimToken(ClientEnvironment& environment) {
  constexpr std::uint64_t kVersionMask = 0xf000;
  constexpr std::uint64_t kVersion4 = 0x4000;
  constexpr std::uint64_t kVariantMask = std::uint64_t{0xc000} << 48;
  constexpr std::uint64_t kVariantRfc = std::uint64_t{0x8000} << 48;
  const std::uint64_t high = (environment.Random() & ~kVersionMask) | kVersion4;
  const std::uint64_t low =
      (environment.Random() & ~kVariantMask) | kVariantRfc;
  std::array<char, 37> text{};
  std::snprintf(text.data(), text.size(), "%08x-%04x-%04x-%04x-%012llx",
                static_cast<unsigned>(high >> 32),
                static_cast<unsigned>(high >> 16 & 0xffff),
                static_cast<unsigned>(high & 0xffff),
                static_cast<unsigned>(low >> 48),
                static_cast<unsigned long long>(low & 0xffff'ffff'ffff));
  return std::string(text.data(), text.size() - 1);
}

}  // namespace idempotency
