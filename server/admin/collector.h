// The coordinator's counters as metric families.
#ifndef IDEMPOTENCY_SERVER_ADMIN_COLLECTOR_H_
#define IDEMPOTENCY_SERVER_ADMIN_COLLECTOR_H_

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <vector>

#include "server/admin/metrics_source.h"

namespace idempotency {

// Thread-safe. Labels hold names of the contract, of this program and of the
// operators' policies (Metrics::kPoliciesMax at most), and nothing that callers
// send. Reads memory and /proc only: a database that stands still holds no
// scrape up.
class Collector final : public prometheus::Collectable {
 public:
  explicit Collector(MetricsSource source);

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const MetricsSource source_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_ADMIN_COLLECTOR_H_
