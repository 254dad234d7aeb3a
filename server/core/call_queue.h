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

namespace idempotency {

// A call and those that asked for a claim of the same key before the call went
// to the store: they may be answered from its outcome.
struct Led {
  std::list<Call> leader;  // one call
  std::list<Call> followers;
};

// Not thread-safe. Calls move between lists by splicing, so that pointers into
// a call stay valid from Add() to its end.
class CallQueue {
 public:
  // Appends the one call in `call` to its key's chain.
  void Add(std::list<Call> call);
  // Puts calls of one key back before those that came later.
  void PutBack(std::list<Call> calls);

  // Takes the next round: at most one leader a key, in the order in which
  // their keys came, up to `items_max` calls and about `bytes_max` bytes (but
  // at least one call). Followers ride along and count for nothing: they go
  // into no statement.
  std::vector<Led> TakeRound(std::size_t items_max, std::size_t bytes_max);

  // Takes out every call for which `dead` holds.
  std::list<Call> TakeIf(const std::function<bool(const Call&)>& dead);

  bool empty() const { return items_ == 0; }
  std::size_t items() const { return items_; }
  // How many of them the next rounds can take, one a key; those whose calls
  // were taken out count until the next round.
  std::size_t keys() const { return ready_.size(); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Chain {
    std::list<Call> calls;
    bool ready = false;  // in ready_
  };
  using Chains = absl::node_hash_map<RecordId, Chain>;

  Chain& ChainOf(const RecordId& id);

  Chains chains_;
  std::deque<RecordId> ready_;
  std::size_t items_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_CALL_QUEUE_H_
