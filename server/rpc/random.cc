#include "server/rpc/random.h"

#include <random>

namespace idempotency {

double SystemRandom() {
  thread_local std::minstd_rand generator{std::random_device{}()};
  return std::uniform_real_distribution<double>(0, 1)(generator);
}

}  // namespace idempotency
