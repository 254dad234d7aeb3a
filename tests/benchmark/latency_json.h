// A histogram as the benchmark's programs print it.
#ifndef TESTS_BENCHMARK_LATENCY_JSON_H_
#define TESTS_BENCHMARK_LATENCY_JSON_H_

#include <nlohmann/json.hpp>

#include "tests/benchmark/latency_histogram.h"

namespace idempotency::benchmark {

inline nlohmann::json LatencyJson(const LatencyHistogram& histogram) {
  return {{"p50", histogram.QuantileMs(0.5)},
          {"p99", histogram.QuantileMs(0.99)},
          {"p999", histogram.QuantileMs(0.999)},
          {"max", histogram.max_ms()}};
}

}  // namespace idempotency::benchmark

#endif  // TESTS_BENCHMARK_LATENCY_JSON_H_
