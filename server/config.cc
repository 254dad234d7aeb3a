#include "server/config.h"

#include <unistd.h>

#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/core/limits.h"
#include "server/flag_values.h"

namespace limits = idempotency::limits;

ABSL_FLAG(std::string, listen, "127.0.0.1:50051",
          "Address and port for gRPC. Beyond loopback only with TLS "
          "(--tls_certificate) or with --allow_plaintext, where keys and "
          "responses cross the network readably.");
ABSL_FLAG(std::string, admin_listen, "",
          "IPv4 address and port for Prometheus metrics over HTTP, at "
          "/metrics. Empty: none. Plain HTTP without authentication, on any "
          "address: it shows counts and names of policies, never what callers "
          "send.");
ABSL_FLAG(std::string, database, "",
          "libpq URI of PostgreSQL 14.4 or newer, such as "
          "postgresql://user@host/name. Empty: the server makes and runs a "
          "private cluster in --data_dir, as long as it listens on loopback.");
ABSL_FLAG(std::string, data_dir, "",
          "Folder of the private cluster. Empty: /var/lib/idempotency for "
          "root, else $XDG_STATE_HOME/idempotency or "
          "~/.local/state/idempotency.");
ABSL_FLAG(bool, migrate, false,
          "Apply the migrations that the database lacks, and go on. Safe when "
          "many replicas start at once. The private cluster is always "
          "migrated.");
ABSL_FLAG(bool, sweep_only, false,
          "Serve no calls and open no port for gRPC: only delete what has "
          "expired in --database, until SIGTERM. For databases whose records "
          "services write in their own transactions, without a coordinator. "
          "Goes with --migrate and --admin_listen.");
ABSL_FLAG(bool, database_pooled, false,
          "The database is reached through a pooler in transaction mode "
          "(PgBouncer): no session settings and no prepared statements; the "
          "role must carry the settings, which are checked at start.");
ABSL_FLAG(bool, database_citus, false,
          "The tables are distributed by Citus: the reaper uses its slower "
          "form, which Citus runs.");
ABSL_FLAG(std::string, require_durability, "none",
          "What acknowledged records must outlive, or calls are told "
          "STORE_UNAVAILABLE: `crash` of the database's machine (fsync and "
          "full_page_writes on, synchronous_commit not off), or `failover`, "
          "the loss of the primary (synchronous_standby_names too). Asked of "
          "each session when it is opened, and every 2 s. `none`: whatever the "
          "database is set to.");
ABSL_FLAG(std::string, downstream_namespace, "",
          "UUID under which downstream keys are derived. Empty: the one that "
          "the first migration drew (it is in idempotency_settings, and so in "
          "backups). Never change it while payments may be retried.");
ABSL_FLAG(int, lanes, 1,
          "Threads with a database connection each, 1 to 64. Fewer lanes mean "
          "larger batches and cheaper statements; more help when the database "
          "is far away. One more connection serves calls that met a lock.");
ABSL_FLAG(std::int64_t, queue_items_max, limits::kQueueItemsMax,
          "Calls that may wait for a lane; above it callers are told "
          "OVERLOADED at once, which is better than a late answer. Calls that "
          "finish what was begun (Finalize, Release, renewals) may be twice "
          "as many.");
ABSL_FLAG(absl::Duration, queue_wait_max,
          absl::FromChrono(limits::kQueueWaitMaxDefault),
          "When more than a batch waits for a lane, a call whose answer is "
          "expected later than this, or than its deadline, is told OVERLOADED "
          "at once, and when to come back. Calls that finish what was begun "
          "get four times as long. 0: calls wait until their deadlines.");
ABSL_FLAG(std::int64_t, body_bytes_max, limits::kBodyBytesDefault,
          "Longest response body that is kept, in bytes, up to 3 MiB. A longer "
          "one is recorded without its body: work that was done must not be "
          "done again because its answer was long.");
ABSL_FLAG(std::int64_t, replay_cache_bytes, limits::kReplayCacheBytesDefault,
          "Memory, in bytes, for replays that are answered without asking the "
          "database: recorded responses that were asked for, each for what is "
          "left of its life and at most 60 s. Rows that are deleted by hand "
          "are replayed as long as that. 0: none are kept.");
ABSL_FLAG(std::int64_t, reply_bytes_max, limits::kReplyBytesMax,
          "Memory for answers that their callers have not read yet, in bytes, "
          "16 MiB to 1 TiB. A Claim or Lookup whose recorded response finds no "
          "room is told OVERLOADED, and loses nothing by asking again.");
ABSL_FLAG(absl::Duration, deadline_max,
          absl::FromChrono(limits::kDeadlineDefault),
          "Deadline of calls that bring none or a longer one (without "
          "`wait`), since gRPC itself sets none.");
ABSL_FLAG(absl::Duration, store_patience, absl::Seconds(2),
          "How long a call is kept while the database can't be reached, "
          "before it is told STORE_UNAVAILABLE: long enough for a restart of "
          "a connection, short enough for the caller's next try elsewhere.");
ABSL_FLAG(int, reaper_batch, 5000,
          "The most expired records that the reaper deletes in one statement, "
          "1 to 100000. It takes fewer while statements take longer than 25 "
          "ms, and rests twice as long as it works.");
ABSL_FLAG(absl::Duration, reaper_pause, absl::Seconds(5),
          "How long the reaper rests when there is nothing more to delete.");
ABSL_FLAG(absl::Duration, conflict_retention, absl::Hours(90 * 24),
          "How long refused responses (the evidence of work done twice) are "
          "kept after they were last seen.");
ABSL_FLAG(std::string, tls_certificate, "",
          "PEM file with the server's certificate and what leads from it to "
          "its CA; makes gRPC speak TLS (1.2 or newer) only. Changed files are "
          "picked up within seconds, without restart, for new connections: see "
          "--max_connection_age. Empty: no TLS.");
ABSL_FLAG(std::string, tls_key, "",
          "PEM file with the key of --tls_certificate, without passphrase. "
          "Until a new key and a new certificate fit together, the last pair "
          "that did is served.");
ABSL_FLAG(std::string, tls_client_ca, "",
          "PEM file with the CAs that may sign clients' certificates; clients "
          "must then show one (mTLS). Empty: clients show none, and anybody "
          "who reaches the port may call.");
ABSL_FLAG(bool, allow_plaintext, false,
          "Accept plaintext connections from beyond loopback. Only behind a "
          "mesh or tunnel that encrypts and authenticates.");
ABSL_FLAG(bool, reflection, true,
          "Serve gRPC reflection, so that grpcurl and the like can list and "
          "describe the services.");
ABSL_FLAG(absl::Duration, max_connection_age, absl::ZeroDuration(),
          "Ask clients to reconnect after so long, so that a load balancer "
          "spreads them over new replicas, and so that changed certificates "
          "reach everybody. 0: never.");
ABSL_FLAG(absl::Duration, drain_delay, absl::Seconds(1),
          "After SIGTERM the server says it is not serving and waits so long "
          "for load balancers to notice before it refuses calls.");
ABSL_FLAG(absl::Duration, drain_timeout, absl::Seconds(10),
          "After that delay, how long running calls may take to finish. Keep "
          "the sum below the orchestrator's grace period.");

namespace idempotency {
namespace {

// In the order of the manual.
constexpr const char* kFlags[] = {
    "listen",
    "admin_listen",
    "database",
    "data_dir",
    "migrate",
    "sweep_only",
    "database_pooled",
    "database_citus",
    "require_durability",
    "lanes",
    "queue_items_max",
    "queue_wait_max",
    "body_bytes_max",
    "replay_cache_bytes",
    "reply_bytes_max",
    "deadline_max",
    "store_patience",
    "downstream_namespace",
    "reaper_batch",
    "reaper_pause",
    "conflict_retention",
    "tls_certificate",
    "tls_key",
    "tls_client_ca",
    "allow_plaintext",
    "reflection",
    "max_connection_age",
    "drain_delay",
    "drain_timeout",
};

std::string DefaultDataDir() {
  // PostgreSQL's user could not enter root's home.
  if (geteuid() == 0) return "/var/lib/idempotency";
  const char* const state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state != '\0') {
    return absl::StrCat(state, "/idempotency");
  }
  const char* const home = std::getenv("HOME");
  return absl::StrCat(home == nullptr ? "." : home,
                      "/.local/state/idempotency");
}

template <typename Number>
absl::Status CheckRange(const char* flag, Number value, Number least,
                        Number most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--", flag, ": got ", value, ", want ", least, " to ", most));
}

absl::Status CheckDuration(const char* flag, absl::Duration value,
                           absl::Duration least, absl::Duration most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--", flag, ": got ", absl::FormatDuration(value), ", want ",
      absl::FormatDuration(least), " to ", absl::FormatDuration(most)));
}

absl::Status CheckFlags() {
  const absl::Duration second = absl::Seconds(1);
  for (const absl::Status& status : {
           CheckRange("lanes", absl::GetFlag(FLAGS_lanes), 1, 64),
           CheckRange<std::int64_t>("queue_items_max",
                                    absl::GetFlag(FLAGS_queue_items_max), 1,
                                    1'000'000),
           CheckRange<std::int64_t>("body_bytes_max",
                                    absl::GetFlag(FLAGS_body_bytes_max), 0,
                                    limits::kBodyBytesMax),
           CheckRange<std::int64_t>("replay_cache_bytes",
                                    absl::GetFlag(FLAGS_replay_cache_bytes), 0,
                                    limits::kReplayCacheBytesMax),
           CheckRange<std::int64_t>(
               "reply_bytes_max", absl::GetFlag(FLAGS_reply_bytes_max),
               limits::kReplyBytesMaxLeast, limits::kMiB * limits::kMiB),
           CheckRange("reaper_batch", absl::GetFlag(FLAGS_reaper_batch), 1,
                      100'000),
           CheckDuration("deadline_max", absl::GetFlag(FLAGS_deadline_max),
                         absl::Milliseconds(100), 600 * second),
           CheckDuration("queue_wait_max", absl::GetFlag(FLAGS_queue_wait_max),
                         absl::ZeroDuration(), 600 * second),
           CheckDuration("store_patience", absl::GetFlag(FLAGS_store_patience),
                         absl::ZeroDuration(), 60 * second),
           CheckDuration("reaper_pause", absl::GetFlag(FLAGS_reaper_pause),
                         absl::Milliseconds(10), 3600 * second),
           CheckDuration("conflict_retention",
                         absl::GetFlag(FLAGS_conflict_retention), second,
                         absl::FromChrono(limits::kDurationMax)),
           CheckDuration("max_connection_age",
                         absl::GetFlag(FLAGS_max_connection_age),
                         absl::ZeroDuration(), absl::Hours(24 * 30)),
           CheckDuration("drain_delay", absl::GetFlag(FLAGS_drain_delay),
                         absl::ZeroDuration(), 600 * second),
           CheckDuration("drain_timeout", absl::GetFlag(FLAGS_drain_timeout),
                         absl::ZeroDuration(), 600 * second),
       }) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// gRPC takes 443 for a port that is missing, and 99999 modulo 65536.
bool HasPort(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return true;
  const std::size_t colon = address.rfind(':');
  std::uint32_t port = 0;
  return colon != std::string::npos && colon > 0 &&
         std::isdigit(static_cast<unsigned char>(address.back())) != 0 &&
         absl::SimpleAtoi(address.substr(colon + 1), &port) && port <= 65535;
}

absl::Status CheckListen(const Config& config) {
  if (!HasPort(config.listen)) {
    return absl::InvalidArgumentError(
        "--listen: want an address and a port of 0 to 65535, such as "
        "127.0.0.1:50051");
  }
  if (IsLoopback(config.listen)) return absl::OkStatus();
  if (config.embedded()) {
    return absl::InvalidArgumentError(
        "--listen: the private database serves one machine only; name a "
        "PostgreSQL with --database, or listen on 127.0.0.1");
  }
  if (!config.allow_plaintext && !config.tls.given()) {
    return absl::InvalidArgumentError(
        "--listen: refusing plaintext beyond loopback; give --tls_certificate "
        "and --tls_key, or listen on 127.0.0.1, or say --allow_plaintext "
        "behind a mesh or tunnel that encrypts");
  }
  return absl::OkStatus();
}

absl::Status CheckTls(const CertificateFiles& tls) {
  if (!tls.given()) {
    if (tls.tls_client_ca.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "--tls_client_ca: without TLS no client shows a certificate; give "
        "--tls_certificate and --tls_key too");
  }
  if (tls.tls_certificate.empty() || tls.tls_key.empty()) {
    return absl::InvalidArgumentError(
        "--tls_certificate and --tls_key go together; give both or neither");
  }
  return LoadCertificates(tls).status();
}

// How calls are taken.
absl::Status CheckCalls(const Config& config) {
  const absl::Status listen = CheckListen(config);
  if (!listen.ok()) return listen;
  return CheckTls(config.tls);
}

absl::Status CheckSweepOnly(const Config& config) {
  if (!config.embedded()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--sweep_only: name the PostgreSQL with --database; a private database "
      "is swept by the server that runs it");
}

// The web server takes lists, and ports with letters that mean something.
absl::Status CheckAdminListen(const std::string& address) {
  if (address.empty()) return absl::OkStatus();
  if (HasPort(address) && !absl::StartsWith(address, "unix:") &&
      !absl::StartsWith(address, "[") && !absl::StrContains(address, ',')) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "--admin_listen: want an IPv4 address and a port of 0 to 65535, such as "
      "127.0.0.1:9464");
}

absl::StatusOr<Durability> ReadDurability(std::string_view value) {
  if (value == "none") return Durability::kAny;
  if (value == "crash") return Durability::kCrash;
  if (value == "failover") return Durability::kFailover;
  return absl::InvalidArgumentError(
      "--require_durability: want none, crash or failover");
}

Config FromFlags() {
  Config config;
  config.listen = absl::GetFlag(FLAGS_listen);
  config.admin_listen = absl::GetFlag(FLAGS_admin_listen);
  config.database = absl::GetFlag(FLAGS_database);
  config.data_dir = absl::GetFlag(FLAGS_data_dir);
  if (config.data_dir.empty()) config.data_dir = DefaultDataDir();
  config.migrate = absl::GetFlag(FLAGS_migrate) || config.embedded();
  config.sweep_only = absl::GetFlag(FLAGS_sweep_only);
  config.database_pooled = absl::GetFlag(FLAGS_database_pooled);
  config.database_citus = absl::GetFlag(FLAGS_database_citus);
  config.lanes = absl::GetFlag(FLAGS_lanes);
  config.queue_items_max = absl::GetFlag(FLAGS_queue_items_max);
  config.queue_wait_max =
      absl::ToChronoMilliseconds(absl::GetFlag(FLAGS_queue_wait_max));
  config.body_bytes_max = absl::GetFlag(FLAGS_body_bytes_max);
  config.replay_cache_bytes = absl::GetFlag(FLAGS_replay_cache_bytes);
  config.reply_bytes_max = absl::GetFlag(FLAGS_reply_bytes_max);
  config.deadline_max =
      absl::ToChronoMilliseconds(absl::GetFlag(FLAGS_deadline_max));
  config.store_patience =
      absl::ToChronoMilliseconds(absl::GetFlag(FLAGS_store_patience));
  config.reaper_batch = absl::GetFlag(FLAGS_reaper_batch);
  config.reaper_pause = absl::GetFlag(FLAGS_reaper_pause);
  config.conflict_retention = absl::GetFlag(FLAGS_conflict_retention);
  config.tls = {.tls_certificate = absl::GetFlag(FLAGS_tls_certificate),
                .tls_key = absl::GetFlag(FLAGS_tls_key),
                .tls_client_ca = absl::GetFlag(FLAGS_tls_client_ca)};
  config.allow_plaintext = absl::GetFlag(FLAGS_allow_plaintext);
  config.reflection = absl::GetFlag(FLAGS_reflection);
  config.max_connection_age =
      absl::ToChronoMilliseconds(absl::GetFlag(FLAGS_max_connection_age));
  config.drain_delay =
      absl::ToChronoMilliseconds(absl::GetFlag(FLAGS_drain_delay));
  config.drain_timeout =
      absl::ToChronoMilliseconds(absl::GetFlag(FLAGS_drain_timeout));
  return config;
}

}  // namespace

bool IsLoopback(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return true;
  const std::size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  return host == "localhost" || host == "[::1]" ||
         (absl::StartsWith(host, "127.") &&
          host.find_first_not_of("0123456789.") == std::string::npos);
}

absl::StatusOr<Config> ReadConfig(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--help" || argument == "-help" || argument == "-h") {
      PrintManual(kFlags);
      std::exit(0);
    }
  }
  const absl::Status environment = ReadEnvironment(kFlags);
  if (!environment.ok()) return environment;
  const absl::Status arguments = ReadArguments(kFlags, argc, argv);
  if (!arguments.ok()) return arguments;
  const absl::Status flags = CheckFlags();
  if (!flags.ok()) return flags;
  Config config = FromFlags();
  const std::string name_space = absl::GetFlag(FLAGS_downstream_namespace);
  if (!name_space.empty()) {
    config.downstream_namespace = ParseUuid(name_space);
    if (!config.downstream_namespace.has_value() ||
        config.downstream_namespace->is_nil()) {
      return absl::InvalidArgumentError(
          "--downstream_namespace: want a UUID in the 8-4-4-4-12 form");
    }
  }
  const absl::StatusOr<Durability> durability =
      ReadDurability(absl::GetFlag(FLAGS_require_durability));
  if (!durability.ok()) return durability.status();
  config.require_durability = *durability;
  const absl::Status calls =
      config.sweep_only ? CheckSweepOnly(config) : CheckCalls(config);
  if (!calls.ok()) return calls;
  const absl::Status admin_listen = CheckAdminListen(config.admin_listen);
  if (!admin_listen.ok()) return admin_listen;
  return config;
}

}  // namespace idempotency
