// A fleet of replicas over one database, their callers and their bad luck, in
// one thread: a seed decides everything that happens.
#ifndef IDEMPOTENCY_TESTS_SIMULATION_WORLD_H_
#define IDEMPOTENCY_TESTS_SIMULATION_WORLD_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/once_callers.h"
#include "tests/simulation/raw_callers.h"

namespace idempotency {

// What a run amounted to.
struct WorldCounts {
  std::uint64_t operations = 0;
  std::uint64_t steps = 0;
  std::uint64_t simulated_ms = 0;
  std::map<std::string, std::uint64_t> answers;
  std::map<std::string, std::uint64_t> events;
  std::map<std::string, std::uint64_t> faults;

  void Add(const WorldCounts& other);
  bool operator==(const WorldCounts&) const = default;
};

// Trouble first, until there were kOperations; then calm weather, in which
// everything must come to its end. Replicas and the database are spared after
// half a minute: otherwise some worlds would hardly get anything done. Not
// thread-safe.
class World final : private DatabaseObserver {
 public:
  // What the raw callers ask for, beside the calls of operations.
  static constexpr std::uint64_t kOperations = 200;

  World(std::uint64_t seed, PlantedBug bug);
  ~World() override;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void KeepHistory() { checker_.KeepHistory(); }
  // Ends early once a promise was broken.
  void Run();

  // Of all that happened: that of another run is another one, and that of the
  // same seed the same in every process. After KeepHistory() and Run().
  std::uint64_t Digest() const;

  // Each begins with the promise's name and a colon: those of history_checker.h
  // and once_callers.h, and
  //   L2      nobody who can resolve what is in doubt is kept from a key
  //   L3      every call is answered
  //   W1, W2  a wait ends neither early nor late
  const std::vector<std::string>& violations() const {
    return checker_.violations();
  }
  std::vector<std::string> History() const { return checker_.History(); }
  WorldCounts counts() const;

 private:
  void RowChanged(const RecordId& id, const Version& after) override;
  void RowFellBack(const RecordId& id, const Version& after) override;
  void FailedOver() override { checker_.FailedOver(); }

  void DrawWeather();
  void MakeReplicas();
  void MakeTrouble();
  void TroubleOnce();
  bool TroubleReplicas(std::size_t what);
  bool TroubleDatabase(std::size_t what);
  bool LoseTheStandbyThenThePrimary(Microseconds down_for);
  void ChangePolicies();
  void StartAgainLater(Replica& replica);
  void EndInCalm();
  // False: a promise was broken, or it took too long.
  template <typename Done>
  bool RunUntil(Milliseconds at_most, const Done& done);
  void EndAllFibers();

  Scheduler scheduler_;
  const SteadyTime began_ = scheduler_.Now();
  Random& random_;
  Weather weather_;
  Database database_;
  HistoryChecker checker_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  Network network_;
  const CallerParts callers_{scheduler_, random_,  weather_,
                             database_,  network_, checker_};
  OnceCallers once_callers_;
  RawCallers raw_callers_;
  // By kind, how likely it is to be the next trouble.
  std::vector<unsigned> troubles_;
  Microseconds trouble_every_{0};
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_WORLD_H_
