// What every Prometheus client library tells of its process, which
// prometheus-cpp does not.
#ifndef IDEMPOTENCY_SERVER_ADMIN_PROCESS_METRICS_H_
#define IDEMPOTENCY_SERVER_ADMIN_PROCESS_METRICS_H_

#include <prometheus/metric_family.h>

#include <vector>

namespace idempotency {

// Processor time, memory, open files and the start of this process, from
// /proc; a figure that can't be read is left out. Thread-safe.
std::vector<prometheus::MetricFamily> CollectProcessMetrics();

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_ADMIN_PROCESS_METRICS_H_
