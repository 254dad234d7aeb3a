#include "server/store/postgres/connection.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/postgres/conninfo.h"

namespace idempotency {
namespace {

// Only migrations are transactions; a change of a big table takes its time.
constexpr std::chrono::hours kTransactionTimeMax{24};

// Up to 14.3, CREATE INDEX CONCURRENTLY may leave rows out of a unique index.
constexpr int kOldestServer = 140004;

std::string AlterRole(const std::string& role, const SessionSetting& setting) {
  std::string quoted_role;
  for (const char c : role) {
    quoted_role.push_back(c);
    if (c == '"') quoted_role.push_back('"');
  }
  return "ALTER ROLE \"" + quoted_role + "\" SET " + setting.name + " = '" +
         setting.value + "';";
}

// Observes how long it lived.
class Stopwatch {
 public:
  // `counts` may be null: then nothing is observed.
  Stopwatch(const Clock& clock, StatementMetrics* counts)
      : clock_(clock), counts_(counts), started_(clock.Now()) {}
  ~Stopwatch() {
    if (counts_ != nullptr) {
      ObserveTime(counts_->time, clock_.Now() - started_);
    }
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  const Clock& clock_;
  StatementMetrics* const counts_;
  const SteadyTime started_;
};

}  // namespace

// The members are destroyed in reverse order: the registration must go first.
struct Connection::Session {
  Session(const std::string& conninfo) : connection(conninfo) {
    pqxx_compat::SetUp(connection);
    notices.emplace(connection, [this](std::string_view notice) {
      unconfirmed |= IsUnconfirmedWriteNotice(notice);
    });
  }

  bool unconfirmed = false;
  pqxx::connection connection;
  std::optional<pqxx_compat::NoticeRegistration> notices;
  std::set<std::string_view> prepared;
  // Goes before the connection and its socket do.
  std::optional<StatementWatch::Guard> guard;
};

// Keeps the open session's statements under watch for as long as it lives, or
// until the session is discarded.
class Connection::UnderWatch {
 public:
  UnderWatch(Connection& connection, std::chrono::milliseconds timeout)
      : connection_(connection) {
    const ConnectionOptions& options = connection.options_;
    Session& session = *connection.session_;
    session.guard.emplace(
        options.watch, session.connection.sock(),
        connection.clock_.Now() + timeout + options.answer_margin);
  }
  ~UnderWatch() {
    if (connection_.session_ != nullptr) connection_.session_->guard.reset();
  }
  UnderWatch(const UnderWatch&) = delete;
  UnderWatch& operator=(const UnderWatch&) = delete;

 private:
  Connection& connection_;
};

Connection::Connection(ConnectionOptions options, const Clock& clock,
                       Settings settings)
    : options_(std::move(options)), clock_(clock), settings_(settings) {}

Connection::~Connection() = default;

bool Connection::IsOpen() const {
  return session_ != nullptr && session_->connection.is_open();
}

absl::Status Connection::Note(const Failure& failure) {
  if (failure.discard || !IsOpen()) session_.reset();
  return failure.status;
}

absl::Status Connection::EnsureOpen() {
  const bool not_durable =
      options_.not_durable != nullptr && *options_.not_durable;
  if (IsOpen() && !not_durable) return absl::OkStatus();
  session_.reset();
  absl::Status status = Open();
  if (!status.ok()) session_.reset();
  return status;
}

absl::Status Connection::Open() {
  const absl::StatusOr<std::string> conninfo = MakeConninfo(options_);
  if (!conninfo.ok()) return conninfo.status();
  try {
    session_ = std::make_unique<Session>(*conninfo);
    return CheckServer();
  } catch (...) {
    return FailureOfCurrentException("connect", Phase::kConnect).status;
  }
}

absl::Status Connection::CheckServer() {
  if (session_->connection.server_version() < kOldestServer) {
    return absl::FailedPreconditionError(
        "PostgreSQL 14.4 or newer is needed: older ones can leave rows out of "
        "a unique index");
  }
  const std::vector<SessionSetting> required = RequiredSettings(options_);
  std::string query =
      "SELECT current_user, current_setting('server_encoding'), "
      "current_setting('fsync'), current_setting('full_page_writes'), "
      "current_setting('synchronous_commit'), "
      "current_setting('synchronous_standby_names')";
  constexpr std::size_t kFirstRequired = 6;
  for (const SessionSetting& setting : required) {
    query += ", current_setting('" + setting.name + "')";
  }
  const UnderWatch under_watch(*this, options_.statement_timeout);
  pqxx::nontransaction transaction(session_->connection);
  const pqxx::result found = transaction.exec(query);
  if (std::string_view(found[0][1].c_str()) != "UTF8") {
    return absl::FailedPreconditionError(
        "the database must have the encoding UTF8: CREATE DATABASE ... "
        "ENCODING 'UTF8' TEMPLATE template0");
  }
  if (settings_ == Settings::kAsTheyAre) return absl::OkStatus();
  if (absl::Status status =
          CheckDurability({.fsync = found[0][2].c_str(),
                           .full_page_writes = found[0][3].c_str(),
                           .synchronous_commit = found[0][4].c_str(),
                           .synchronous_standby_names = found[0][5].c_str()},
                          options_.durability);
      !status.ok()) {
    return status;
  }
  std::string remedy;
  for (std::size_t i = 0; i < required.size(); ++i) {
    const auto column = static_cast<pqxx::row::size_type>(i + kFirstRequired);
    if (found[0][column].c_str() == required[i].value) continue;
    absl::StrAppend(&remedy, " ", AlterRole(found[0][0].c_str(), required[i]));
  }
  if (remedy.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the database sessions lack settings; run, and let the pooler open new "
      "connections:",
      remedy));
}

bool Connection::IsNamed(const Statement& statement) const {
  return statement.plan == Plan::kKept && !options_.pooled;
}

absl::Status Connection::MakeReady(const Statement& statement, bool& stale) {
  if (!IsNamed(statement)) return absl::OkStatus();
  try {
    if (session_->prepared.count(statement.name) == 0) {
      pqxx_compat::Prepare(session_->connection, std::string(statement.name),
                           std::string(statement.sql));
      session_->prepared.insert(statement.name);
    }
    return absl::OkStatus();
  } catch (...) {
    // The statement itself has not been sent yet.
    const Failure failure =
        FailureOfCurrentException(statement.name, Phase::kRead);
    stale = failure.stale_statement;
    return Note(failure);
  }
}

StatementMetrics* Connection::CountsOf(const Statement& statement) const {
  return options_.metrics == nullptr
             ? nullptr
             : &options_.metrics->statements.At(statement.name);
}

absl::StatusOr<pqxx::result> Connection::RunOnce(const Statement& statement,
                                                 const Parameters& parameters,
                                                 bool& stale) {
  absl::StatusOr<pqxx::result> result = Send(statement, parameters, stale);
  StatementMetrics* const counts = CountsOf(statement);
  if (!result.ok() && counts != nullptr) {
    Count(counts->errors[SetbackOf(result.status().code())]);
  }
  return result;
}

pqxx::result Connection::Execute(const Statement& statement,
                                 const Parameters& parameters) {
  if (statement.plan == Plan::kInOrder) {
    pqxx::work transaction(session_->connection);
    transaction.exec("SET LOCAL enable_indexscan = on");
    pqxx::result result = pqxx_compat::RunUnnamed(
        transaction, std::string(statement.sql), parameters);
    transaction.commit();
    return result;
  }
  pqxx::nontransaction transaction(session_->connection);
  return IsNamed(statement)
             ? pqxx_compat::RunPrepared(transaction,
                                        std::string(statement.name), parameters)
             : pqxx_compat::RunUnnamed(transaction, std::string(statement.sql),
                                       parameters);
}

absl::StatusOr<pqxx::result> Connection::Send(const Statement& statement,
                                              const Parameters& parameters,
                                              bool& stale) {
  stale = false;
  if (absl::Status status = EnsureOpen(); !status.ok()) return status;
  const UnderWatch under_watch(*this, options_.statement_timeout);
  if (absl::Status status = MakeReady(statement, stale); !status.ok()) {
    return status;
  }
  const Stopwatch stopwatch(clock_, CountsOf(statement));
  const bool writes = statement.effect == Effect::kWrite;
  session_->unconfirmed = false;
  try {
    pqxx::result result = Execute(statement, parameters);
    if (!writes || !session_->unconfirmed) return result;
  } catch (...) {
    const Failure failure = FailureOfCurrentException(
        statement.name, writes ? Phase::kWrite : Phase::kRead);
    stale = failure.stale_statement;
    return Note(failure);
  }
  return Note(FailureOfUnconfirmedWrite(statement.name));
}

absl::StatusOr<pqxx::result> Connection::Run(const Statement& statement,
                                             const Parameters& parameters) {
  bool stale = false;
  absl::StatusOr<pqxx::result> result = RunOnce(statement, parameters, stale);
  if (!stale) return result;
  return RunOnce(statement, parameters, stale);
}

absl::Status Connection::Transact(
    std::string_view operation,
    const std::function<absl::Status(pqxx::transaction_base&)>& steps) {
  if (absl::Status status = EnsureOpen(); !status.ok()) return status;
  session_->unconfirmed = false;
  const UnderWatch under_watch(*this, kTransactionTimeMax);
  try {
    pqxx::work transaction(session_->connection);
    if (absl::Status status = steps(transaction); !status.ok()) return status;
    transaction.commit();
    if (!session_->unconfirmed) return absl::OkStatus();
  } catch (...) {
    return Note(FailureOfCurrentException(operation, Phase::kWrite));
  }
  return Note(FailureOfUnconfirmedWrite(operation));
}

}  // namespace idempotency
