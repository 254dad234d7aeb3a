#include "server/core/waiters.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace idempotency {

std::size_t Waiters::CountOf(const RecordId& id) const {
  const auto key = keys_.find(id);
  return key == keys_.end() ? 0 : key->second.waiters.size();
}

void Waiters::Add(std::list<Call> call, SteadyTime now) {
  const Seen& seen = *call.front().seen;
  const auto [entry, added] = keys_.try_emplace(call.front().id());
  const RecordId& id = entry->first;
  Key& key = entry->second;
  if (added) {
    key.version = seen.version;
    key.lapses_at = seen.lapses_at;
    key.newest = call.front().submitted;
    key.look = looks_.end();
    ScheduleLook(id, key, now);
  } else {
    // Who saw an older version is to be told of what has changed since, even
    // if the newcomer found another owner at work.
    key.version = std::min(key.version, seen.version);
    key.lapses_at = std::min(key.lapses_at, seen.lapses_at);
    key.newest = std::max(key.newest, call.front().submitted);
    // Not later than it was to be, however many come.
    ScheduleLook(id, key, now, key.look->first);
  }
  items_ += 1;
  bytes_ += call.front().bytes;
  const SteadyTime end = call.front().context.wait_until;
  const auto waiter =
      key.waiters.insert(key.waiters.end(), Waiter{std::move(call), {}});
  waiter->end = ends_.insert({end, Place{&id, waiter}});
}

// A lease that lapses earlier is noticed then, or soon after if the database's
// clock runs slower.
void Waiters::ScheduleLook(const RecordId& id, Key& key, SteadyTime now,
                           SteadyTime at_latest) {
  const SteadyTime::duration interval = std::clamp<SteadyTime::duration>(
      (now - key.newest) / kLookShare, kLookIntervalMin, kLookIntervalMax);
  const SteadyTime lapse =
      key.lapses_at > now ? key.lapses_at : now + kLookIntervalMin;
  const SteadyTime at = std::min({now + interval, lapse, at_latest});
  if (key.look != looks_.end()) looks_.erase(key.look);
  key.look = looks_.insert({at, &id});
}

void Waiters::Move(const Place& place, std::list<Call>& taken) {
  const auto entry = keys_.find(*place.id);
  Key& key = entry->second;
  items_ -= 1;
  bytes_ -= place.waiter->call.front().bytes;
  taken.splice(taken.end(), place.waiter->call);
  ends_.erase(place.waiter->end);
  key.waiters.erase(place.waiter);
  if (!key.waiters.empty()) return;
  looks_.erase(key.look);
  keys_.erase(entry);
}

std::list<Call> Waiters::Take(const RecordId& id) {
  std::list<Call> taken;
  const auto entry = keys_.find(id);
  if (entry == keys_.end()) return taken;
  for (Waiter& waiter : entry->second.waiters) {
    items_ -= 1;
    bytes_ -= waiter.call.front().bytes;
    ends_.erase(waiter.end);
    taken.splice(taken.end(), waiter.call);
  }
  looks_.erase(entry->second.look);
  keys_.erase(entry);
  return taken;
}

std::list<Call> Waiters::TakeEnded(SteadyTime now) {
  std::list<Call> taken;
  while (!ends_.empty() && ends_.begin()->first <= now) {
    Move(Place(ends_.begin()->second), taken);
  }
  return taken;
}

std::list<Call> Waiters::TakeIf(
    const std::function<bool(const Call&)>& wanted) {
  std::list<Call> taken;
  for (auto end = ends_.begin(); end != ends_.end();) {
    const Place place = end->second;
    ++end;
    if (wanted(place.waiter->call.front())) Move(place, taken);
  }
  return taken;
}

std::vector<Watched> Waiters::KeysToLookAt(SteadyTime now,
                                           std::size_t items_max) {
  std::vector<Watched> due;
  while (!looks_.empty() && looks_.begin()->first <= now &&
         due.size() < items_max) {
    const auto entry = keys_.find(*looks_.begin()->second);
    due.push_back({.id = entry->first, .version = entry->second.version});
    ScheduleLook(entry->first, entry->second, now);
  }
  std::sort(due.begin(), due.end(),
            [](const Watched& a, const Watched& b) { return a.id < b.id; });
  return due;
}

SteadyTime Waiters::next_end() const {
  return ends_.empty() ? SteadyTime::max() : ends_.begin()->first;
}

SteadyTime Waiters::next_look() const {
  return looks_.empty() ? SteadyTime::max() : looks_.begin()->first;
}

}  // namespace idempotency
