// The server's settings: a flag, over the environment variable of the same
// name (--listen, IDEMPOTENCY_LISTEN), over the default.
#ifndef IDEMPOTENCY_SERVER_CONFIG_H_
#define IDEMPOTENCY_SERVER_CONFIG_H_

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/uuid.h"
#include "server/rpc/certificate_files.h"
#include "server/store/postgres/durability.h"

namespace idempotency {

// Each field is explained by the help text of its flag, in config.cc.
struct Config {
  std::string listen;
  std::string admin_listen;  // empty: none
  std::string database;      // empty: the embedded cluster in data_dir
  std::string data_dir;
  bool migrate = false;
  bool sweep_only = false;
  bool database_pooled = false;
  bool database_citus = false;
  Durability require_durability = Durability::kAny;
  std::optional<Uuid> downstream_namespace;
  int lanes = 1;
  std::size_t queue_items_max = 0;
  std::chrono::milliseconds queue_wait_max{0};
  std::size_t body_bytes_max = 0;
  std::size_t replay_cache_bytes = 0;
  std::size_t reply_bytes_max = 0;
  std::chrono::milliseconds deadline_max{0};
  std::chrono::milliseconds store_patience{0};
  int reaper_batch = 0;
  absl::Duration reaper_pause{};
  absl::Duration conflict_retention{};
  CertificateFiles tls;
  bool allow_plaintext = false;
  bool reflection = true;
  std::chrono::milliseconds max_connection_age{0};  // 0: no limit
  std::chrono::milliseconds drain_delay{0};
  std::chrono::milliseconds drain_timeout{0};

  bool embedded() const { return database.empty(); }
};

// Reads the command line and the environment. With --help, prints the manual
// and ends the process with status 0. An error says which setting is wrong and
// what it may be.
absl::StatusOr<Config> ReadConfig(int argc, char** argv);

// Does the address ("127.0.0.1:50051", "[::1]:0", "localhost:1", "unix:/…")
// take calls from this machine only?
bool IsLoopback(const std::string& address);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CONFIG_H_
