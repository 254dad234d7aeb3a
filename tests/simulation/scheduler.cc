#include "tests/simulation/scheduler.h"

#include <algorithm>
#include <utility>

namespace idempotency {

void Scheduler::Push(const Due& due) {
  due_.push_back(due);
  std::push_heap(due_.begin(), due_.end(), Later());
}

std::size_t Scheduler::Keep(Task task) {
  if (free_tasks_.empty()) {
    tasks_.push_back(std::move(task));
    return tasks_.size() - 1;
  }
  const std::size_t place = free_tasks_.back();
  free_tasks_.pop_back();
  tasks_[place] = std::move(task);
  return place;
}

void Scheduler::After(Microseconds delay, Task task) {
  Push({.at = now_ + std::max(delay, Microseconds(0)),
        .order = random_.Next(),
        .task = Keep(std::move(task))});
}

void Scheduler::AsDrawn(std::uint64_t order, Task task) {
  Push({.at = now_, .order = order, .task = Keep(std::move(task))});
}

void Scheduler::WakeAfter(Microseconds delay, Berth& berth) {
  Push({.at = now_ + std::max(delay, Microseconds(0)),
        .order = random_.Next(),
        .berth = &berth,
        .wait = berth.wait});
}

void Scheduler::Spawn(Microseconds delay, Task body) {
  if (free_berths_.empty()) {
    free_berths_.push_back(
        berths_.emplace_back(std::make_unique<Berth>()).get());
  }
  Berth& berth = *free_berths_.back();
  free_berths_.pop_back();
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
  free_berths_.push_back(&berth);
  --fibers_;
}

bool Scheduler::RunNext() {
  if (due_.empty()) return false;
  std::pop_heap(due_.begin(), due_.end(), Later());
  const Due due = due_.back();
  due_.pop_back();
  if (due.berth != nullptr && due.wait != due.berth->wait) return true;
  now_ = due.at;
  ++steps_;
  if (due.berth == nullptr) {
    Task task = std::exchange(tasks_[due.task], nullptr);
    free_tasks_.push_back(due.task);
    task();
  } else {
    GoOn(*due.berth);
  }
  return true;
}

void Scheduler::Clear() {
  while (!due_.empty()) {
    due_.clear();
    std::exchange(tasks_, {}).clear();
    free_tasks_.clear();
  }
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
