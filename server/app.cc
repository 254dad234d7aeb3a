#include "server/app.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/core/store.h"
#include "server/rpc/options.h"
#include "server/store/postgres/conninfo.h"
#include "server/store/postgres/factory.h"
#include "server/store/postgres/migrator.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;

// Lanes are looked at so often while they finish what they have.
constexpr milliseconds kDrainPoll{5};
// Calls that reach gRPC while it shuts down end with CANCELLED, which no client
// takes for "try elsewhere". So callers are turned away for a while before.
constexpr milliseconds kTurnAway{300};
// How often it is looked whether the database watch, a statement or a caller is
// stuck.
constexpr absl::Duration kStuckPoll = absl::Milliseconds(500);
// How often the certificate files are read.
constexpr absl::Duration kCertificatePoll = absl::Seconds(1);

LogFields ReportFields(const SweepReport& report) {
  LogFields fields = {{"deleted", absl::StrCat(report.deleted)},
                      {"parked", absl::StrCat(report.parked)}};
  for (const auto& [policy, count] : report.unfinished) {
    fields.emplace_back(absl::StrCat("unfinished.", policy),
                        absl::StrCat(count));
  }
  return fields;
}

}  // namespace

App::App(Config config, Log& log) : config_(std::move(config)), log_(log) {}

App::~App() { Finish(milliseconds{0}, milliseconds{0}); }

absl::StatusOr<std::unique_ptr<App>> App::Start(Config config, Log& log) {
  std::unique_ptr<App> app(new App(std::move(config), log));
  absl::Status status = app->StartDatabase();
  if (!status.ok()) return status;
  if (!app->config_.sweep_only) {
    status = app->StartService();
    if (!status.ok()) return status;
  }
  status = app->StartAdmin();
  if (!status.ok()) return status;
  app->StartThreads();
  return app;
}

absl::Status App::StartService() {
  MakeEngine();
  // Before anything can fail that has calls in hand by then.
  StartLanes();
  return StartServer();
}

absl::Status App::StartDatabase() {
  connection_.watch = &statements_;
  connection_.pooled = config_.database_pooled;
  connection_.citus = config_.database_citus;
  connection_.durability = config_.require_durability;
  connection_.not_durable = &not_durable_;
  if (!config_.embedded()) {
    connection_.uri = config_.database;
    const absl::Status readable = MakeConninfo(connection_).status();
    if (!readable.ok()) return readable;
    log_.Write(Severity::kInfo, "using the database that was given",
               {{"database", DescribeDatabase(connection_)}});
    return absl::OkStatus();
  }
  log_.Write(Severity::kInfo, "using a private database",
             {{"folder", config_.data_dir}});
  const auto progress = [this](const std::string& what) {
    log_.Write(Severity::kInfo, what, {});
  };
  EmbeddedCluster::Options options;
  options.data_dir = config_.data_dir;
  // Enough for this server's lanes and for a few more replicas on it.
  options.settings = {{"max_connections", absl::StrCat(100 + config_.lanes)}};
  options.progress = progress;
  absl::StatusOr<std::unique_ptr<EmbeddedCluster>> cluster =
      EmbeddedCluster::Start(std::move(options));
  if (!cluster.ok()) return cluster.status();
  cluster_ = *std::move(cluster);
  connection_.uri = cluster_->uri();
  log_.Write(Severity::kInfo, "the private database runs",
             {{"database", cluster_->uri()},
              {"adopted", cluster_->adopted() ? "yes" : "no"}});
  return absl::OkStatus();
}

void App::MakeEngine() {
  std::vector<std::unique_ptr<Store>> stores;
  for (int i = 0; i < config_.lanes; ++i) {
    stores.push_back(MakePostgresStore(connection_, clock_, metrics_));
  }
  engine_ = std::make_unique<Engine>(
      LaneOptions{.queue_items_max = config_.queue_items_max,
                  .queue_wait_max = config_.queue_wait_max,
                  .store_patience = config_.store_patience,
                  .answers = &answers_},
      clock_, rules_, metrics_, log_, std::move(stores),
      MakePostgresStore(connection_, clock_, metrics_),
      config_.replay_cache_bytes);
}

absl::Status App::StartServer() {
  absl::StatusOr<std::unique_ptr<RpcServer>> server =
      RpcServer::Start({.listen = config_.listen,
                        .tls = config_.tls,
                        .connection_age_max = config_.max_connection_age,
                        .reflection = config_.reflection},
                       {.body_bytes_max = config_.body_bytes_max,
                        .deadline_max = config_.deadline_max,
                        .reply_bytes_max = config_.reply_bytes_max,
                        .downstream_namespace = config_.downstream_namespace},
                       {.engine = *engine_,
                        .rules = rules_,
                        .clock = clock_,
                        .log = log_,
                        .metrics = metrics_});
  if (!server.ok()) return server.status();
  server_ = *std::move(server);
  log_.Write(Severity::kInfo, "listening",
             {{"address", config_.listen},
              {"port", absl::StrCat(server_->port())},
              {"tls", !config_.tls.given() ? "no"
                      : config_.tls.tls_client_ca.empty()
                          ? "yes"
                          : "with client certificates"}});
  return absl::OkStatus();
}

absl::Status App::StartAdmin() {
  if (config_.admin_listen.empty()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<AdminServer>> admin = AdminServer::Start(
      config_.admin_listen,
      {.metrics = metrics_,
       .rules = rules_,
       .queued_calls =
           [this] { return engine_ == nullptr ? 0 : engine_->queued(); },
       .waiting_calls =
           [this] { return engine_ == nullptr ? 0 : engine_->waiting(); },
       .serving = [this] { return serving(); }});
  if (!admin.ok()) return admin.status();
  admin_ = *std::move(admin);
  log_.Write(Severity::kInfo, "metrics are served over HTTP at /metrics",
             {{"address", config_.admin_listen},
              {"port", absl::StrCat(admin_->port())}});
  return absl::OkStatus();
}

void App::StartLanes() {
  other_threads_.emplace_back([this] {
    while (answers_.Run()) {
    }
  });
  for (Lane* const lane : engine_->lanes()) {
    lane_threads_.emplace_back([lane] {
      while (lane->WaitForWork()) lane->RunBatch();
      // Answers what is left.
      lane->RunBatch();
    });
  }
}

void App::StartThreads() {
  reaper_ = MakeReaper();
  watch_ = MakeDatabaseWatch();
  other_threads_.emplace_back(
      [this] { Repeat([this] { return watch_->Look(); }); });
  other_threads_.emplace_back([this] {
    Repeat([this] {
      LookAfter();
      return kStuckPoll;
    });
  });
  if (server_ != nullptr && config_.tls.given()) {
    // Of its own, since a file system may stand still.
    other_threads_.emplace_back([this] {
      Repeat([this] {
        server_->LookAtCertificates(absl::Now());
        return kCertificatePoll;
      });
    });
  }
  other_threads_.emplace_back([this] {
    // Before the database is known to be usable there is nothing to sweep.
    Repeat([this] {
      return rules_.Get() == nullptr ? absl::Milliseconds(100)
                                     : reaper_->SweepOnce();
    });
  });
}

std::unique_ptr<Reaper> App::MakeReaper() {
  const auto log_report = [this](const absl::StatusOr<SweepReport>& report) {
    if (report.ok()) {
      log_.Write(Severity::kInfo, "the reaper swept", ReportFields(*report));
    } else {
      log_.Write(Severity::kWarning, "the reaper failed; it tries again",
                 ErrorField(report.status()));
    }
  };
  return std::make_unique<Reaper>(
      ReaperOptions{.batch = config_.reaper_batch,
                    .conflict_retention = config_.conflict_retention,
                    .pause = config_.reaper_pause},
      MakePostgresSweeper(connection_, clock_, metrics_), clock_, metrics_,
      log_report);
}

std::unique_ptr<DatabaseWatch> App::MakeDatabaseWatch() {
  std::function<absl::Status()> migrate;
  if (config_.migrate) {
    migrate = [this] {
      const absl::StatusOr<int> applied = Migrate(connection_, clock_);
      if (!applied.ok()) return applied.status();
      log_.Write(Severity::kInfo, "the schema is up to date",
                 {{"applied", absl::StrCat(*applied)}});
      return absl::OkStatus();
    };
  }
  return std::make_unique<DatabaseWatch>(DatabaseWatch::Parts{
      .migrate = std::move(migrate),
      .check_schema = [this] { return CheckSchema(connection_, clock_); },
      .check_durability =
          MakeDurabilityCheck(connection_, clock_, not_durable_),
      .store = MakePostgresStore(connection_, clock_, metrics_),
      .rules = rules_,
      .clock = clock_,
      .log = log_,
      .activity = config_.sweep_only ? "sweeping" : "serving",
      .serving = [this](bool serving) { SetServing(serving); }});
}

void App::SetServing(bool serving) {
  if (server_ != nullptr) {
    if (serving && !server_->serving()) engine_->ForgetReplays();
    server_->SetServing(serving);
  } else {
    sweeping_ = serving;
  }
}

bool App::serving() const {
  return server_ != nullptr ? server_->serving() : sweeping_.load();
}

void App::LookAfter() {
  if (watch_->IsStuck()) SetServing(false);
  if (server_ != nullptr) server_->LookAtStreams(clock_.Now());
  const int cut = statements_.CutOverdue(clock_.Now());
  if (cut > 0) {
    log_.Write(Severity::kError,
               "statements without an answer were cut off; is the database or "
               "its synchronous standby standing still?",
               {{"statements", absl::StrCat(cut)}});
  }
  const std::uint64_t conflicts = metrics_.conflicts;
  if (conflicts > conflicts_told_) {
    log_.Write(Severity::kWarning,
               "responses were refused: work was done twice; see "
               "idempotency_conflicts",
               {{"responses", absl::StrCat(conflicts - conflicts_told_)}});
  }
  conflicts_told_ = conflicts;
}

void App::Repeat(const std::function<absl::Duration()>& step)
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  std::unique_lock<Mutex> lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    const absl::Duration rest = step();
    const SteadyTime next = clock_.Now() + absl::ToChronoNanoseconds(rest);
    lock.lock();
    stopping_changed_.wait_until(
        lock, next,
        [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return stopping_; });
  }
}

void App::Drain() {
  log_.Write(Severity::kInfo,
             server_ == nullptr ? "ending: not sweeping any more"
                                : "draining: not serving any more",
             {});
  Finish(config_.drain_delay, config_.drain_timeout);
  log_.Write(Severity::kInfo, "drained", {});
}

void App::Finish(milliseconds delay, milliseconds grace) {
  if (server_ != nullptr) {
    server_->StopServing();
    std::this_thread::sleep_for(delay);
    engine_->StopAccepting();
    server_->DrainStreams();
    const SteadyTime end = clock_.Now() + grace;
    std::this_thread::sleep_for(std::min(grace, kTurnAway));
    server_->Shutdown(
        std::max(milliseconds{0},
                 std::chrono::duration_cast<milliseconds>(end - clock_.Now())));
    // Calls that were cancelled by then are still in their lanes.
    while (!(engine_->idle() && answers_.idle()) && clock_.Now() < end) {
      std::this_thread::sleep_for(kDrainPoll);
    }
  }
  if (engine_ != nullptr) engine_->Stop();
  statements_.CutAll();
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  stopping_changed_.notify_all();
  lane_threads_.clear();
  answers_.Stop();
  other_threads_.clear();
  if (cluster_ != nullptr) {
    const absl::Status stopped = cluster_->Stop();
    if (!stopped.ok()) {
      log_.Write(Severity::kWarning, "the private database did not stop well",
                 ErrorField(stopped));
    }
  }
}

}  // namespace idempotency
