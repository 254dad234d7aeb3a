// Two replicas over one table of records, their callers, their clock and their
// bad luck, in one thread: a seed decides everything that happens.
#ifndef IDEMPOTENCY_TESTS_UNIT_ENGINE_WORLD_H_
#define IDEMPOTENCY_TESTS_UNIT_ENGINE_WORLD_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/core/engine.h"
#include "server/core/metrics.h"
#include "server/core/policies.h"
#include "server/core/reaper.h"
#include "tests/support/manual_clock.h"
#include "tests/support/memory_log.h"
#include "tests/support/memory_table.h"
#include "tests/unit/history_checker.h"

namespace idempotency {

// What the checker has to notice.
enum class PlantedBug {
  kNone,
  kReplaceIgnoresTheGuard,
  kFinalizeIgnoresTheOwner,
  kTakeoverIsNotTold,
  kLostReplyCountsAsUndone,
  kSweepDoesNotLookAgain,
  kLooksFindNothing,
};

// A step is one of: a caller asks, a lane runs one batch, time passes, a
// sweeper sweeps, a statement that was given up for lost arrives after all.
// Between any two statements of a batch further steps happen, by other lanes
// too, down to a bounded depth. Statements fail before they happen, or their
// reply is lost. Not thread-safe.
class EngineWorld {
 public:
  EngineWorld(std::uint64_t seed, PlantedBug bug);
  ~EngineWorld();
  EngineWorld(const EngineWorld&) = delete;
  EngineWorld& operator=(const EngineWorld&) = delete;

  // At most that many steps, fewer once a promise was broken; then, without
  // further trouble, until every call is answered.
  void Run(int steps);

  const std::vector<std::string>& violations() const { return violations_; }
  const std::map<std::string, int>& answers() const {
    return checker_.answers();
  }

 private:
  class Table;

  struct Replica {
    FleetRulesCache rules;
    Metrics metrics;
    std::unique_ptr<Engine> engine;
    std::vector<Lane*> lanes;
    std::vector<bool> busy;
    bool draining = false;
  };

  // An execution attempt of some caller.
  struct Attempt {
    Uuid token;
    int number = 0;
    std::string request_hash;
    std::int64_t fencing_token = 0;  // once it was told one
  };

  struct Key {
    RecordId id;
    std::vector<Attempt> attempts;
  };

  bool Chance(unsigned percent) { return random_() % 100 < percent; }
  std::size_t Below(std::size_t bound) { return random_() % bound; }
  absl::Duration AnyDuration();

  void Step();
  void AskAnything();
  void AskForClaim(Key& key);
  void AskToFinalize(Key& key);
  void AskToRelease(Key& key);
  void AskToLookup(Key& key);
  template <typename Command, typename Outcome>
  void Ask(Command command);
  HistoryChecker::Sent CheckWait(const HistoryChecker::Sent& sent,
                                 const Replica& replica, SteadyTime wait_until);
  void CheckPatience(const Replica& replica, SteadyTime wait_until,
                     const ClaimOutcome& outcome);
  void NoteClaim(const ClaimCommand& command, const ClaimOutcome& outcome);
  Attempt& AnyAttempt(Key& key);
  Attempt& NewAttempt(Key& key);
  void RunALane();
  void PassTime(absl::Duration by);
  void Sweep();
  void SweepWithoutLookingAgain();
  void LetALostStatementArrive();
  void Finish();

  absl::Status OnStatement(MemoryStatement statement, StatementPhase phase);
  // Whether the statement is to be lost on its way and to arrive later.
  bool IsToArriveLater() { return !calm_ && Chance(3); }

  const PlantedBug bug_;
  std::mt19937_64 random_;
  MemoryDatabase database_;
  ManualClock clock_;
  MemoryLog log_;
  std::vector<Key> keys_;
  HistoryChecker checker_;
  std::array<Replica, 2> replicas_;
  std::vector<std::function<void()>> lost_statements_;
  int attempts_ = 0;
  int asked_ = 0;
  int answered_ = 0;
  int depth_ = 0;
  bool calm_ = false;  // no trouble, nothing in between
  std::optional<SteadyTime> finishing_since_;
  std::vector<std::string> waits_violations_;
  std::vector<std::string> violations_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_UNIT_ENGINE_WORLD_H_
