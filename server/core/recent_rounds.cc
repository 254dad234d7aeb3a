#include "server/core/recent_rounds.h"

#include "server/core/limits.h"
#include "server/core/stable_hash.h"

namespace idempotency {

int RecentRounds::Count(const RecordId& id, SteadyTime now) {
  const std::size_t hash = StableHashOf(id);
  Key& key = keys_[hash % keys_.size()];
  if (key.hash != hash || now - key.since >= limits::kCrowdPause) {
    key = {.hash = hash, .rounds = 0, .since = now};
  }
  return ++key.rounds;
}

}  // namespace idempotency
