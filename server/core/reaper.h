// Clean-up in every replica: expired records go, held ones are parked.
#ifndef IDEMPOTENCY_SERVER_CORE_REAPER_H_
#define IDEMPOTENCY_SERVER_CORE_REAPER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/clock.h"
#include "server/core/metrics.h"
#include "server/core/sweep_step.h"

namespace idempotency {

struct SweepReport {
  std::int64_t deleted = 0;
  // Held, abandoned records whose expiry was set to "never".
  std::int64_t parked = 0;
  // Of `deleted`, those whose attempt never ended, by policy.
  std::map<std::string, std::int64_t> unfinished{};
};

// What the reaper needs of a database, on a connection of its own. Not
// thread-safe. Any number of sweepers may work on one database at a time:
// each statement repeats its predicate on the rows it writes.
class Sweeper {
 public:
  virtual ~Sweeper() = default;

  // Deletes or parks at most `limit` expired records, the oldest first.
  virtual absl::StatusOr<SweepReport> SweepRecords(int limit) = 0;
  // Deletes at most `limit` rows of evidence last seen before `kept_for` ago.
  virtual absl::StatusOr<std::int64_t> SweepConflicts(
      int limit, absl::Duration kept_for) = 0;
};

struct ReaperOptions {
  // The most rows that a statement takes; how many it does is SweepStep's.
  int batch = 5000;
  absl::Duration conflict_retention = absl::Hours(90 * 24);
  // After a sweep that found half of what it asked for, or less; no rest is
  // longer.
  absl::Duration pause = absl::Seconds(5);
};

// A step function like the lanes. Not thread-safe.
class Reaper {
 public:
  // `log` gets each failure's status, and what was swept: at once, but a
  // backlog in sums of some seconds. `clock` and `metrics` must outlive the
  // reaper.
  Reaper(const ReaperOptions& options, std::unique_ptr<Sweeper> sweeper,
         const Clock& clock, Metrics& metrics,
         std::function<void(const absl::StatusOr<SweepReport>&)> log);

  // One bounded step. Returns how long to rest before the next: while there is
  // a backlog, twice the time that the step took (but at most a pause), so that
  // the database has most of its time for callers.
  absl::Duration SweepOnce();

 private:
  absl::Duration RestAfter(const absl::Status& failure);
  void Note(const SweepReport& report);
  void Tell();

  const ReaperOptions options_;
  const std::unique_ptr<Sweeper> sweeper_;
  const Clock& clock_;
  Metrics& metrics_;
  const std::function<void(const absl::StatusOr<SweepReport>&)> log_;

  SweepStep records_;
  SweepStep conflicts_;
  SweepReport untold_;
  SteadyTime told_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_REAPER_H_
