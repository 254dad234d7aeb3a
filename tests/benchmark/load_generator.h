// Drives a workload against a server in a closed loop and measures it.
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
  size_t in_flight = 64;  // over all connections
  double warm_up_seconds = 0.5;
  double seconds = 2;
};

// Calls that ended inside the measured time, and the time itself.
struct LoadReport {
  double seconds = 0;
  double client_cpu_seconds = 0;
  LatencyHistogram claims;
  LatencyHistogram finalizes;
};

// One thread; not thread-safe.
class LoadGenerator {
 public:
  explicit LoadGenerator(LoadOptions options);
  ~LoadGenerator();
  LoadGenerator(const LoadGenerator&) = delete;
  LoadGenerator& operator=(const LoadGenerator&) = delete;

  absl::Status Connect();

  // Sends until `workload` has no more calls; measures nothing.
  absl::Status RunToEnd(Workload& workload);

  // Warms up, measures, and finishes what is half done. Tells on stderr when
  // the measured time begins and ends, so that somebody who watches other
  // processes can take the same time.
  absl::Status RunMeasured(Workload& workload, LoadReport* report);

  // Over all runs. A wrong answer ends nothing: whoever runs this must look.
  uint64_t checked_calls() const { return checked_calls_; }
  uint64_t wrong_calls() const { return wrong_calls_; }

 private:
  struct Lane;

  void OnDone(Lane& lane, Call& call);
  void StartNext(Lane& lane, Slot& slot, int64_t now_ns);
  absl::Status StartAll();
  // Drives the connections until `end_ns` or until nothing is in flight.
  absl::Status DriveUntil(int64_t end_ns);
  absl::Status Poll(int timeout_ms);
  // Asks epoll for writability exactly while the lane has something to write.
  void WatchWrites(Lane& lane);
  absl::Status Drain();

  const LoadOptions options_;
  int epoll_fd_ = -1;
  std::vector<std::unique_ptr<Lane>> lanes_;  // one for each connection
  Workload* workload_ = nullptr;              // of the run under way
  LoadReport* report_ = nullptr;              // set inside the measured time
  bool draining_ = false;
  size_t in_flight_ = 0;
  uint64_t checked_calls_ = 0;
  uint64_t wrong_calls_ = 0;
  absl::Status failure_;
};

}  // namespace idempotency::benchmark

#endif  // TESTS_BENCHMARK_LOAD_GENERATOR_H_
