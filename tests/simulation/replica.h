// A server's process: the real engine, stores, reaper and watch, whose threads
// are fibers.
#ifndef IDEMPOTENCY_TESTS_SIMULATION_REPLICA_H_
#define IDEMPOTENCY_TESTS_SIMULATION_REPLICA_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/core/engine.h"
#include "server/core/errors.h"
#include "tests/simulation/database.h"
#include "tests/simulation/history_checker.h"
#include "tests/simulation/weather.h"

namespace idempotency {

// What they all share; it must outlive them.
struct ReplicaParts {
  Scheduler& scheduler;
  Database& database;
  Weather& weather;
  HistoryChecker& checker;
  LaneOptions lane_options;
  std::size_t lanes = 2;
  std::size_t replay_cache_bytes = 0;
  Milliseconds reaper_pause{1000};
};

// How long a caller listens, and how a claim waits.
struct Patience {
  Microseconds listens{0};
  Microseconds waits{0};
  // Until it goes away without a word.
  std::optional<SteadyTime> gone_at{};
};

// Not thread-safe.
class Replica {
 public:
  explicit Replica(const ReplicaParts& parts);
  // REQUIRES: its fibers have ended, see Kill().
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  void Start();
  bool running() const { return life_ != nullptr; }
  // SIGKILL: its memory is gone, its callers' connections break.
  void Kill();
  // SIGSTOP, and SIGCONT after that time.
  void Pause(Microseconds duration);
  Microseconds pause_left() const;
  // Begins to drain, and ends when that is done.
  void Drain();
  bool draining() const;

  // Everything that arrives at a running replica. `answered` is told what the
  // engine answers, unless the process dies before: then `broken` is called.
  template <typename Command, typename Outcome>
  void Serve(const Command& command, const Patience& patience,
             std::function<void(absl::StatusOr<Outcome>)> answered,
             std::function<void()> broken);

  // No trouble, and none of its consequences is left: from then on waits are
  // looked at more closely, see CheckWait().
  void AllIsCalm() { calm_since_ = parts_.scheduler.Now(); }

 private:
  struct Life;
  // Tells the caller that the connection broke if nothing else was told.
  class Connection;

  void RunLane(Life& life, std::size_t number);
  void WakeLanes(Life& life);
  void SetServing(Life& life, bool serving);
  void SpawnInto(Life& life, std::function<void()> body);
  void BuryTheDead();

  HistoryChecker::Sent CheckWait(const RecordId& id,
                                 const HistoryChecker::Sent& sent,
                                 const Life& life, SteadyTime wait_until);
  void CheckPatience(const Life& life, SteadyTime wait_until,
                     const ClaimOutcome& outcome);

  const ReplicaParts parts_;
  std::unique_ptr<Life> life_;
  std::vector<std::unique_ptr<Life>> dead_;  // whose fibers have not ended
  std::optional<SteadyTime> calm_since_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_REPLICA_H_
