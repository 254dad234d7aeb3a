#include "server/core/call_queue.h"

#include <iterator>
#include <utility>

#include "server/core/limits.h"

namespace idempotency {
namespace {

bool IsClaim(const Call& call) {
  return std::holds_alternative<ClaimCall>(call.request);
}

// The owner's renewal is nobody's rival: neither counted as one nor held up.
bool MayPause(const Call& call) {
  return IsClaim(call) && !call.renews() && call.seen == nullptr;
}

// May the second call be answered from what the first one finds?
bool MayFollow(const Call& leader, const Call& call) {
  return leader.request.index() == call.request.index() &&
         (IsClaim(call) || std::holds_alternative<LookupCall>(call.request));
}

}  // namespace

void CallQueue::MakeReady(const RecordId& id, Chain& chain) {
  chain.place = Place::kReady;
  ready_.push_back(id);
}

void CallQueue::LetPause(const RecordId& id, Chain& chain, SteadyTime now) {
  chain.after_crowd = true;
  chain.place = Place::kPaused;
  pauses_.push_back({now + limits::kCrowdPause, id});
}

CallQueue::Chain& CallQueue::ChainFor(const Call& call) {
  Chain& chain = chains_[call.id()];
  if (chain.place == Place::kNone ||
      (chain.place == Place::kPaused && !MayPause(call))) {
    MakeReady(call.id(), chain);
  }
  return chain;
}

void CallQueue::EndPauses(SteadyTime now) {
  for (; !pauses_.empty() && pauses_.front().end <= now; pauses_.pop_front()) {
    const auto chain = chains_.find(pauses_.front().id);
    if (chain == chains_.end() || chain->second.place != Place::kPaused) {
      continue;
    }
    if (chain->second.calls.empty()) {
      chains_.erase(chain);
    } else {
      MakeReady(pauses_.front().id, chain->second);
    }
  }
}

void CallQueue::CountIn(const Call& call) {
  all_.Add(call);
  if (call.seen != nullptr) woken_.Add(call);
}

void CallQueue::CountOut(const Call& call) {
  all_.Remove(call);
  if (call.seen != nullptr) woken_.Remove(call);
}

void CallQueue::Add(std::list<Call> call) {
  CountIn(call.front());
  std::list<Call>& calls = ChainFor(call.front()).calls;
  calls.splice(calls.end(), call);
}

void CallQueue::PutBack(std::list<Call> calls) {
  if (calls.empty()) return;
  for (const Call& call : calls) CountIn(call);
  std::list<Call>& chain = ChainFor(calls.front()).calls;
  chain.splice(chain.begin(), calls);
}

void CallQueue::PauseForCrowd(const RecordId& id, SteadyTime now) {
  Chain& chain = chains_[id];
  if (chain.place == Place::kNone) LetPause(id, chain, now);
}

bool CallQueue::IsCrowd(const Led& led, SteadyTime now) {
  const Call& leader = led.leader.front();
  if (!IsClaim(leader)) return false;
  const std::size_t claims = led.followers.size() + 1;
  return claims > limits::kCrowd ||
         (led.after_crowd && claims >= limits::kCrowdRounds) ||
         (!leader.renews() &&
          recent_.Count(leader.id(), now) >= limits::kCrowdRounds);
}

SteadyTime CallQueue::next_round() const {
  if (empty()) return SteadyTime::max();
  return ready_.empty() ? pauses_.front().end : SteadyTime::min();
}

std::vector<Led> CallQueue::TakeRound(SteadyTime now, std::size_t items_max,
                                      std::size_t bytes_max) {
  EndPauses(now);
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
    chain->second.place = Place::kNone;
    const bool after_crowd = std::exchange(chain->second.after_crowd, false);
    bool crowd = false;
    if (!calls.empty()) {
      Led& led = round.emplace_back();
      led.leader.splice(led.leader.end(), calls, calls.begin());
      bytes += led.leader.front().bytes;
      while (!calls.empty() && MayFollow(led.leader.front(), calls.front())) {
        led.followers.splice(led.followers.end(), calls, calls.begin());
      }
      CountOut(led.leader.front());
      for (const Call& call : led.followers) CountOut(call);
      led.after_crowd = after_crowd;
      crowd = IsCrowd(led, now);
    }
    if (crowd && (calls.empty() || MayPause(calls.front()))) {
      LetPause(chain->first, chain->second, now);
    } else if (calls.empty()) {
      chains_.erase(chain);
    } else {
      MakeReady(chain->first, chain->second);
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
        CountOut(*call);
        taken.splice(taken.end(), chain.calls, call);
      }
      call = next;
    }
  }
  return taken;
}

}  // namespace idempotency
