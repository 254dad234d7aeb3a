// HTTP for operators' tools: metrics at /metrics.
#ifndef IDEMPOTENCY_SERVER_ADMIN_ADMIN_SERVER_H_
#define IDEMPOTENCY_SERVER_ADMIN_ADMIN_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/admin/metrics_source.h"

namespace idempotency {

// Plain HTTP without authentication. Thread-safe; it has a few threads of its
// library's own until it is destroyed.
class AdminServer {
 public:
  // Listens on host:port (IPv4, or a name of such an address; port 0: any free
  // one) and answers at once. An address that can't be listened on is
  // UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Start(
      const std::string& listen, MetricsSource source);

  ~AdminServer();
  AdminServer(const AdminServer&) = delete;
  AdminServer& operator=(const AdminServer&) = delete;

  int port() const;

 private:
  struct Impl;
  explicit AdminServer(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_ADMIN_ADMIN_SERVER_H_
