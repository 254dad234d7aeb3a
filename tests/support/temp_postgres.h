#ifndef IDEMPOTENCY_TESTS_SUPPORT_TEMP_POSTGRES_H_
#define IDEMPOTENCY_TESTS_SUPPORT_TEMP_POSTGRES_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/postgres/embedded_cluster.h"
#include "tests/support/temp_folder.h"

namespace idempotency {

// A PostgreSQL server for tests, in a temporary folder, reached over TCP at
// 127.0.0.1 and over a unix socket. Nothing of it is left when this object is
// destroyed or the test process dies. Where PostgreSQL is not installed Make
// returns an error, which a test has to fail with.
//
// Thread-compatible: Stop, Start, Pause and Resume are called by one thread at
// a time and never beside the others, which are thread-safe among themselves.
class TempPostgres {
 public:
  using StopMode = EmbeddedCluster::StopMode;

  struct Options {
    // Whether writes are forced to the disk. Without it the server is quicker
    // and still loses nothing when processes die, only when the machine does.
    bool fsync = true;
    // PostgreSQL's settings beside those of EmbeddedCluster.
    std::vector<std::pair<std::string, std::string>> settings;
  };

  // Makes the server and starts it (one to five seconds).
  static absl::StatusOr<std::unique_ptr<TempPostgres>> Make(Options options);
  static absl::StatusOr<std::unique_ptr<TempPostgres>> Make() {
    return Make(Options());
  }

  // Makes a standby of `primary` with that name (its application_name), starts
  // it and returns when it takes connections, which can only read. It gets
  // what the primary writes, over TCP. Settings and ports are its own; the
  // primary must not be the shared one.
  static absl::StatusOr<std::unique_ptr<TempPostgres>> MakeStandby(
      const TempPostgres& primary, const std::string& name);

  // The one server that all tests of this process may share, started at the
  // first call, without fsync. Tests must not stop it. Thread-safe.
  static absl::StatusOr<TempPostgres*> Shared();

  // The URI of a new, empty database on the shared server. Thread-safe.
  static absl::StatusOr<std::string> SharedDatabase();

  TempPostgres(const TempPostgres&) = delete;
  TempPostgres& operator=(const TempPostgres&) = delete;
  ~TempPostgres();

  // Makes a database and returns its URI over TCP. Letters, digits and `_`
  // only.
  absl::StatusOr<std::string> CreateDatabase(const std::string& name);
  // One with a random name.
  absl::StatusOr<std::string> CreateDatabase();

  // The superuser's URI of a database, over TCP and over the unix socket. They
  // stay the same over Stop and Start.
  std::string Uri(const std::string& database) const;
  std::string SocketUri(const std::string& database) const;
  int port() const { return port_; }

  // Runs one or several statements as superuser. Returns the rows of the last
  // one: columns separated by tabs, a newline between rows, NULL as nothing.
  // An error carries the SQLSTATE and PostgreSQL's message.
  absl::StatusOr<std::string> Run(const std::string& sql,
                                  const std::string& database = "postgres");
  // The same in the database of that URI, of any server.
  static absl::StatusOr<std::string> RunAt(const std::string& uri,
                                           const std::string& sql);

  // Lets a standby follow its primary no longer; returns when it can be
  // written.
  absl::Status Promote();

  absl::Status Stop(StopMode mode = StopMode::kFast);
  // At the same port and with the same data. Nothing happens if it runs.
  absl::Status Start();
  absl::Status Restart(StopMode mode = StopMode::kFast);

  // Stops and continues all processes of the server (SIGSTOP, SIGCONT):
  // connections stay and nothing answers. Pause returns when all have stopped.
  absl::Status Pause();
  void Resume();

  bool running() const { return cluster_ != nullptr; }
  // Zero while it is stopped.
  pid_t postmaster_pid() const;
  // What PostgreSQL has logged so far.
  std::string Log() const;

 private:
  TempPostgres(Options options, std::unique_ptr<TempFolder> folder);

  static absl::StatusOr<std::unique_ptr<TempPostgres>> MakeUnstarted(
      Options options);
  absl::Status CopyFrom(const TempPostgres& primary, const std::string& name);

  const Options options_;
  const std::unique_ptr<TempFolder> folder_;
  const std::string data_dir_;
  const std::string hba_file_;
  const int port_;
  std::string socket_folder_;
  std::unique_ptr<EmbeddedCluster> cluster_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SUPPORT_TEMP_POSTGRES_H_
