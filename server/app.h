// The whole server: builds and owns every part, starts the threads, and takes
// everything down again.
#ifndef IDEMPOTENCY_SERVER_APP_H_
#define IDEMPOTENCY_SERVER_APP_H_

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/admin/admin_server.h"
#include "server/config.h"
#include "server/core/answer_queue.h"
#include "server/core/clock.h"
#include "server/core/engine.h"
#include "server/core/log.h"
#include "server/core/metrics.h"
#include "server/core/mutex.h"
#include "server/core/policies.h"
#include "server/core/reaper.h"
#include "server/database_watch.h"
#include "server/rpc/server.h"
#include "server/store/postgres/connection_options.h"
#include "server/store/postgres/embedded_cluster.h"
#include "server/store/postgres/statement_watch.h"

namespace idempotency {

// Not thread-safe; Start() and Drain() block.
class App {
 public:
  // Starts everything: the private database if there is to be one, the lanes,
  // and the gRPC server, which is not serving until the database answers. With
  // Config::sweep_only neither lanes nor server: what looks after the database.
  // `log` must outlive the app.
  static absl::StatusOr<std::unique_ptr<App>> Start(Config config, Log& log);

  // Ends the app without draining: as Drain() without delay or grace.
  ~App();
  App(const App&) = delete;
  App& operator=(const App&) = delete;

  // The port that the gRPC server listens on. REQUIRES: there is one.
  int port() const { return server_->port(); }

  // Says "not serving", waits for load balancers to notice, finishes what
  // runs, and stops. Takes at most the drain delay and the drain timeout, by
  // when the statements still under way are cut off; with a private database
  // also its stop.
  void Drain();

 private:
  App(Config config, Log& log);

  absl::Status StartDatabase();
  absl::Status StartService();
  void MakeEngine();
  absl::Status StartServer();
  absl::Status StartAdmin();
  void StartLanes();
  void StartThreads();
  std::unique_ptr<Reaper> MakeReaper();
  std::unique_ptr<DatabaseWatch> MakeDatabaseWatch();
  // What health says, and the metrics.
  void SetServing(bool serving);
  bool serving() const;
  // Cuts overdue statements, and tells of what operators must know.
  void LookAfter();
  // Calls `step` again and again, resting as long as it says, until the app
  // stops.
  void Repeat(const std::function<absl::Duration()>& step);
  void Finish(std::chrono::milliseconds delay, std::chrono::milliseconds grace);

  // Constant after Start().
  const Config config_;
  Log& log_;
  const SystemClock clock_;
  StatementWatch statements_;
  // The database no longer keeps what is required of it.
  std::atomic<bool> not_durable_ = false;
  ConnectionOptions connection_;

  FleetRulesCache rules_;
  Metrics metrics_;
  std::unique_ptr<EmbeddedCluster> cluster_;
  AnswerQueue answers_;
  // Null with Config::sweep_only; the engine uses all of the above, the server
  // the engine.
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RpcServer> server_;
  // Without a server: can the database be swept?
  std::atomic<bool> sweeping_ = false;
  std::unique_ptr<AdminServer> admin_;    // uses all of the above
  std::unique_ptr<Reaper> reaper_;        // uses the database
  std::unique_ptr<DatabaseWatch> watch_;  // uses the server and the rules

  std::uint64_t conflicts_told_ = 0;  // only touched by LookAfter()

  Mutex mutex_;
  ConditionVariable stopping_changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  // Last, so that they end before anything they use goes away.
  std::vector<std::jthread> lane_threads_;
  std::vector<std::jthread> other_threads_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_APP_H_
