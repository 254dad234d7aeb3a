#include "tests/benchmark/load_generator.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <iostream>
#include <utility>

namespace idempotency::benchmark {
namespace {

constexpr int64_t kNanosecondsPerSecond = 1'000'000'000;
constexpr int64_t kStallNs = 30 * kNanosecondsPerSecond;
constexpr int kPollMs = 100;
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
  if (epoll_fd_ >= 0) close(epoll_fd_);
}

absl::Status LoadGenerator::Connect() {
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd_ < 0) return absl::UnavailableError("no epoll");
  std::vector<std::unique_ptr<Slot>> slots =
      MakeSlots(options_.in_flight, options_.scope);
  const size_t connections = std::min(options_.connections, options_.in_flight);
  for (size_t i = 0; i < connections; ++i) {
    auto lane = std::make_unique<Lane>();
    auto connection = Http2Connection::Connect(
        options_.host, options_.port,
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
  slot.started_ns = now_ns;
  failure_.Update(lane.connection->Start(&slot));
  ++in_flight_;
}

void LoadGenerator::OnDone(Lane& lane, Call& call) {
  Slot& slot = static_cast<Slot&>(call);  // Nothing else is ever started.
  const int64_t now_ns = NowNs();
  --in_flight_;
  ++checked_calls_;
  if (report_ != nullptr) {
    (slot.method == Method::kClaim ? report_->claims : report_->finalizes)
        .Add(now_ns - slot.started_ns);
  }
  if (std::string wrong = workload_->Check(slot); !wrong.empty()) {
    if (++wrong_calls_ <= kWrongCallsShown) {
      std::cerr << "load_client: wrong answer to "
                << (slot.method == Method::kClaim ? "Claim" : "Finalize")
                << ": " << wrong << std::endl;
    }
    slot.method = Method::kFinalize;  // The next call is of a fresh key.
  }
  StartNext(lane, slot, now_ns);
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
    Lane& lane = *static_cast<Lane*>(events[static_cast<size_t>(i)].data.ptr);
    const uint32_t ready = events[static_cast<size_t>(i)].events;
    absl::Status status = (ready & ~EPOLLOUT) != 0
                              ? lane.connection->OnReadable()
                              : lane.connection->OnWritable();
    if (!status.ok()) return status;
    WatchWrites(lane);
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
    failure_.Update(lane->connection->Flush());
    WatchWrites(*lane);
  }
  return failure_;
}

absl::Status LoadGenerator::DriveUntil(int64_t end_ns) {
  uint64_t checked = checked_calls_;
  int64_t moved_ns = NowNs();
  while (in_flight_ > 0) {
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
  draining_ = true;
  absl::Status status = DriveUntil(NowNs() + kStallNs);
  draining_ = false;
  if (status.ok() && in_flight_ > 0) {
    status = absl::DeadlineExceededError("calls are left without an answer");
  }
  return status;
}

absl::Status LoadGenerator::RunToEnd(Workload& workload) {
  workload_ = &workload;
  if (absl::Status status = StartAll(); !status.ok()) return status;
  return DriveUntil(INT64_MAX);
}

absl::Status LoadGenerator::RunMeasured(Workload& workload,
                                        LoadReport* report) {
  workload_ = &workload;
  if (absl::Status status = StartAll(); !status.ok()) return status;
  absl::Status status = DriveUntil(NowNs() + ToNs(options_.warm_up_seconds));
  if (!status.ok()) return status;

  std::cerr << "measuring" << std::endl;
  const double cpu_before = CpuSeconds();
  const int64_t begin_ns = NowNs();
  report_ = report;
  status = DriveUntil(begin_ns + ToNs(options_.seconds));
  report_ = nullptr;
  report->seconds =
      static_cast<double>(NowNs() - begin_ns) / kNanosecondsPerSecond;
  report->client_cpu_seconds = CpuSeconds() - cpu_before;
  std::cerr << "measured" << std::endl;
  if (!status.ok()) return status;
  return Drain();
}

}  // namespace idempotency::benchmark
