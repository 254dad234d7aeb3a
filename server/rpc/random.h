// Randomness as the RPC layer needs it: to spread the times at which callers
// come back.
#ifndef IDEMPOTENCY_SERVER_RPC_RANDOM_H_
#define IDEMPOTENCY_SERVER_RPC_RANDOM_H_

#include <functional>

namespace idempotency {

// Draws evenly from 0 (included) to 1 (excluded). Thread-safe.
using RandomSource = std::function<double()>;

// From a generator of its own in each thread, seeded by the system.
double SystemRandom();

// `value` times a factor drawn evenly from 1 - spread to 1 + spread, where
// `random` is what a RandomSource drew.
inline double Jittered(double value, double spread, double random) {
  return value * (1 - spread + 2 * spread * random);
}

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_RANDOM_H_
