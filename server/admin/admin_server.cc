#include "server/admin/admin_server.h"

#include <prometheus/exposer.h>

#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/admin/collector.h"

namespace idempotency {
namespace {

// More wait. Somebody who connects and says nothing holds one for so long.
constexpr char kThreads[] = "16";
constexpr char kRequestTimeoutMs[] = "1000";

}  // namespace

struct AdminServer::Impl {
  Impl(const std::string& listen, MetricsSource source)
      : collector(std::make_shared<Collector>(std::move(source))),
        exposer(std::vector<std::string>{
            "listening_ports", listen, "num_threads", kThreads,
            "request_timeout_ms", kRequestTimeoutMs}) {
    exposer.RegisterCollectable(collector);
  }

  std::shared_ptr<Collector> collector;
  prometheus::Exposer exposer;
};

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Start(
    const std::string& listen, MetricsSource source) {
  try {
    return std::unique_ptr<AdminServer>(
        new AdminServer(std::make_unique<Impl>(listen, std::move(source))));
  } catch (const std::exception&) {
    return absl::UnavailableError(absl::StrCat(
        "can't serve metrics on ", listen,
        ": the address is in use or not this machine's (IPv4 only)"));
  }
}

AdminServer::AdminServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

AdminServer::~AdminServer() = default;

int AdminServer::port() const {
  return impl_->exposer.GetListeningPorts().front();
}

}  // namespace idempotency
