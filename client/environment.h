// What the client takes from the machine besides the network: time, sleep and
// randomness. A test or a simulation puts its own in their place.
#ifndef IDEMPOTENCY_CLIENT_ENVIRONMENT_H_
#define IDEMPOTENCY_CLIENT_ENVIRONMENT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace idempotency {

// Thread-safe, and so must every implementation be.
class ClientEnvironment {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  virtual ~ClientEnvironment() = default;

  virtual TimePoint Now() = 0;
  // Returns after `duration` by the clock of Now(), never earlier.
  virtual void SleepFor(std::chrono::nanoseconds duration) = 0;
  // 64 bits nobody can guess: claim tokens are made of them.
  virtual std::uint64_t Random() = 0;
};

// The steady clock and the kernel's random source. It ends the process where
// the kernel gives no randomness: a claim token that can be guessed, or drawn
// twice, would let two callers execute.
std::shared_ptr<ClientEnvironment> SystemEnvironment();

// A new claim token: a random UUID (version 4) in lower-case hexadecimal
// digits. One execution attempt has one token, and repeats it in every call it
// makes for that attempt; the next attempt draws a new one.
std::string NewClaimToken();
std::string NewClaimToken(ClientEnvironment& environment);

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_ENVIRONMENT_H_
