#include "tests/support/temp_postgres.h"

#include <libpq-fe.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <sstream>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/store/postgres/child_process.h"
#include "server/store/postgres/cluster_folder.h"
#include "server/store/postgres/postgres_binaries.h"
#include "tests/support/port.h"

namespace idempotency {
namespace {

constexpr std::chrono::seconds kPauseTimeout{10};
constexpr std::chrono::seconds kCopyTimeout{60};

std::vector<pid_t> Children(pid_t parent) {
  std::ifstream file(
      absl::StrCat("/proc/", parent, "/task/", parent, "/children"));
  return std::vector<pid_t>(std::istream_iterator<pid_t>(file), {});
}

// Stopped (T), or gone.
bool IsStopped(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  if (!std::getline(file, line)) return true;
  const std::size_t after_name = line.rfind(") ");
  return after_name == std::string::npos || line[after_name + 2] == 'T' ||
         line[after_name + 2] == 'Z';
}

std::string RandomName() {
  std::random_device random;
  return absl::StrFormat("test_%08x%08x", random(), random());
}

std::string Rows(const PGresult* result) {
  std::string text;
  for (int row = 0; row < PQntuples(result); ++row) {
    if (row > 0) text.push_back('\n');
    for (int column = 0; column < PQnfields(result); ++column) {
      if (column > 0) text.push_back('\t');
      text += PQgetvalue(result, row, column);
    }
  }
  return text;
}

}  // namespace

TempPostgres::TempPostgres(Options options, std::unique_ptr<TempFolder> folder)
    : options_(std::move(options)),
      folder_(std::move(folder)),
      data_dir_(folder_->path() + "/data"),
      hba_file_(folder_->path() + "/pg_hba.conf"),
      port_(FreePort()) {}

TempPostgres::~TempPostgres() {
  if (!cluster_) return;
  Resume();
  Stop(StopMode::kImmediate).IgnoreError();
}

absl::StatusOr<std::unique_ptr<TempPostgres>> TempPostgres::Make(
    Options options) {
  absl::StatusOr<std::unique_ptr<TempPostgres>> postgres =
      MakeUnstarted(std::move(options));
  if (!postgres.ok()) return postgres;
  if (absl::Status s = (*postgres)->Start(); !s.ok()) return s;
  return postgres;
}

absl::StatusOr<std::unique_ptr<TempPostgres>> TempPostgres::MakeStandby(
    const TempPostgres& primary, const std::string& name) {
  absl::StatusOr<std::unique_ptr<TempPostgres>> standby =
      MakeUnstarted(primary.options_);
  if (!standby.ok()) return standby;
  if (absl::Status s = (*standby)->CopyFrom(primary, name); !s.ok()) return s;
  if (absl::Status s = (*standby)->Start(); !s.ok()) return s;
  return standby;
}

absl::StatusOr<std::unique_ptr<TempPostgres>> TempPostgres::MakeUnstarted(
    Options options) {
  absl::StatusOr<std::unique_ptr<TempFolder>> folder = TempFolder::Make();
  if (!folder.ok()) return folder.status();
  std::unique_ptr<TempPostgres> postgres(
      new TempPostgres(std::move(options), *std::move(folder)));
  std::ofstream(postgres->hba_file_)
      << "local all,replication all trust\n"
         "host all,replication all 127.0.0.1/32 trust\n";
  return postgres;
}

absl::Status TempPostgres::CopyFrom(const TempPostgres& primary,
                                    const std::string& name) {
  const auto folder = ClusterFolder::Take(data_dir_);
  if (!folder.ok()) return folder.status();
  const auto binaries = FindPostgresBinaries("", std::nullopt);
  if (!binaries.ok()) return binaries.status();
  SpawnOptions copy;
  // It leaves a cluster that is a standby and knows its primary.
  copy.command = {binaries->folder + "/pg_basebackup",
                  absl::StrCat("--dbname=host=127.0.0.1 port=", primary.port_,
                               " user=idempotency application_name=", name),
                  "--pgdata=" + (*folder)->unfinished_cluster_path(),
                  "--write-recovery-conf",
                  "--checkpoint=fast",
                  "--no-sync"};
  copy.run_as = (*folder)->run_as();
  copy.working_directory = (*folder)->path();
  copy.own_session = true;
  copy.dies_with_thread = true;
  const auto done = RunProgram(std::move(copy), kCopyTimeout);
  if (!done.ok()) return done.status();
  if (done->wait_status != 0) {
    return absl::InternalError("pg_basebackup failed: " + done->output);
  }
  return (*folder)->AdoptFinishedCluster();
}

absl::StatusOr<TempPostgres*> TempPostgres::Shared() {
  static const auto shared =
      std::make_unique<absl::StatusOr<std::unique_ptr<TempPostgres>>>(
          Make({.fsync = false, .settings = {}}));
  if (!shared->ok()) return shared->status();
  return (*shared)->get();
}

absl::StatusOr<std::string> TempPostgres::SharedDatabase() {
  absl::StatusOr<TempPostgres*> shared = Shared();
  if (!shared.ok()) return shared.status();
  return (*shared)->CreateDatabase();
}

absl::StatusOr<std::string> TempPostgres::CreateDatabase(
    const std::string& name) {
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
  });
  if (name.empty() || !plain) {
    return absl::InvalidArgumentError(absl::StrCat("database name ", name));
  }
  absl::StatusOr<std::string> made =
      Run(absl::StrCat("CREATE DATABASE \"", name, "\" TEMPLATE template0"));
  if (!made.ok()) return made.status();
  return Uri(name);
}

absl::StatusOr<std::string> TempPostgres::CreateDatabase() {
  return CreateDatabase(RandomName());
}

std::string TempPostgres::Uri(const std::string& database) const {
  return absl::StrCat("postgresql://idempotency@127.0.0.1:", port_, "/",
                      database);
}

std::string TempPostgres::SocketUri(const std::string& database) const {
  // The folder's characters are those of mkdtemp and of TMPDIR, which libpq
  // takes as they are in a query parameter.
  return absl::StrCat("postgresql://idempotency@/", database,
                      "?host=", socket_folder_, "&port=", port_);
}

absl::StatusOr<std::string> TempPostgres::Run(const std::string& sql,
                                              const std::string& database) {
  return RunAt(SocketUri(database), sql);
}

absl::StatusOr<std::string> TempPostgres::RunAt(const std::string& uri,
                                                const std::string& sql) {
  const std::unique_ptr<PGconn, void (*)(PGconn*)> connection(
      PQconnectdb(uri.c_str()), &PQfinish);
  if (PQstatus(connection.get()) != CONNECTION_OK) {
    return absl::UnavailableError(PQerrorMessage(connection.get()));
  }
  const std::unique_ptr<PGresult, void (*)(PGresult*)> result(
      PQexec(connection.get(), sql.c_str()), &PQclear);
  switch (PQresultStatus(result.get())) {
    case PGRES_EMPTY_QUERY:
    case PGRES_COMMAND_OK:
    case PGRES_TUPLES_OK:
      return Rows(result.get());
    default:
      break;
  }
  const char* state = PQresultErrorField(result.get(), PG_DIAG_SQLSTATE);
  return absl::InternalError(absl::StrCat(state == nullptr ? "" : state, " ",
                                          PQerrorMessage(connection.get())));
}

absl::Status TempPostgres::Promote() {
  const auto promoted = Run("SELECT pg_promote()");
  if (!promoted.ok()) return promoted.status();
  return *promoted == "t"
             ? absl::OkStatus()
             : absl::DeadlineExceededError("it is still a standby");
}

absl::Status TempPostgres::Stop(StopMode mode) {
  if (!cluster_) return absl::OkStatus();
  const absl::Status status = cluster_->Stop(mode);
  cluster_.reset();
  return status;
}

absl::Status TempPostgres::Start() {
  if (cluster_) return absl::OkStatus();
  EmbeddedCluster::Options options;
  options.data_dir = data_dir_;
  options.settings = {{"listen_addresses", "127.0.0.1"},
                      {"port", absl::StrCat(port_)},
                      {"hba_file", hba_file_},
                      {"max_connections", "100"},
                      {"fsync", options_.fsync ? "on" : "off"},
                      // One call instead of one for each of 1,000 files.
                      {"recovery_init_sync_method", "syncfs"}};
  options.settings.insert(options.settings.end(), options_.settings.begin(),
                          options_.settings.end());
  // The files of a new cluster need not survive the machine.
  options.initdb_arguments = {"--no-sync"};
  absl::StatusOr<std::unique_ptr<EmbeddedCluster>> cluster =
      EmbeddedCluster::Start(std::move(options));
  if (!cluster.ok()) return cluster.status();
  cluster_ = *std::move(cluster);
  socket_folder_ = cluster_->socket_folder();
  return absl::OkStatus();
}

absl::Status TempPostgres::Restart(StopMode mode) {
  if (absl::Status s = Stop(mode); !s.ok()) return s;
  return Start();
}

absl::Status TempPostgres::Pause() {
  if (!cluster_) return absl::FailedPreconditionError("it does not run");
  // The postmaster first, so that no further process appears.
  const auto deadline = std::chrono::steady_clock::now() + kPauseTimeout;
  const pid_t postmaster = cluster_->postmaster_pid();
  kill(postmaster, SIGSTOP);
  while (!IsStopped(postmaster)) {
    if (std::chrono::steady_clock::now() > deadline) {
      return absl::DeadlineExceededError("the postmaster does not stop");
    }
    std::this_thread::yield();
  }
  const std::vector<pid_t> children = Children(postmaster);
  for (const pid_t child : children) kill(child, SIGSTOP);
  while (!std::all_of(children.begin(), children.end(), &IsStopped)) {
    if (std::chrono::steady_clock::now() > deadline) {
      return absl::DeadlineExceededError("a session does not stop");
    }
    std::this_thread::yield();
  }
  return absl::OkStatus();
}

void TempPostgres::Resume() {
  if (!cluster_) return;
  const pid_t postmaster = cluster_->postmaster_pid();
  for (const pid_t child : Children(postmaster)) kill(child, SIGCONT);
  kill(postmaster, SIGCONT);
}

pid_t TempPostgres::postmaster_pid() const {
  return cluster_ ? cluster_->postmaster_pid() : 0;
}

std::string TempPostgres::Log() const {
  std::ifstream file(data_dir_ + "/postgres.log", std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace idempotency
