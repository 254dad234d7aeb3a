// The whole sidecar: both halves, their rules, their coordinator and the admin
// page.
#ifndef IDEMPOTENCY_CLIENT_PROXY_SIDECAR_H_
#define IDEMPOTENCY_CLIENT_PROXY_SIDECAR_H_

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/proxy/admin_page.h"
#include "client/proxy/grpc_proxy.h"
#include "client/proxy/http_proxy.h"
#include "client/proxy/log.h"
#include "client/proxy/metrics.h"
#include "client/proxy/rules.h"
#include "client/proxy/settings.h"
#include "client/run_once.h"

namespace idempotency {

// Of one thread.
class Sidecar {
 public:
  // Serves at once; the coordinator need not be there. INVALID_ARGUMENT for a
  // file or a setting that says nothing sensible, UNAVAILABLE for an address
  // that can't be listened on.
  static absl::StatusOr<std::unique_ptr<Sidecar>> Start(ProxySettings settings);

  ~Sidecar();
  Sidecar(const Sidecar&) = delete;
  Sidecar& operator=(const Sidecar&) = delete;

  // Looks at the file of rules, and uses it if it has changed for the better.
  void Reread();

  // Says so at /healthz, waits for the delay, lets requests in hand end within
  // the timeout, and settles what was cut. Once.
  void Drain();

 private:
  explicit Sidecar(ProxySettings settings)
      : settings_(std::move(settings)), file_(settings_.config) {}

  absl::Status StartCoordinator();
  absl::Status StartAdminPage();
  absl::Status StartHttp(std::shared_ptr<const ProxyRules> rules);
  absl::Status StartGrpc(const ProxyRules& rules);
  // The file's rules, if they are others than before.
  absl::StatusOr<std::optional<ProxyRules>> ReadRules();
  absl::Status Use(ProxyRules rules);
  void Notice(const HttpNotice& notice);
  // The routes, which tell Notice().
  std::vector<GrpcRoute> WithNotice(std::vector<GrpcRoute> routes);

  const ProxySettings settings_;
  RulesFile file_;
  ProxyMetrics metrics_;
  SparseLog notices_;
  std::atomic<bool> draining_{false};
  // What is below uses what is above.
  std::shared_ptr<RunOnce> once_;
  std::unique_ptr<HttpProxy> http_;
  std::unique_ptr<GrpcProxy> grpc_;
  std::unique_ptr<AdminPage> admin_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_PROXY_SIDECAR_H_
