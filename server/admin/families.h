// Metric families as prometheus-cpp takes them.
#ifndef IDEMPOTENCY_SERVER_ADMIN_FAMILIES_H_
#define IDEMPOTENCY_SERVER_ADMIN_FAMILIES_H_

#include <prometheus/metric_family.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/core/histogram.h"

namespace idempotency {

using Labels = std::vector<prometheus::ClientMetric::Label>;

// One family under construction. Help texts are single lines.
class FamilyBuilder {
 public:
  FamilyBuilder(std::string name, std::string help,
                prometheus::MetricType type);

  // Each is for families of its own type.
  void AddCounter(Labels labels, double value);
  void AddGauge(Labels labels, double value);
  // The values and `bounds` are multiplied by `unit`.
  template <const auto& kBounds>
  void AddHistogram(Labels labels, const Histogram<kBounds>& histogram,
                    double unit) {
    AddBuckets(std::move(labels), histogram.Values(),
               {kBounds.begin(), kBounds.end()}, unit);
  }

  prometheus::MetricFamily Finish() && { return std::move(family_); }

 private:
  void AddBuckets(Labels labels, const HistogramValues& values,
                  const std::vector<std::uint64_t>& bounds, double unit);

  prometheus::MetricFamily family_;
};

// A label's value, from a string_view.
prometheus::ClientMetric::Label LabelOf(std::string name,
                                        std::string_view value);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_ADMIN_FAMILIES_H_
