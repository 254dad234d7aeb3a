// What the sidecar counts, in Prometheus's text format.
#ifndef IDEMPOTENCY_CLIENT_PROXY_METRICS_H_
#define IDEMPOTENCY_CLIENT_PROXY_METRICS_H_

#include <cstddef>
#include <memory>
#include <string>

#include "client/http/middleware.h"
#include "client/proxy/http_proxy.h"

namespace idempotency {

// Thread-safe.
class ProxyMetrics {
 public:
  ProxyMetrics();
  ~ProxyMetrics();
  ProxyMetrics(const ProxyMetrics&) = delete;
  ProxyMetrics& operator=(const ProxyMetrics&) = delete;

  // idempotency_proxy_http_requests_total{scope, answer}
  void Count(ProxyAnswer answer, const std::string& scope);
  // idempotency_proxy_notices_total{kind}
  void Count(HttpNotice::Kind kind);
  // idempotency_proxy_rules_total{result="used" or "refused"}
  void CountRules(bool used);

  // The page, with the gauges idempotency_proxy_connections (of HTTP callers)
  // and idempotency_proxy_operations (with a key, both halves).
  std::string Page(std::size_t connections, std::size_t operations) const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

// "ran_unguarded" and so on.
const char* NameOf(HttpNotice::Kind kind);

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_PROXY_METRICS_H_
