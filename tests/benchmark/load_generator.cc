#include "tests/benchmark/load_generator.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace idempotency::benchmark {
namespace {

constexpr int64_t kNanosecondsPerSecond = 1'000'000'000;
constexpr int64_t kStallNs = 30 * kNanosecondsPerSecond;
constexpr int kPollMs = 100;
// Work that arrives within it begins together.
constexpr int64_t kTimerNsMin = 50'000;
constexpr int kWrongCallsShown = 5;

int64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNanosecondsPerSecond + now.tv_nsec;
}

int64_t ToNs(double seconds) {
  return static_cast<int64_t>(seconds * kNanosecondsPerSecond);
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

// A connection and the slots that send on it.
struct LoadGenerator::Lane {
  std::unique_ptr<Http2Connection> connection;
  std::vector<std::unique_ptr<Slot>> slots;
  bool waits_for_write = false;
};

LoadGenerator::LoadGenerator(LoadOptions options)
    : options_(std::move(options)) {}

LoadGenerator::~LoadGenerator() {
  if (timer_fd_ >= 0) close(timer_fd_);
  if (epoll_fd_ >= 0) close(epoll_fd_);
}

absl::Status LoadGenerator::Connect() {
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd_ < 0) return absl::UnavailableError("no epoll");
  std::vector<std::unique_ptr<Slot>> slots =
      MakeSlots(options_.in_flight, options_.scope, options_.body_bytes);
  const size_t connections = std::min(options_.connections, options_.in_flight);
  for (size_t i = 0; i < connections; ++i) {
    auto lane = std::make_unique<Lane>();
    auto connection = Http2Connection::Connect(
        options_.host, options_.port, absl::StrCat(options_.deadline_ms, "m"),
        [this, lane = lane.get()](Call& call) { OnDone(*lane, call); });
    if (!connection.ok()) return connection.status();
    lane->connection = *std::move(connection);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = lane.get();
    if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, lane->connection->fd(), &event) !=
        0) {
      return absl::UnavailableError("epoll refused a connection");
    }
    lanes_.push_back(std::move(lane));
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    lanes_[i % lanes_.size()]->slots.push_back(std::move(slots[i]));
  }
  return absl::OkStatus();
}

void LoadGenerator::StartNext(Lane& lane, Slot& slot, int64_t now_ns) {
  if (draining_ && workload_->AtBoundary(slot)) return;
  if (!workload_->Next(slot)) return;
  if (options_.idempotency_keys) slot.idempotency_key = slot.key;
  slot.started_ns = now_ns;
  failure_.Update(lane.connection->Start(&slot));
  ++in_flight_;
}

void LoadGenerator::Count(const Slot& slot, bool refused, int64_t now_ns) {
  if (report_ == nullptr) return;
  const auto is_measured = [this](int64_t time_ns) {
    return !open_loop() ||
           (time_ns >= measured_begin_ns_ && time_ns < arrivals_end_ns_);
  };
  const bool claim = slot.method == Method::kClaim;
  if (!claim && !refused && is_measured(now_ns)) ++report_->pairs;
  if (!is_measured(slot.arrived_ns)) return;
  if (refused && IsTooLate(slot)) ++report_->late;
  (refused ? report_->refusals
   : claim ? report_->claims
           : report_->finalizes)
      .Add(now_ns - slot.started_ns);
}

void LoadGenerator::OnDone(Lane& lane, Call& call) {
  Slot& slot = static_cast<Slot&>(call);  // Nothing else is ever started.
  const int64_t now_ns = NowNs();
  --in_flight_;
  ++checked_calls_;
  const bool refused = options_.refusals_allowed && IsRefusal(call);
  Count(slot, refused, now_ns);
  std::string wrong = refused ? "" : workload_->Check(slot);
  if (!wrong.empty() && ++wrong_calls_ <= kWrongCallsShown) {
    std::cerr << "load_client: wrong answer to "
              << (slot.method == Method::kClaim ? "Claim" : "Finalize") << ": "
              << wrong << std::endl;
  }
  // After either of them the next call is of a fresh key.
  if (refused || !wrong.empty()) slot.method = Method::kFinalize;
  if (open_loop() && workload_->AtBoundary(slot)) {
    free_slots_.push_back({&lane, &slot});
    StartArrived(now_ns);
  } else {
    StartNext(lane, slot, now_ns);
  }
}

absl::Status LoadGenerator::OpenTimer() {
  timer_fd_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  const int64_t tick_ns = std::max(interval_ns_, kTimerNsMin);
  itimerspec ticks{};
  ticks.it_interval.tv_sec = tick_ns / kNanosecondsPerSecond;
  ticks.it_interval.tv_nsec = tick_ns % kNanosecondsPerSecond;
  ticks.it_value = ticks.it_interval;
  epoll_event event{};  // No lane: the timer.
  event.events = EPOLLIN;
  if (timer_fd_ < 0 || timerfd_settime(timer_fd_, 0, &ticks, nullptr) != 0 ||
      epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, timer_fd_, &event) != 0) {
    return absl::UnavailableError("no timer");
  }
  return absl::OkStatus();
}

absl::Status LoadGenerator::BeginArrivals() {
  interval_ns_ = std::max<int64_t>(1, ToNs(1 / options_.rate));
  for (auto& lane : lanes_) {
    for (auto& slot : lane->slots) {
      slot->method = Method::kFinalize;
      free_slots_.push_back({lane.get(), slot.get()});
    }
  }
  next_arrival_ns_ = NowNs();
  measured_begin_ns_ = arrivals_end_ns_ = INT64_MAX;
  return OpenTimer();
}

void LoadGenerator::OnTimer() {
  uint64_t ticks = 0;
  // Nothing to read is as good: what has arrived is a matter of the clock.
  [[maybe_unused]] const ssize_t size = read(timer_fd_, &ticks, sizeof(ticks));
  StartArrived(NowNs());
}

bool LoadGenerator::MoreArrives() const {
  return open_loop() && next_arrival_ns_ < arrivals_end_ns_;
}

void LoadGenerator::StartArrived(int64_t now_ns) {
  while (MoreArrives() && next_arrival_ns_ <= now_ns && !free_slots_.empty()) {
    const FreeSlot free = free_slots_.back();
    free_slots_.pop_back();
    free.slot->arrived_ns = next_arrival_ns_;
    // A server that was slow to free the slot is not forgiven the wait.
    StartNext(*free.lane, *free.slot, next_arrival_ns_);
    next_arrival_ns_ += interval_ns_;
  }
}

void LoadGenerator::WatchWrites(Lane& lane) {
  if (lane.waits_for_write == lane.connection->wants_write()) return;
  lane.waits_for_write = lane.connection->wants_write();
  epoll_event event{};
  event.events = EPOLLIN | (lane.waits_for_write ? EPOLLOUT : 0u);
  event.data.ptr = &lane;
  epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, lane.connection->fd(), &event);
}

absl::Status LoadGenerator::Poll(int timeout_ms) {
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(epoll_fd_, events.data(),
                               static_cast<int>(events.size()), timeout_ms);
  if (count < 0 && errno != EINTR) return absl::UnavailableError("epoll");
  for (int i = 0; i < count; ++i) {
    auto* lane = static_cast<Lane*>(events[static_cast<size_t>(i)].data.ptr);
    if (lane == nullptr) {
      OnTimer();
      continue;
    }
    const uint32_t ready = events[static_cast<size_t>(i)].events;
    absl::Status status = (ready & ~EPOLLOUT) != 0
                              ? lane->connection->OnReadable()
                              : lane->connection->OnWritable();
    if (!status.ok()) return status;
    WatchWrites(*lane);
  }
  // Work begins on any connection when it arrives.
  return open_loop() ? FlushAll() : failure_;
}

absl::Status LoadGenerator::FlushAll() {
  for (auto& lane : lanes_) {
    failure_.Update(lane->connection->Flush());
    WatchWrites(*lane);
  }
  return failure_;
}

absl::Status LoadGenerator::StartAll() {
  const int64_t now_ns = NowNs();
  for (auto& lane : lanes_) {
    for (auto& slot : lane->slots) {
      slot->method = Method::kFinalize;
      StartNext(*lane, *slot, now_ns);
    }
  }
  return FlushAll();
}

absl::Status LoadGenerator::DriveUntil(int64_t end_ns) {
  uint64_t checked = checked_calls_;
  int64_t moved_ns = NowNs();
  while (in_flight_ > 0 || MoreArrives()) {
    const int64_t now_ns = NowNs();
    if (now_ns >= end_ns) return absl::OkStatus();
    const int64_t left_ms = (end_ns - now_ns) / 1'000'000 + 1;
    absl::Status status =
        Poll(static_cast<int>(std::min<int64_t>(left_ms, kPollMs)));
    if (!status.ok()) return status;
    if (checked != checked_calls_) {
      checked = checked_calls_;
      moved_ns = now_ns;
    } else if (now_ns - moved_ns > kStallNs) {
      return absl::DeadlineExceededError("no call was answered for 30 s");
    }
  }
  return absl::OkStatus();
}

absl::Status LoadGenerator::Drain() {
  draining_ = !open_loop();  // There the end of arrivals is enough.
  absl::Status status = DriveUntil(NowNs() + kStallNs);
  draining_ = false;
  if (status.ok() && (in_flight_ > 0 || MoreArrives())) {
    status = absl::DeadlineExceededError("calls are left without an answer");
  }
  return status;
}

absl::Status LoadGenerator::RunToEnd(Workload& workload, LoadReport* report) {
  workload_ = &workload;
  report_ = report;
  const int64_t begin_ns = NowNs();
  absl::Status status = StartAll();
  if (status.ok()) status = DriveUntil(INT64_MAX);
  report_ = nullptr;
  if (report != nullptr) {
    report->seconds =
        static_cast<double>(NowNs() - begin_ns) / kNanosecondsPerSecond;
  }
  return status;
}

absl::Status LoadGenerator::RunMeasured(Workload& workload,
                                        LoadReport* report) {
  workload_ = &workload;
  absl::Status status = options_.rate > 0 ? BeginArrivals() : StartAll();
  if (!status.ok()) return status;
  status = DriveUntil(NowNs() + ToNs(options_.warm_up_seconds));
  if (!status.ok()) return status;

  std::cerr << "measuring" << std::endl;
  const double cpu_before = CpuSeconds();
  const int64_t begin_ns = NowNs();
  report_ = report;
  measured_begin_ns_ = begin_ns;
  if (open_loop()) arrivals_end_ns_ = begin_ns + ToNs(options_.seconds);
  status = DriveUntil(begin_ns + ToNs(options_.seconds));
  if (!open_loop()) report_ = nullptr;
  report->seconds =
      static_cast<double>(NowNs() - begin_ns) / kNanosecondsPerSecond;
  report->client_cpu_seconds = CpuSeconds() - cpu_before;
  std::cerr << "measured" << std::endl;
  if (status.ok()) status = Drain();
  report_ = nullptr;
  return status;
}

}  // namespace idempotency::benchmark
