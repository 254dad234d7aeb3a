// The calls that wait for a lane, in one chain a key.
#ifndef IDEMPOTENCY_SERVER_CORE_CALL_QUEUE_H_
#define IDEMPOTENCY_SERVER_CORE_CALL_QUEUE_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "server/core/call.h"
#include "server/core/clock.h"
#include "server/core/recent_rounds.h"

namespace idempotency {

// A claim or lookup and those that asked the same of its key before it went to
// the store: they may be answered from its outcome. Other calls lead nobody.
struct Led {
  std::list<Call> leader;  // one call
  std::list<Call> followers;
  // The key had a crowd in its round before, a moment ago.
  bool after_crowd = false;
};

// A key with a crowd, of followers in a round, of waiters, or of claims in
// several rounds soon after each other, goes into the next round only after
// kCrowdPause, unless something else than another owner's claim is asked of it
// or its waiters are woken.
//
// Not thread-safe; reads no clock. Calls move between lists by splicing, so
// that pointers into a call stay valid from Add() to its end.
class CallQueue {
 public:
  // Appends the one call in `call` to its key's chain.
  void Add(std::list<Call> call);
  // Puts calls of one key back before those that came later.
  void PutBack(std::list<Call> calls);

  // A crowd waits for the key's owner: what is asked of it next may pause.
  void PauseForCrowd(const RecordId& id, SteadyTime now);

  // Takes the next round: at most one leader a key, in the order in which
  // their keys came, up to `items_max` calls and about `bytes_max` bytes (but
  // at least one call). Followers ride along and count for nothing: they go
  // into no statement.
  std::vector<Led> TakeRound(SteadyTime now, std::size_t items_max,
                             std::size_t bytes_max);
  // When TakeRound() is next worth a call: SteadyTime::min() at once,
  // SteadyTime::max() when nothing is queued.
  SteadyTime next_round() const;

  // Takes out every call for which `dead` holds.
  std::list<Call> TakeIf(const std::function<bool(const Call&)>& dead);

  struct Total {
    std::size_t items = 0;
    std::size_t bytes = 0;

    void Add(const Call& call) {
      items += 1;
      bytes += call.bytes;
    }
    void Remove(const Call& call) {
      items -= 1;
      bytes -= call.bytes;
    }
  };

  bool empty() const { return all_.items == 0; }
  std::size_t items() const { return all_.items; }
  // How many of them the next rounds can take, one a key; those whose calls
  // were taken out count until the next round.
  std::size_t keys() const { return ready_.size(); }
  std::size_t bytes() const { return all_.bytes; }
  // Those that have waited for another owner's end: they were taken in before.
  const Total& woken() const { return woken_; }

 private:
  enum class Place { kNone, kReady, kPaused };
  struct Chain {
    std::list<Call> calls;
    Place place = Place::kNone;
    bool after_crowd = false;
  };
  struct Pause {
    SteadyTime end;
    RecordId id;
  };
  using Chains = absl::node_hash_map<RecordId, Chain>;

  // The chain that `call` is to join, made ready unless it pauses.
  Chain& ChainFor(const Call& call);
  void MakeReady(const RecordId& id, Chain& chain);
  void LetPause(const RecordId& id, Chain& chain, SteadyTime now);
  // Is a crowd behind what a round took of the key?
  bool IsCrowd(const Led& led, SteadyTime now);
  void EndPauses(SteadyTime now);
  void CountIn(const Call& call);
  void CountOut(const Call& call);

  Chains chains_;
  std::deque<RecordId> ready_;
  // By their ends. Chains that have been made ready meanwhile stay in it.
  std::deque<Pause> pauses_;
  RecentRounds recent_;
  Total all_;
  Total woken_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_CALL_QUEUE_H_
