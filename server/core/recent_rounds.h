// In how many rounds a key was claimed lately.
#ifndef IDEMPOTENCY_SERVER_CORE_RECENT_ROUNDS_H_
#define IDEMPOTENCY_SERVER_CORE_RECENT_ROUNDS_H_

#include <array>
#include <cstddef>

#include "server/core/clock.h"
#include "server/core/types.h"

namespace idempotency {

// Remembers a fixed number of keys: one that shares another's place makes it
// forgotten, which costs the other's crowd a few statements. Not thread-safe.
class RecentRounds {
 public:
  // Counts a round of the key, and returns how many there were within the last
  // kCrowdPause; after a longer time they are counted from one.
  int Count(const RecordId& id, SteadyTime now);

 private:
  struct Key {
    std::size_t hash = 0;
    int rounds = 0;
    SteadyTime since{};
  };
  std::array<Key, 512> keys_{};
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_RECENT_ROUNDS_H_
