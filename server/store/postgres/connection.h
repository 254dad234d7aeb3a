// One session with the database, opened when it is needed and thrown away on
// any doubt.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_CONNECTION_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_CONNECTION_H_

#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/clock.h"
#include "server/store/postgres/connection_options.h"
#include "server/store/postgres/pqxx_compat.h"
#include "server/store/postgres/sqlstate.h"
#include "server/store/postgres/statement_runner.h"

namespace idempotency {

// Not thread-safe. No function throws, sleeps or tries to connect more than
// twice; each blocks for at most the options' timeouts, if there is a watch
// that somebody drives.
//
// Errors are those of store.h. A session that does not have the required
// settings, or whose server is too old, is FAILED_PRECONDITION with the remedy.
class Connection final : public StatementRunner {
 public:
  enum class Settings { kChecked, kAsTheyAre };

  // `clock` must outlive the connection. Opens nothing yet.
  Connection(ConnectionOptions options, const Clock& clock,
             Settings settings = Settings::kChecked);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() override;

  const ConnectionOptions& options() const { return options_; }

  // Runs one statement, which commits by itself. It is counted, if there are
  // metrics to count it in, once for each time that it is sent.
  absl::StatusOr<pqxx::result> Run(const Statement& statement,
                                   const Parameters& parameters) override;

  // Runs `steps` in one transaction and commits it if they return OK.
  // Exceptions of libpqxx that leave `steps` are handled.
  absl::Status Transact(
      std::string_view operation,
      const std::function<absl::Status(pqxx::transaction_base&)>& steps);

 private:
  struct Session;
  class UnderWatch;

  absl::Status EnsureOpen();
  absl::Status Open();
  absl::Status CheckServer();
  // Returns `failure`'s status; drops the session if it asks for that.
  absl::Status Note(const Failure& failure);
  bool IsOpen() const;
  bool IsNamed(const Statement& statement) const;
  absl::Status MakeReady(const Statement& statement, bool& stale);
  absl::StatusOr<pqxx::result> RunOnce(const Statement& statement,
                                       const Parameters& parameters,
                                       bool& stale);
  // Throws what libpqxx throws.
  pqxx::result Execute(const Statement& statement,
                       const Parameters& parameters);
  absl::StatusOr<pqxx::result> Send(const Statement& statement,
                                    const Parameters& parameters, bool& stale);
  // Null where nothing is counted.
  StatementMetrics* CountsOf(const Statement& statement) const;

  const ConnectionOptions options_;
  const Clock& clock_;
  const Settings settings_;
  std::unique_ptr<Session> session_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_CONNECTION_H_
