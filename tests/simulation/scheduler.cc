#include "tests/simulation/scheduler.h"

#include <algorithm>
#include <utility>

namespace idempotency {

void Scheduler::Push(Due due) {
  due_.push_back(std::move(due));
  std::push_heap(due_.begin(), due_.end(), Later());
}

void Scheduler::After(Microseconds delay, Task task) {
  Push({.at = now_ + std::max(delay, Microseconds(0)),
        .order = random_.Next(),
        .task = std::move(task)});
}

void Scheduler::AsDrawn(std::uint64_t order, Task task) {
  Push({.at = now_, .order = order, .task = std::move(task)});
}

void Scheduler::WakeAfter(Microseconds delay, Berth& berth) {
  Push({.at = now_ + std::max(delay, Microseconds(0)),
        .order = random_.Next(),
        .task = nullptr,
        .berth = &berth,
        .wait = berth.wait});
}

void Scheduler::Spawn(Microseconds delay, Task body) {
  if (free_.empty()) {
    free_.push_back(berths_.emplace_back(std::make_unique<Berth>()).get());
  }
  Berth& berth = *free_.back();
  free_.pop_back();
  berth.body = std::move(body);
  berth.fiber.emplace([&berth] {
    berth.body();
    berth.body = nullptr;
  });
  ++fibers_;
  WakeAfter(delay, berth);
}

void Scheduler::Suspend() { running_->fiber->Suspend(); }

void Scheduler::Sleep(Microseconds duration) {
  WakeAfter(duration, *running_);
  Suspend();
}

void Scheduler::GoOn(Berth& berth) {
  ++berth.wait;
  running_ = &berth;
  berth.fiber->Resume();
  running_ = nullptr;
  if (!berth.fiber->ended()) return;
  berth.fiber.reset();
  free_.push_back(&berth);
  --fibers_;
}

bool Scheduler::RunNext() {
  if (due_.empty()) return false;
  std::pop_heap(due_.begin(), due_.end(), Later());
  Due due = std::move(due_.back());
  due_.pop_back();
  if (due.berth != nullptr && due.wait != due.berth->wait) return true;
  now_ = due.at;
  ++steps_;
  if (due.berth == nullptr) {
    due.task();
  } else {
    GoOn(*due.berth);
  }
  return true;
}

void Scheduler::Clear() {
  while (!due_.empty()) std::exchange(due_, {}).clear();
}

bool Gate::WaitFor(Microseconds at_most) {
  waiting_ = scheduler_.running_;
  opened_ = false;
  scheduler_.WakeAfter(at_most, *waiting_);
  scheduler_.Suspend();
  waiting_ = nullptr;
  return opened_;
}

void Gate::Open() {
  if (waiting_ == nullptr || opened_) return;
  opened_ = true;
  scheduler_.WakeAfter(Microseconds(0), *waiting_);
}

}  // namespace idempotency
