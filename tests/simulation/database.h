// A model of PostgreSQL at READ COMMITTED, as far as the coordinator's
// statements can tell: each is a transaction of its own that begins, locks rows
// one by one, commits, waits for the standby, and answers; and between any two
// of these others go on, it may be killed, and the database may crash.
//
// What is left out: deadlocks end by lock_timeout here as they do there, where
// it is shorter than deadlock_timeout; rows of evidence are not locked; a
// statement has no time limit besides its waits for locks.
#ifndef IDEMPOTENCY_TESTS_SIMULATION_DATABASE_H_
#define IDEMPOTENCY_TESTS_SIMULATION_DATABASE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "server/core/limits.h"
#include "server/core/policies.h"
#include "server/core/types.h"
#include "tests/simulation/planted_bug.h"
#include "tests/simulation/scheduler.h"
#include "tests/simulation/stepped_clock.h"
#include "tests/simulation/weather.h"
#include "tests/support/memory_table.h"

namespace idempotency {

class Backend;

// How a statement ended, as whoever sent it learns.
enum class Ending {
  kAnswered,
  kUnconfirmed,   // answered, with the warning that the standby may lack it
  kLockTimeout,   // 55P03
  kReadOnly,      // 25006
  kCut,           // the connection ended without an answer
  kNoConnection,  // there was none to be had
};

// Where a statement's answer arrives. Kept by both sides, either of which may
// go before.
struct Reply {
  explicit Reply(Scheduler& scheduler) : gate(scheduler) {}
  void Give(Ending how) {
    if (!ending.has_value()) ending = how;
    gate.Open();
  }

  Gate gate;
  std::optional<Ending> ending;
};

using RecordPtr = std::shared_ptr<const Record>;

// A version of a row. Those of one life of the row, from its insertion to its
// deletion, are in one chain.
struct Version {
  RecordPtr record;  // null: there is no row
  std::uint64_t chain = 0;
  std::uint64_t number = 0;  // grows with every version of a row
  absl::Time at{};           // when its statement began
  SteadyTime began{};        // the same, whatever the clock showed
};

// A row of idempotency_records, there or not.
struct Row {
  RecordId id;
  Version committed;               // what a new snapshot sees
  Version on_standby;              // what a failover leaves
  Backend* writer = nullptr;       // holds the row's lock
  bool writer_changes_it = false;  // or has locked it only
  std::vector<Backend*> waiting;   // for the lock
};

struct RowChange {
  Row* row = nullptr;
  Version after;
};

// Is told of what everybody can see, when it becomes so.
class DatabaseObserver {
 public:
  virtual ~DatabaseObserver() = default;
  virtual void RowChanged(const RecordId& id, const Version& after) = 0;
  // A standby took over, which had no later change of the row than `after`.
  virtual void RowFellBack(const RecordId& id, const Version& after) = 0;
  // It did, and all rows are as it has them.
  virtual void FailedOver() = 0;
};

// A statement between its begin and its commit, in its backend's fiber. OK to
// commit, or why it was given up.
using StatementWork = absl::AnyInvocable<Ending(Backend&)>;

// Not thread-safe.
class Database {
 public:
  // With a standby every commit waits for it.
  Database(Scheduler& scheduler, Weather& weather, PlantedBug bug,
           bool has_standby);

  absl::Time Now() const { return clock_.Now(); }
  const SteppedClock& clock() const { return clock_; }
  PlantedBug bug() const { return bug_; }
  void Observe(DatabaseObserver* observer) { observer_ = observer; }

  // What a new snapshot sees; null: no row.
  RecordPtr Find(const RecordId& id) const;
  const KeptConflicts& conflicts() const { return conflicts_; }

  // Puts a row as if it had always been so: for tests.
  void Put(const RecordId& id, Record record);
  void AgeConflicts(absl::Duration by);

  FleetRules rules;
  // A statement that asks for rows by their places does not find one that has
  // moved since its snapshot, except in older minor releases, which judge it
  // anew.
  bool finds_moved_rows = false;

  // ---- As those who connect see it.

  bool accepts() const { return scheduler_.Now() >= up_again_; }
  // Another number: every connection has ended since.
  std::uint64_t epoch() const { return epoch_; }
  // Runs `work` as a statement that arrives after `delay`, if the connection of
  // `epoch` still lasts then.
  void Start(Microseconds delay, std::uint64_t epoch, bool writes,
             StatementWork work, std::shared_ptr<Reply> reply);

  // ---- Trouble. Each tells whether there was anything to trouble.

  // Everything that was not flushed is lost.
  bool Restart(Microseconds down_for);
  // The standby takes over, and its clock; what it lacks is lost. False without
  // a standby.
  bool FailOver(Microseconds down_for);
  bool StallStandby(Microseconds duration);
  // pg_cancel_backend() and pg_terminate_backend() for some who wait for it.
  bool CancelWaits();
  bool KillBackends();
  bool TurnReadOnly(Microseconds duration);
  // Sets the clock, or the standby's, so far ahead of where it began.
  bool SetClock(Microseconds ahead);
  bool SetStandbyClock(Microseconds ahead);

 private:
  friend class Backend;

  // What was flushed and not yet replicated.
  struct LogEntry {
    std::uint64_t position = 0;
    std::vector<RowChange> rows;
    std::vector<Conflict> conflicts;
    absl::Time at{};
  };

  Row& RowOf(const RecordId& id);
  const Record* RecordOf(const RecordId& id);
  std::uint64_t Flush(const std::vector<RowChange>& rows,
                      const std::vector<Conflict>& conflicts, absl::Time at);
  void MakeVisible(const std::vector<RowChange>& rows,
                   const std::vector<Conflict>& conflicts, absl::Time at);
  void Ship();
  void Replicate();
  void EndAllBackends();

  Scheduler& scheduler_;
  Weather& weather_;
  const PlantedBug bug_;
  const bool has_standby_;
  SteppedClock clock_;
  Microseconds standby_ahead_{0};
  DatabaseObserver* observer_ = nullptr;

  std::map<RecordId, std::unique_ptr<Row>> rows_;
  KeptConflicts conflicts_;
  KeptConflicts conflicts_on_standby_;
  std::vector<Backend*> active_;
  std::uint64_t versions_ = 0;
  std::uint64_t epoch_ = 1;
  SteadyTime up_again_{};
  SteadyTime read_only_until_{};

  std::vector<LogEntry> log_;
  std::uint64_t flushed_ = 0;
  std::uint64_t replicated_ = 0;
  SteadyTime standby_back_{};
  bool shipping_ = false;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_DATABASE_H_
