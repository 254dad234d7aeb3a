// Drives a workload against a server and measures it: in a closed loop, where
// each answer brings the next call, or in an open one, where work arrives at a
// constant rate whatever the server does.
#ifndef TESTS_BENCHMARK_LOAD_GENERATOR_H_
#define TESTS_BENCHMARK_LOAD_GENERATOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/benchmark/http2_connection.h"
#include "tests/benchmark/latency_histogram.h"
#include "tests/benchmark/workload.h"

namespace idempotency::benchmark {

struct LoadOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 50051;
  std::string scope = "benchmark";
  size_t connections = 4;
  // Over all connections; with a rate, at most so many.
  size_t in_flight = 64;
  // Pieces of work (a Claim with what follows) that arrive each second. 0: a
  // closed loop.
  double rate = 0;
  size_t body_bytes = kBodyBytes;
  int deadline_ms = 20'000;  // of each call
  // Whether each call has its record's key as metadata too, for a sidecar.
  bool idempotency_keys = false;
  // Whether the server may refuse calls (see IsRefusal).
  bool refusals_allowed = false;
  double warm_up_seconds = 0.5;
  double seconds = 2;
};

// In a closed loop the calls that ended inside the measured time. In an open
// one those of the work that was to begin inside it, however late they began or
// ended; work that arrived while all of in_flight was busy waits, and its
// waiting counts as latency.
struct LoadReport {
  double seconds = 0;
  double client_cpu_seconds = 0;
  LatencyHistogram claims;
  LatencyHistogram finalizes;
  LatencyHistogram refusals;
  uint64_t late = 0;  // of the refusals
  // Finalized inside the measured time, whenever their work arrived.
  uint64_t pairs = 0;
};

// One thread; not thread-safe.
class LoadGenerator {
 public:
  explicit LoadGenerator(LoadOptions options);
  ~LoadGenerator();
  LoadGenerator(const LoadGenerator&) = delete;
  LoadGenerator& operator=(const LoadGenerator&) = delete;

  absl::Status Connect();

  // Sends until `workload` has no more calls, in a closed loop, and measures
  // all of them unless `report` is null.
  absl::Status RunToEnd(Workload& workload, LoadReport* report = nullptr);

  // Warms up, measures, and finishes what is half done. Tells on stderr when
  // the measured time begins and ends, so that somebody who watches other
  // processes can take the same time.
  absl::Status RunMeasured(Workload& workload, LoadReport* report);

  // Over all runs. A wrong answer ends nothing: whoever runs this must look.
  uint64_t checked_calls() const { return checked_calls_; }
  uint64_t wrong_calls() const { return wrong_calls_; }

 private:
  struct Lane;
  struct FreeSlot {
    Lane* lane;
    Slot* slot;
  };

  bool open_loop() const { return interval_ns_ > 0; }

  void OnDone(Lane& lane, Call& call);
  void Count(const Slot& slot, bool refused, int64_t now_ns);
  // Starts the slot's next call, if it has one; its latency counts from
  // `now_ns`.
  void StartNext(Lane& lane, Slot& slot, int64_t now_ns);
  absl::Status StartAll();

  // The open loop: a timer says when work may be due.
  absl::Status OpenTimer();
  absl::Status BeginArrivals();
  void OnTimer();
  // Starts the work that has arrived by `now_ns`, as far as slots are free.
  void StartArrived(int64_t now_ns);
  bool MoreArrives() const;

  // Drives the connections until `end_ns` or until nothing is left to do.
  absl::Status DriveUntil(int64_t end_ns);
  absl::Status Poll(int timeout_ms);
  absl::Status FlushAll();
  // Asks epoll for writability exactly while the lane has something to write.
  void WatchWrites(Lane& lane);
  absl::Status Drain();

  const LoadOptions options_;
  int epoll_fd_ = -1;
  int timer_fd_ = -1;
  std::vector<std::unique_ptr<Lane>> lanes_;  // one for each connection
  Workload* workload_ = nullptr;              // of the run under way
  LoadReport* report_ = nullptr;              // set while calls may count
  bool draining_ = false;

  // Of the open loop.
  int64_t interval_ns_ = 0;        // between two arrivals; 0: closed loop
  int64_t next_arrival_ns_ = 0;    // of work that has not begun
  int64_t arrivals_end_ns_ = 0;    // nothing arrives from then on
  int64_t measured_begin_ns_ = 0;  // work that arrives from then on counts
  std::vector<FreeSlot> free_slots_;

  size_t in_flight_ = 0;
  uint64_t checked_calls_ = 0;
  uint64_t wrong_calls_ = 0;
  absl::Status failure_;
};

}  // namespace idempotency::benchmark

#endif  // TESTS_BENCHMARK_LOAD_GENERATOR_H_
