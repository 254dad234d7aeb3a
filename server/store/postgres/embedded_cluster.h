#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_EMBEDDED_CLUSTER_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_EMBEDDED_CLUSTER_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/postgres/cluster_folder.h"
#include "server/store/postgres/postgres_binaries.h"

namespace idempotency {

// A private PostgreSQL server with a database named "idempotency", run from
// the installed programs in a folder of its own and reached over a unix
// socket. Whoever can enter the socket's folder (root and the user that
// PostgreSQL runs as) is the superuser "idempotency"; nothing listens on the
// network.
//
// PostgreSQL outlives this process if that is killed, in a session of its own;
// the next Start on the folder adopts it. Migrations are not made here.
//
// Thread-compatible: Start and Stop block and may be called from any thread,
// Stop by one at a time; the accessors may be called by all.
class EmbeddedCluster {
 public:
  enum class StopMode {
    // Ends all sessions and writes everything out.
    kFast,
    // As in a crash: the next start recovers from the write-ahead log.
    kImmediate,
  };

  struct Options {
    // Made if absent. Everything of the cluster lies in it.
    std::string data_dir;
    // The folder of `postgres` and `initdb`. Empty: found by itself.
    std::string binaries;
    // Settings of PostgreSQL beside and over those that are made here. They do
    // not reach a server that is adopted.
    std::vector<std::pair<std::string, std::string>> settings;
    // Further arguments of initdb.
    std::vector<std::string> initdb_arguments;
    // For everything that Start does: making the cluster takes seconds,
    // recovering from a crash up to a minute.
    std::chrono::milliseconds start_timeout = std::chrono::minutes(3);
    // How long Stop waits for what it was asked for before it stops the server
    // harder.
    std::chrono::milliseconds stop_timeout = std::chrono::seconds(30);
    // Told, on Start's thread, what takes long. May be empty.
    std::function<void(std::string)> progress;
  };

  // Makes the cluster if there is none, starts or adopts its server, and
  // returns when that answers. Errors:
  // - FAILED_PRECONDITION: the folder is in use, is not a cluster's, belongs
  //   to another major version of PostgreSQL or cannot be entered by the user
  //   that PostgreSQL runs as;
  // - NOT_FOUND: PostgreSQL is not installed;
  // - DEADLINE_EXCEEDED: the server did not answer in time, and was stopped;
  // - others: the system refused something, or PostgreSQL ended; the message
  //   has the last lines of its log.
  // Each message says what helps. It is for the operator, not for callers.
  static absl::StatusOr<std::unique_ptr<EmbeddedCluster>> Start(
      Options options);

  EmbeddedCluster(const EmbeddedCluster&) = delete;
  EmbeddedCluster& operator=(const EmbeddedCluster&) = delete;
  // Stops the server.
  ~EmbeddedCluster();

  // Stops the server, an adopted one too, and gives the folder up. Takes at
  // most the stop timeout and twice ten seconds. A second call does nothing.
  absl::Status Stop(StopMode mode = StopMode::kFast);

  // A libpq URI of the database "idempotency", or of another one.
  std::string uri() const { return uri("idempotency"); }
  std::string uri(const std::string& database) const;

  // Whether the server was found running.
  bool adopted() const { return !own_child_; }
  pid_t postmaster_pid() const { return postmaster_; }
  int major_version() const { return binaries_.major; }
  const std::string& socket_folder() const { return socket_folder_; }
  int port() const { return port_; }
  std::string log_file() const { return log_file_; }

 private:
  using Deadline = std::chrono::steady_clock::time_point;

  EmbeddedCluster(Options options, std::unique_ptr<ClusterFolder> folder,
                  PostgresBinaries binaries);

  void Report(const std::string& what) const;
  absl::Status MakeCluster(Deadline deadline);
  absl::StatusOr<bool> Adopt(Deadline deadline);
  absl::Status StartServer(Deadline deadline);
  absl::Status StartServerOnce(Deadline deadline);
  absl::Status WaitUntilAnswering(Deadline deadline, std::uintmax_t log_offset);
  absl::Status MakeDatabase() const;
  bool WaitUntilGone(std::chrono::milliseconds timeout);

  const Options options_;
  const PostgresBinaries binaries_;
  const std::string log_file_;
  std::unique_ptr<ClusterFolder> folder_;
  std::string socket_folder_;
  int port_ = 0;
  // Zero: no server runs.
  pid_t postmaster_ = 0;
  bool own_child_ = false;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_EMBEDDED_CLUSTER_H_
