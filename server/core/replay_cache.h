// Answers repeated Claims of final records from memory, without the database.
//
// This is right beside any number of other replicas because a final record
// stays as it is until it expires: no call undoes or replaces it, a changed
// policy touches later grants only, and no reaper takes what has not expired.
// So what the database said of it once holds for the rest of its life. How long
// that is, the database's clock said when the record was read; from then on a
// steady clock counts, from before the question was sent, so that an entry ends
// before its record does. Nothing unfinished or released is ever kept, and
// nobody is granted anything from here.
//
// What the cache can't see is a database that forgets. A failover may do so
// without breaking any promise: a record that no standby ever had is shown
// while the wait for it is cut short, and is gone with its primary. So whatever
// was kept is dropped when the database answers again after it had not, since
// it may be another one. Until then, and with rows that are deleted by hand or
// a clock of the database's that is stepped forward, by which a record is over
// sooner, replays go on for at most limits::kReplayCacheLifeMax, as they would
// have been given just before. The steady clock stands still while the host is
// suspended: so much longer may they go on after that.
#ifndef IDEMPOTENCY_SERVER_CORE_REPLAY_CACHE_H_
#define IDEMPOTENCY_SERVER_CORE_REPLAY_CACHE_H_

#include <array>
#include <cstddef>
#include <list>
#include <memory>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "server/core/clock.h"
#include "server/core/metrics.h"
#include "server/core/mutex.h"
#include "server/core/store.h"
#include "server/core/types.h"

namespace idempotency {

// Thread-safe.
class ReplayCache {
 public:
  // Holds at most `bytes_max` bytes, what it needs for itself included; 0: it
  // is off. Entries lie in sixteen equal parts, each of which drops what was
  // not asked for the longest; one that would fill a sixteenth of its part is
  // not kept. `clock` and `metrics` must outlive the cache.
  ReplayCache(std::size_t bytes_max, const Clock& clock, Metrics& metrics);

  // What DecideClaim() says of the record that is kept under the claim's id,
  // counted as the store counts it; nullopt: ask the database.
  std::optional<ClaimOutcome> Answer(const ClaimCommand& command);

  // Keeps what was read of `id` if the record is final. `asked_at` is from
  // before the database was asked.
  void Keep(const RecordId& id, const Observed& observed, SteadyTime asked_at);

  // Drops everything, and does not keep what was asked for before `since`.
  void Forget(SteadyTime since);

 private:
  struct Entry {
    RecordId id;
    Record record;   // what DecideClaim() looks at, and the policy's name
    absl::Time now;  // when the record was read
    SteadyTime good_until;
    std::size_t bytes = 0;
  };
  // Latest used first. Entries are shared with the calls that are answered
  // from them.
  using Entries = std::list<std::shared_ptr<const Entry>>;

  struct HashOfId {
    std::size_t operator()(const RecordId* id) const;
  };
  struct SameId {
    bool operator()(const RecordId* a, const RecordId* b) const {
      return *a == *b;
    }
  };

  struct Shard {
    Mutex mutex;
    Entries entries ABSL_GUARDED_BY(mutex);
    // The ids are those of the entries.
    absl::flat_hash_map<const RecordId*, Entries::iterator, HashOfId, SameId>
        by_id ABSL_GUARDED_BY(mutex);
    std::size_t bytes ABSL_GUARDED_BY(mutex) = 0;
    SteadyTime keeps_since ABSL_GUARDED_BY(mutex) = SteadyTime::min();
  };

  Shard& ShardOf(const RecordId& id);
  std::shared_ptr<const Entry> Find(const RecordId& id);
  // Moves the entry to `dropped`, to be freed without the lock.
  void Drop(Shard& shard, Entries::iterator entry, Entries& dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mutex);

  const std::size_t shard_bytes_max_;
  const Clock& clock_;
  Metrics& metrics_;
  std::array<Shard, 16> shards_;
};

// `store`, whose replays are kept in `cache` from then on, and which lets it
// forget them when it can be used again after it could not. `cache` and
// `clock` must outlive it.
std::unique_ptr<Store> KeepingReplays(std::unique_ptr<Store> store,
                                      ReplayCache& cache, const Clock& clock);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_REPLAY_CACHE_H_
