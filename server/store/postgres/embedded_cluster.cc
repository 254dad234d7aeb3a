#include "server/store/postgres/embedded_cluster.h"

#include <libpq-fe.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/store/postgres/child_process.h"

extern char** environ;

namespace idempotency {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kSuperuser[] = "idempotency";
constexpr char kDatabase[] = "idempotency";
constexpr int kPort = 5432;
// How often a starting or stopping server is looked at.
constexpr milliseconds kPollInterval{20};
constexpr seconds kReportInterval{10};
constexpr seconds kImmediateStopTimeout{10};
constexpr seconds kKillTimeout{10};
constexpr std::size_t kLogTailBytes = 2000;

// What PostgreSQL is started with. Its log must hold no key, body or other
// value of a caller, so statements and parameters are left out, and so are the
// DETAIL lines, which quote rows and the statement of a crashed session.
constexpr std::pair<const char*, const char*> kSettings[] = {
    {"listen_addresses", ""},
    {"unix_socket_permissions", "0700"},
    {"cluster_name", "idempotency"},
    {"max_connections", "50"},
    {"shared_buffers", "128MB"},
    {"fsync", "on"},
    {"synchronous_commit", "on"},
    {"full_page_writes", "on"},
    {"logging_collector", "off"},
    {"log_destination", "stderr"},
    {"log_line_prefix", "%m [%p] "},
    {"log_statement", "none"},
    {"log_min_duration_statement", "-1"},
    {"log_min_error_statement", "panic"},
    {"log_error_verbosity", "terse"},
    {"log_parameter_max_length", "0"},
    {"log_parameter_max_length_on_error", "0"},
};

milliseconds Left(Clock::time_point deadline) {
  return std::max(milliseconds(0),
                  std::chrono::ceil<milliseconds>(deadline - Clock::now()));
}

// Ours, without what would change PostgreSQL's settings or language.
std::vector<std::string> ServerEnvironment() {
  std::vector<std::string> kept;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const absl::string_view text = *variable;
    if (absl::StartsWith(text, "PG") || absl::StartsWith(text, "LC_") ||
        absl::StartsWith(text, "LANG")) {
      continue;
    }
    kept.emplace_back(text);
  }
  kept.emplace_back("LC_ALL=C");
  return kept;
}

// The last lines of the log from `offset` on.
std::string LogTail(const std::string& path, std::uintmax_t offset) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(0, std::ios::end);
  const auto size = static_cast<std::uintmax_t>(
      std::max<std::streamoff>(0, static_cast<std::streamoff>(file.tellg())));
  if (size > kLogTailBytes) offset = std::max(offset, size - kLogTailBytes);
  file.seekg(static_cast<std::streamoff>(std::min(offset, size)));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::uintmax_t FileSize(const std::string& path) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

// What a running postmaster writes into its cluster about itself.
struct PostmasterFile {
  pid_t pid = 0;
  int port = 0;
  std::string socket_folder;
  // Whether it says that it takes connections.
  bool ready = false;
};

std::optional<PostmasterFile> ReadPostmasterFile(const std::string& cluster) {
  std::ifstream file(cluster + "/postmaster.pid");
  PostmasterFile found;
  std::string data_folder;
  std::string start_time;
  std::string port;
  std::string pid;
  std::string line;
  if (!std::getline(file, pid) || !std::getline(file, data_folder) ||
      !std::getline(file, start_time) || !std::getline(file, port) ||
      !std::getline(file, found.socket_folder) ||
      !absl::SimpleAtoi(pid, &found.pid) ||
      !absl::SimpleAtoi(port, &found.port) || found.pid <= 0) {
    return std::nullopt;
  }
  // Its address and shared memory, then its state.
  for (int i = 0; i < 3; ++i) {
    if (!std::getline(file, line)) return found;
  }
  found.ready = absl::StartsWith(line, "ready");
  return found;
}

// Whether the process is the server of this cluster, and not some other one
// that got the number of a dead one. Zombies have no command line.
bool IsPostmasterOf(pid_t pid, const std::string& cluster) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/cmdline"), std::ios::binary);
  const std::string command(std::istreambuf_iterator<char>(file), {});
  const std::vector<std::string> words = absl::StrSplit(command, '\0');
  return fs::path(words[0]).filename() == "postgres" &&
         std::find(words.begin(), words.end(), cluster) != words.end();
}

std::string PercentEncoded(const std::string& text) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (byte >= 'a' && byte <= 'z') ||
                       (byte >= 'A' && byte <= 'Z') ||
                       (byte >= '0' && byte <= '9') || byte == '-' ||
                       byte == '_' || byte == '.' || byte == '~';
    if (plain) {
      encoded.push_back(c);
    } else {
      encoded.push_back('%');
      encoded.push_back(kDigits[byte >> 4]);
      encoded.push_back(kDigits[byte & 15]);
    }
  }
  return encoded;
}

std::string Uri(const std::string& socket_folder, int port,
                const std::string& database) {
  return absl::StrCat("postgresql://", kSuperuser, "@/",
                      PercentEncoded(database),
                      "?host=", PercentEncoded(socket_folder), "&port=", port);
}

// Asks the file first: a refused connection would leave a line in the log.
bool Answers(const std::optional<PostmasterFile>& server, pid_t pid) {
  if (!server || server->pid != pid || !server->ready) return false;
  const std::string uri = Uri(server->socket_folder, server->port, "postgres");
  return PQping(absl::StrCat(uri, "&connect_timeout=2").c_str()) == PQPING_OK;
}

// Quoted for a setting that is a list of folders.
std::string QuotedFolder(const std::string& folder) {
  std::string quoted = "\"";
  for (const char c : folder) {
    if (c == '"') quoted.push_back('"');
    quoted.push_back(c);
  }
  quoted.push_back('"');
  return quoted;
}

absl::Status CannotEnter(const std::string& folder,
                         const absl::Status& refusal) {
  return absl::FailedPreconditionError(absl::StrCat(
      refusal.message(), " (in ", folder,
      "): the user that PostgreSQL runs as must be able to enter that folder "
      "and those above it; choose another one with --data_dir, such as "
      "/var/lib/idempotency"));
}

// Spawn's refusals that come from the folder, with what helps.
absl::Status Explained(const std::string& folder, const absl::Status& refusal) {
  if (absl::StrContains(refusal.message(), ": chdir")) {
    return CannotEnter(folder, refusal);
  }
  return refusal;
}

}  // namespace

EmbeddedCluster::EmbeddedCluster(Options options,
                                 std::unique_ptr<ClusterFolder> folder,
                                 PostgresBinaries binaries)
    : options_(std::move(options)),
      binaries_(std::move(binaries)),
      log_file_(folder->log_path()),
      folder_(std::move(folder)) {}

EmbeddedCluster::~EmbeddedCluster() { Stop().IgnoreError(); }

absl::StatusOr<std::unique_ptr<EmbeddedCluster>> EmbeddedCluster::Start(
    Options options) {
  const Deadline deadline = Clock::now() + options.start_timeout;
  absl::StatusOr<std::unique_ptr<ClusterFolder>> folder =
      ClusterFolder::Take(options.data_dir);
  if (!folder.ok()) return folder.status();
  const absl::StatusOr<std::optional<int>> major = (*folder)->ClusterMajor();
  if (!major.ok()) return major.status();
  absl::StatusOr<PostgresBinaries> binaries =
      FindPostgresBinaries(options.binaries, *major);
  if (!binaries.ok()) return binaries.status();
  if (*major && **major != binaries->major) {
    return absl::FailedPreconditionError(absl::StrCat(
        (*folder)->path(), " was made by PostgreSQL ", **major,
        ", but the programs in ", binaries->folder, " are of version ",
        binaries->major, ": install the package `postgresql-", **major,
        "`, move the data over with pg_upgrade or pg_dump, or choose another "
        "folder with --data_dir"));
  }
  std::unique_ptr<EmbeddedCluster> cluster(new EmbeddedCluster(
      std::move(options), *std::move(folder), *std::move(binaries)));
  if (!*major) {
    if (absl::Status s = cluster->MakeCluster(deadline); !s.ok()) return s;
  }
  const absl::StatusOr<bool> adopted = cluster->Adopt(deadline);
  if (!adopted.ok()) return adopted.status();
  if (!*adopted) {
    if (absl::Status s = cluster->StartServer(deadline); !s.ok()) return s;
  }
  if (absl::Status s = cluster->MakeDatabase(); !s.ok()) return s;
  return cluster;
}

void EmbeddedCluster::Report(const std::string& what) const {
  if (options_.progress) options_.progress(what);
}

absl::Status EmbeddedCluster::MakeCluster(Deadline deadline) {
  Report(absl::StrCat("making a new database cluster in ", folder_->path(),
                      " (about 5 s)"));
  const std::string unfinished = folder_->unfinished_cluster_path();
  std::error_code error;
  fs::remove_all(unfinished, error);
  if (error) {
    return absl::ErrnoToStatus(error.value(),
                               absl::StrCat("cannot remove ", unfinished));
  }
  SpawnOptions initdb;
  initdb.command = {binaries_.folder + "/initdb", "--pgdata=" + unfinished,
                    absl::StrCat("--username=", kSuperuser), "--locale=C.UTF-8",
                    "--encoding=UTF8",
                    // The socket's folder is the guard.
                    "--auth-local=trust", "--auth-host=reject"};
  initdb.command.insert(initdb.command.end(), options_.initdb_arguments.begin(),
                        options_.initdb_arguments.end());
  initdb.environment = ServerEnvironment();
  initdb.run_as = folder_->run_as();
  initdb.working_directory = folder_->path();
  initdb.own_session = true;
  // So that a killed caller leaves none behind.
  initdb.dies_with_thread = true;
  absl::StatusOr<ProgramResult> result =
      RunProgram(std::move(initdb), Left(deadline));
  if (!result.ok()) return Explained(folder_->path(), result.status());
  if (result->wait_status != 0) {
    return absl::InternalError(
        absl::StrCat("initdb failed (", DescribeWaitStatus(result->wait_status),
                     "): ", result->output));
  }
  return folder_->AdoptFinishedCluster();
}

// Returns false if no server of this cluster runs.
absl::StatusOr<bool> EmbeddedCluster::Adopt(Deadline deadline) {
  const std::string cluster = folder_->cluster_path();
  std::optional<PostmasterFile> found = ReadPostmasterFile(cluster);
  if (!found || !IsPostmasterOf(found->pid, cluster)) return false;
  Report(absl::StrCat("found PostgreSQL (process ", found->pid,
                      ") left running in ", folder_->path(), ", taking it"));
  const pid_t pid = found->pid;
  while (IsPostmasterOf(pid, cluster)) {
    found = ReadPostmasterFile(cluster);
    if (Answers(found, pid)) {
      postmaster_ = found->pid;
      port_ = found->port;
      socket_folder_ = found->socket_folder;
      return true;
    }
    if (Left(deadline).count() == 0) {
      return absl::DeadlineExceededError(absl::StrCat(
          "PostgreSQL (process ", pid, ") runs in ", folder_->path(),
          " but does not answer: stop it with kill -INT ", pid,
          " and start again"));
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  // It was on its way out.
  return false;
}

absl::Status EmbeddedCluster::StartServer(Deadline deadline) {
  while (true) {
    absl::Status status = StartServerOnce(deadline);
    // Sessions of a killed postmaster end a moment after it.
    const bool predecessor_is_ending =
        absl::StrContains(status.message(), "shared memory block");
    if (!predecessor_is_ending || Left(deadline).count() == 0) return status;
    std::this_thread::sleep_for(10 * kPollInterval);
  }
}

absl::Status EmbeddedCluster::StartServerOnce(Deadline deadline) {
  Report(absl::StrCat("starting PostgreSQL ", binaries_.major, " in ",
                      folder_->path()));
  if (socket_folder_.empty()) {
    absl::StatusOr<std::string> socket_folder = folder_->MakeSocketFolder();
    if (!socket_folder.ok()) return socket_folder.status();
    socket_folder_ = *std::move(socket_folder);
  }
  folder_->TrimLog();
  SpawnOptions server;
  server.command = {binaries_.folder + "/postgres", "-D",
                    folder_->cluster_path()};
  const auto set = [&server](absl::string_view name, absl::string_view value) {
    server.command.push_back("-c");
    server.command.push_back(absl::StrCat(name, "=", value));
  };
  for (const auto& [name, value] : kSettings) set(name, value);
  port_ = kPort;
  for (const auto& [name, value] : options_.settings) {
    set(name, value);
    if (name == "port" && !absl::SimpleAtoi(value, &port_)) {
      return absl::InvalidArgumentError("port is not a number");
    }
  }
  set("port", absl::StrCat(port_));
  set("unix_socket_directories", QuotedFolder(socket_folder_));
  server.environment = ServerEnvironment();
  server.run_as = folder_->run_as();
  server.working_directory = folder_->path();
  server.output_file = log_file_;
  // Neither the terminal's Ctrl-C nor its hang-up may reach the database.
  server.own_session = true;
  const std::uintmax_t log_offset = FileSize(log_file_);
  absl::StatusOr<pid_t> started = Spawn(server);
  if (!started.ok()) return Explained(folder_->path(), started.status());
  postmaster_ = *started;
  own_child_ = true;
  return WaitUntilAnswering(deadline, log_offset);
}

absl::Status EmbeddedCluster::WaitUntilAnswering(Deadline deadline,
                                                 std::uintmax_t log_offset) {
  Deadline next_report = Clock::now() + kReportInterval;
  while (!Answers(ReadPostmasterFile(folder_->cluster_path()), postmaster_)) {
    if (const std::optional<int> ended =
            WaitForChild(postmaster_, kPollInterval)) {
      postmaster_ = 0;
      return absl::InternalError(
          absl::StrCat("PostgreSQL ended (", DescribeWaitStatus(*ended),
                       ") while it was started; the end of ", log_file_, ":\n",
                       LogTail(log_file_, log_offset)));
    }
    if (Left(deadline).count() == 0) {
      return absl::DeadlineExceededError(
          absl::StrCat("PostgreSQL did not answer within ",
                       options_.start_timeout.count(), " ms; the end of ",
                       log_file_, ":\n", LogTail(log_file_, log_offset)));
    }
    if (Clock::now() >= next_report) {
      Report("PostgreSQL is not ready yet (it recovers after a crash)");
      next_report = Clock::now() + kReportInterval;
    }
  }
  return absl::OkStatus();
}

absl::Status EmbeddedCluster::MakeDatabase() const {
  const std::unique_ptr<PGconn, void (*)(PGconn*)> connection(
      PQconnectdb(absl::StrCat(uri("postgres"), "&connect_timeout=10").c_str()),
      &PQfinish);
  if (PQstatus(connection.get()) != CONNECTION_OK) {
    return absl::InternalError(absl::StrCat("cannot enter the new database: ",
                                            PQerrorMessage(connection.get())));
  }
  using Result = std::unique_ptr<PGresult, void (*)(PGresult*)>;
  const Result found(
      PQexec(connection.get(),
             absl::StrCat("SELECT 1 FROM pg_database WHERE datname = '",
                          kDatabase, "'")
                 .c_str()),
      &PQclear);
  if (PQresultStatus(found.get()) == PGRES_TUPLES_OK &&
      PQntuples(found.get()) == 1) {
    return absl::OkStatus();
  }
  const Result made(PQexec(connection.get(),
                           absl::StrCat("CREATE DATABASE ", kDatabase).c_str()),
                    &PQclear);
  if (PQresultStatus(made.get()) == PGRES_COMMAND_OK) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cannot make the database: ",
                                          PQerrorMessage(connection.get())));
}

std::string EmbeddedCluster::uri(const std::string& database) const {
  return Uri(socket_folder_, port_, database);
}

bool EmbeddedCluster::WaitUntilGone(milliseconds timeout) {
  if (own_child_) return WaitForChild(postmaster_, timeout).has_value();
  const Deadline deadline = Clock::now() + timeout;
  while (IsPostmasterOf(postmaster_, folder_->cluster_path())) {
    if (Left(deadline).count() == 0) return false;
    std::this_thread::sleep_for(kPollInterval);
  }
  return true;
}

absl::Status EmbeddedCluster::Stop(StopMode mode) {
  if (!folder_) return absl::OkStatus();
  absl::Status status;
  if (postmaster_ != 0) {
    // A number that was given to another process must not be signalled: an
    // adopted server's is free as soon as it ends.
    const auto stop_with = [this](int signal, milliseconds timeout) {
      if (own_child_ || IsPostmasterOf(postmaster_, folder_->cluster_path())) {
        kill(postmaster_, signal);
      }
      return WaitUntilGone(timeout);
    };
    if (!(mode == StopMode::kFast &&
          stop_with(SIGINT, options_.stop_timeout)) &&
        !stop_with(SIGQUIT, kImmediateStopTimeout) &&
        !stop_with(SIGKILL, kKillTimeout)) {
      status = absl::DeadlineExceededError(
          absl::StrCat("PostgreSQL (process ", postmaster_, ") does not stop"));
    }
    postmaster_ = 0;
  }
  if (!socket_folder_.empty()) RemoveSocketFolder(socket_folder_);
  folder_.reset();
  return status;
}

}  // namespace idempotency
