// What the client takes from the machine besides the network: time, timers and
// randomness. A test or a simulation puts its own in their place.
#ifndef IDEMPOTENCY_CLIENT_ENVIRONMENT_H_
#define IDEMPOTENCY_CLIENT_ENVIRONMENT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace idempotency {

// A callback that is to come. Destroying it calls the callback off, unless that
// has begun: it may run a little longer, and is not waited for. It may be
// destroyed from within the callback.
class Timer {
 public:
  virtual ~Timer() = default;
};

// Thread-safe, and so must every implementation be.
class ClientEnvironment {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  virtual ~ClientEnvironment() = default;

  virtual TimePoint Now() = 0;
  // Calls `callback` once after `duration` by the clock of Now(), never earlier
  // and not within this call, in a thread that it must not block.
  virtual std::unique_ptr<Timer> RunAfter(std::chrono::nanoseconds duration,
                                          std::function<void()> callback) = 0;
  // 64 bits nobody can guess: claim tokens are made of them.
  virtual std::uint64_t Random() = 0;
};

// A steady clock that goes on while the machine is suspended, as leases do; the
// timers of gRPC; the kernel's random source. It ends
// the process where the kernel gives no randomness: a claim token that can be
// guessed, or drawn twice, would let two callers execute.
std::shared_ptr<ClientEnvironment> SystemEnvironment();

// Even over [0, 1).
double RandomFraction(ClientEnvironment& environment);

// A new claim token: a random UUID (version 4) in lower-case hexadecimal
// digits. One execution attempt has one token, and repeats it in every call it
// makes for that attempt; the next attempt draws a new one.
std::string NewClaimToken();
std::string NewClaimToken(ClientEnvironment& environment);

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_ENVIRONMENT_H_
