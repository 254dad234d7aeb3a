// What a scrape looks at. Free of prometheus-cpp, so that whoever builds the
// program need not know it.
#ifndef IDEMPOTENCY_SERVER_ADMIN_METRICS_SOURCE_H_
#define IDEMPOTENCY_SERVER_ADMIN_METRICS_SOURCE_H_

#include <cstddef>
#include <functional>

#include "server/core/metrics.h"
#include "server/core/policies.h"

namespace idempotency {

// All of it must outlive whoever scrapes. The functions are called by any
// thread.
struct MetricsSource {
  Metrics& metrics;  // policies that appear in `rules` are added to it
  const FleetRulesCache& rules;
  std::function<std::size_t()> queued_calls;
  std::function<std::size_t()> waiting_calls;
  std::function<bool()> serving;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_ADMIN_METRICS_SOURCE_H_
