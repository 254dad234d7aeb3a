// The claims of a lane that wait for another owner's end.
#ifndef IDEMPOTENCY_SERVER_CORE_WAITERS_H_
#define IDEMPOTENCY_SERVER_CORE_WAITERS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "server/core/call.h"
#include "server/core/clock.h"
#include "server/core/store.h"

namespace idempotency {

// A key is looked at soon after its newest waiter came, then ever more rarely:
// after an eighth of the time that this one has waited. Ten thousand keys that
// are waited for cost ten thousand looks a second in the long run.
inline constexpr std::chrono::milliseconds kLookIntervalMin{50};
inline constexpr std::chrono::milliseconds kLookIntervalMax{1000};
inline constexpr int kLookShare = 8;

// Knows until when each call waits and when each key is to be looked at next.
// Not thread-safe; reads no clock. Calls move by splicing.
class Waiters {
 public:
  // Takes in the one call in `call`, which has `seen` and a `wait_until`.
  void Add(std::list<Call> call, SteadyTime now);

  // Takes out the waiters of a key, in the order in which they came.
  std::list<Call> Take(const RecordId& id);
  // Those whose wait is over.
  std::list<Call> TakeEnded(SteadyTime now);
  std::list<Call> TakeIf(const std::function<bool(const Call&)>& wanted);

  // The keys that are due to be looked at, at most `items_max`, sorted by id.
  // They stay, and are due again later.
  std::vector<Watched> KeysToLookAt(SteadyTime now, std::size_t items_max);

  // When TakeEnded() and KeysToLookAt() next have something; SteadyTime::max()
  // when there is nobody.
  SteadyTime next_end() const;
  SteadyTime next_look() const;

  // How many wait for the key's owner.
  std::size_t CountOf(const RecordId& id) const;
  bool empty() const { return items_ == 0; }
  std::size_t items() const { return items_; }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Waiter;
  struct Place {
    const RecordId* id = nullptr;  // in keys_
    std::list<Waiter>::iterator waiter;
  };
  using Ends = std::multimap<SteadyTime, Place>;
  using Looks = std::multimap<SteadyTime, const RecordId*>;
  struct Waiter {
    std::list<Call> call;  // one
    Ends::iterator end;
  };
  struct Key {
    std::list<Waiter> waiters;
    std::int64_t version = 0;  // as it was last seen
    SteadyTime lapses_at;
    SteadyTime newest;  // when the newest of the waiters was submitted
    Looks::iterator look;
  };

  void ScheduleLook(const RecordId& id, Key& key, SteadyTime now,
                    SteadyTime at_latest = SteadyTime::max());
  // Moves the call at `place` into `taken`.
  void Move(const Place& place, std::list<Call>& taken);

  absl::node_hash_map<RecordId, Key> keys_;
  Ends ends_;
  Looks looks_;
  std::size_t items_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_WAITERS_H_
