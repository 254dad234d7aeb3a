#include "server/core/call_queue.h"

#include <iterator>
#include <utility>

namespace idempotency {
namespace {

bool IsClaim(const Call& call) {
  return std::holds_alternative<ClaimCall>(call.request);
}

}  // namespace

CallQueue::Chain& CallQueue::ChainOf(const RecordId& id) {
  Chain& chain = chains_[id];
  if (!chain.ready) {
    chain.ready = true;
    ready_.push_back(id);
  }
  return chain;
}

void CallQueue::Add(std::list<Call> call) {
  items_ += 1;
  bytes_ += call.front().bytes;
  std::list<Call>& calls = ChainOf(call.front().id()).calls;
  calls.splice(calls.end(), call);
}

void CallQueue::PutBack(std::list<Call> calls) {
  if (calls.empty()) return;
  items_ += calls.size();
  for (const Call& call : calls) bytes_ += call.bytes;
  std::list<Call>& chain = ChainOf(calls.front().id()).calls;
  chain.splice(chain.begin(), calls);
}

std::vector<Led> CallQueue::TakeRound(std::size_t items_max,
                                      std::size_t bytes_max) {
  std::vector<Led> round;
  std::size_t bytes = 0;
  // A key that has more calls goes to the end of ready_, past `keys`.
  for (std::size_t keys = ready_.size(); keys > 0 && round.size() < items_max;
       --keys) {
    const auto chain = chains_.find(ready_.front());
    std::list<Call>& calls = chain->second.calls;
    if (!calls.empty() && !round.empty() &&
        bytes + calls.front().bytes > bytes_max) {
      break;
    }
    ready_.pop_front();
    chain->second.ready = false;
    if (!calls.empty()) {
      Led& led = round.emplace_back();
      led.leader.splice(led.leader.end(), calls, calls.begin());
      bytes += led.leader.front().bytes;
      while (IsClaim(led.leader.front()) && !calls.empty() &&
             IsClaim(calls.front())) {
        led.followers.splice(led.followers.end(), calls, calls.begin());
      }
      for (const Call& call : led.followers) bytes_ -= call.bytes;
      bytes_ -= led.leader.front().bytes;
      items_ -= 1 + led.followers.size();
    }
    if (calls.empty()) {
      chains_.erase(chain);
    } else {
      ChainOf(RecordId(chain->first));
    }
  }
  return round;
}

std::list<Call> CallQueue::TakeIf(
    const std::function<bool(const Call&)>& dead) {
  std::list<Call> taken;
  // Chains left empty stay in ready_ and go with the next round.
  for (auto& [id, chain] : chains_) {
    for (auto call = chain.calls.begin(); call != chain.calls.end();) {
      const auto next = std::next(call);
      if (dead(*call)) {
        items_ -= 1;
        bytes_ -= call->bytes;
        taken.splice(taken.end(), chain.calls, call);
      }
      call = next;
    }
  }
  return taken;
}

}  // namespace idempotency
