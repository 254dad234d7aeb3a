#include "server/admin/families.h"

#include <limits>
#include <utility>

namespace idempotency {

FamilyBuilder::FamilyBuilder(std::string name, std::string help,
                             prometheus::MetricType type) {
  family_.name = std::move(name);
  family_.help = std::move(help);
  family_.type = type;
}

void FamilyBuilder::AddCounter(Labels labels, double value) {
  prometheus::ClientMetric& metric = family_.metric.emplace_back();
  metric.label = std::move(labels);
  metric.counter.value = value;
}

void FamilyBuilder::AddGauge(Labels labels, double value) {
  prometheus::ClientMetric& metric = family_.metric.emplace_back();
  metric.label = std::move(labels);
  metric.gauge.value = value;
}

void FamilyBuilder::AddBuckets(Labels labels, const HistogramValues& values,
                               const std::vector<std::uint64_t>& bounds,
                               double unit) {
  prometheus::ClientMetric& metric = family_.metric.emplace_back();
  metric.label = std::move(labels);
  prometheus::ClientMetric::Histogram& histogram = metric.histogram;
  // Every bucket holds those below it, too.
  for (std::size_t i = 0; i < values.counts.size(); ++i) {
    histogram.sample_count += values.counts[i];
    const double bound = i < bounds.size()
                             ? static_cast<double>(bounds[i]) * unit
                             : std::numeric_limits<double>::infinity();
    histogram.bucket.push_back(
        {.cumulative_count = histogram.sample_count, .upper_bound = bound});
  }
  histogram.sample_sum = static_cast<double>(values.sum) * unit;
}

prometheus::ClientMetric::Label LabelOf(std::string name,
                                        std::string_view value) {
  return {.name = std::move(name), .value = std::string(value)};
}

}  // namespace idempotency
