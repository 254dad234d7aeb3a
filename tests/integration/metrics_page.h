// Scrapes a server's metrics as Prometheus does.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_METRICS_PAGE_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_METRICS_PAGE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/support/replica.h"

namespace idempotency {

// What one GET returned. Thread-compatible.
class MetricsPage {
 public:
  // GET `path` from that port of 127.0.0.1. An error unless the answer is 200
  // and arrives whole within some seconds.
  static absl::StatusOr<MetricsPage> Get(int port,
                                         const std::string& path = "/metrics");

  const std::string& text() const { return text_; }

  // The value of a series, as the page writes it: `name{label="value"}`. Fails
  // the test, and is NaN, where there is none.
  double Value(const std::string& series) const;
  bool Has(const std::string& series) const {
    return values_.count(series) > 0;
  }
  // All series whose text begins with `prefix`, and the sum over them.
  std::map<std::string, double> Under(const std::string& prefix) const;
  double Sum(const std::string& prefix) const;
  // The names in the lines "# TYPE", in their order.
  std::vector<std::string> Families() const;

 private:
  explicit MetricsPage(std::string text);

  std::string text_;
  std::map<std::string, double> values_;
};

// The port that the replica says it serves metrics on; fails the test, and is
// 0, where it says none.
int AdminPortOf(const Replica& replica);

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_METRICS_PAGE_H_
