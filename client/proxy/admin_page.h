// HTTP for operators' tools, apart from the callers':
//   /healthz  200 "ok"; 503 "draining" once the sidecar is to end
//   /metrics  Prometheus's text format
#ifndef IDEMPOTENCY_CLIENT_PROXY_ADMIN_PAGE_H_
#define IDEMPOTENCY_CLIENT_PROXY_ADMIN_PAGE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/proxy/http_wire.h"
#include "client/proxy/listener.h"
#include "client/proxy/socket.h"

namespace idempotency {

// Plain HTTP without authentication. Thread-safe.
class AdminPage {
 public:
  struct Sources {
    std::function<bool()> draining;
    std::function<std::string()> metrics;
  };

  // Listens and answers at once. UNAVAILABLE if the address cannot be listened
  // on.
  static absl::StatusOr<std::unique_ptr<AdminPage>> Start(
      const std::string& listen, Sources sources);

  ~AdminPage();
  AdminPage(const AdminPage&) = delete;
  AdminPage& operator=(const AdminPage&) = delete;

  int port() const { return listener_->port(); }

 private:
  explicit AdminPage(Sources sources) : sources_(std::move(sources)) {}

  void Serve(internal::Socket socket);
  // Whether it was sent.
  bool Answer(internal::CallerStream& caller,
              const internal::RequestHead& request) const;

  const Sources sources_;
  internal::Alarm end_;
  std::unique_ptr<internal::Listener> listener_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_PROXY_ADMIN_PAGE_H_
