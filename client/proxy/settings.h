// The sidecar's settings: a flag, over the environment variable of the same
// name (--listen, IDEMPOTENCY_PROXY_LISTEN), over the default.
#ifndef IDEMPOTENCY_CLIENT_PROXY_SETTINGS_H_
#define IDEMPOTENCY_CLIENT_PROXY_SETTINGS_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/credentials.h"

namespace idempotency {

// Each field is explained by the help text of its flag, in settings.cc.
struct ProxySettings {
  std::string listen;
  std::string upstream;
  std::string grpc_listen;
  std::string grpc_upstream;
  std::string coordinator;
  bool coordinator_tls = false;
  TlsOptions tls = {};
  std::string config;
  std::string admin_listen;
  std::size_t connections_max = 0;
  std::size_t request_bytes_max = 0;
  std::chrono::milliseconds connect_timeout{0};
  std::chrono::milliseconds request_timeout{0};
  std::chrono::milliseconds idle_timeout{0};
  std::chrono::milliseconds stream_timeout{0};
  std::chrono::milliseconds drain_delay{0};
  std::chrono::milliseconds drain_timeout{0};

  bool has_http() const { return !listen.empty(); }
  bool has_grpc() const { return !grpc_listen.empty(); }
};

// `environment` returns the value of a variable. INVALID_ARGUMENT says which
// setting is wrong and what it may be.
absl::StatusOr<ProxySettings> ReadSettings(
    const std::vector<std::string>& arguments,
    const std::function<std::optional<std::string>(const std::string&)>&
        environment);

// What --help prints.
std::string ProxyManual();

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_PROXY_SETTINGS_H_
