#include "tests/simulation/world.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "server/core/limits.h"

namespace idempotency {
namespace {

constexpr const char* kScopes[] = {"one", "two"};
// Enough for all keys.
constexpr std::size_t kReplayCacheBytes = limits::kMiB;
// More than any world takes.
constexpr std::uint64_t kStepsMax = 2'000'000;
constexpr Milliseconds kTroubleMax{30'000};
constexpr Milliseconds kAskingMax{400'000};
constexpr Milliseconds kCalmMax{200'000};
// The longest pause, absence of the database or delay of a message, and more.
constexpr Milliseconds kSettles{4000};
// Of the database's clock, before what it would be without steps.
constexpr Milliseconds kClockAheadMax{6000};

FleetRules FirstRules() {
  const Policy brief = {.name = "default",
                        .lease = absl::Seconds(1),
                        .max_lease = absl::Seconds(3),
                        .retention = absl::Seconds(4)};
  FleetRules rules;
  rules.policies["default"] = brief;
  const auto add = [&](const char* name) -> Policy& {
    Policy& policy = rules.policies[name] = brief;
    policy.name = name;
    return policy;
  };
  Policy& held = add("held");
  held.on_abandoned = OnAbandoned::kHold;
  held.on_server_error = OnServerError::kHold;
  add("recorded").on_server_error = OnServerError::kRecord;
  Policy& permanent = add("permanent");
  permanent.retention = std::nullopt;
  permanent.retention_after_finalize = absl::Seconds(3);
  // Of operations.
  add("order").retention = absl::Hours(24);
  Policy& payment = add("payment");
  payment.retention = absl::Hours(24);
  payment.on_abandoned = OnAbandoned::kHold;
  payment.on_server_error = OnServerError::kHold;
  rules.downstream_namespace.bytes.fill(0x5a);
  return rules;
}

RawCallers::Keys RawKeys() {
  RawCallers::Keys keys;
  keys.free = {
      {kScopes[0], "key-0"}, {kScopes[1], "key-0"}, {kScopes[0], "key-1"}};
  keys.shared = {{kScopes[0], "paid-0"}, {kScopes[1], "paid-0"}};
  return keys;
}

template <typename Map>
void AddAll(Map& to, const Map& from) {
  for (const auto& [name, count] : from) to[name] += count;
}

// What can go wrong, beside what strikes single statements and messages.
enum class Trouble : std::size_t {
  kReplicaKilled,
  kReplicaPaused,
  kReplicaDrained,
  kPoliciesChanged,
  kDatabaseRestarted,
  kFailedOver,
  kStandbyStalled,
  kWaitsCancelled,
  kBackendsKilled,
  kReadOnly,
  kClockSet,
};
constexpr std::size_t kTroubles = 11;
constexpr std::array<const char*, kTroubles> kTroubleNames = {
    "replicas killed",  "replicas paused",
    "replicas drained", "policies changed",
    "database crashes", "failovers",
    "standby stalls",   "standby waits cancelled",
    "backends killed",  "database read-only",
    "clock steps"};

}  // namespace

void WorldCounts::Add(const WorldCounts& other) {
  operations += other.operations;
  steps += other.steps;
  simulated_ms += other.simulated_ms;
  AddAll(answers, other.answers);
  AddAll(events, other.events);
  AddAll(faults, other.faults);
}

World::World(std::uint64_t seed, PlantedBug bug)
    : scheduler_(seed),
      random_(scheduler_.random()),
      database_(scheduler_, weather_, bug, random_.Chance(50)),
      checker_(database_),
      network_(scheduler_, weather_, replicas_),
      once_callers_(callers_, RawKeys().shared),
      raw_callers_(callers_, RawKeys()) {
  database_.Observe(this);
  database_.rules = FirstRules();
  database_.finds_moved_rows = random_.Chance(30);
  DrawWeather();
  MakeReplicas();
}

World::~World() {
  EndAllFibers();
  replicas_.clear();
  scheduler_.Clear();
}

void World::RowChanged(const RecordId& id, const Version& after) {
  checker_.RowChanged(id, after);
  if (after.record != nullptr) {
    once_callers_.GrantChanged(id, after.record->fencing_token);
  }
}

void World::RowFellBack(const RecordId& id, const Version& after) {
  checker_.RowFellBack(id, after);
  if (after.record != nullptr) {
    once_callers_.GrantChanged(id, after.record->fencing_token);
  }
}

WorldCounts World::counts() const {
  return {
      .operations = raw_callers_.operations() + once_callers_.calls(),
      .steps = scheduler_.steps(),
      .simulated_ms = static_cast<std::uint64_t>(
          std::chrono::duration_cast<Milliseconds>(scheduler_.Now() - began_)
              .count()),
      .answers = checker_.answers(),
      .events = once_callers_.events(),
      .faults = weather_.faults};
}

// FNV-1a of the counts and of the history's lines, sorted: those of one time
// are in the order in which a hash table of the engine's has its keys, which
// nothing else depends on.
std::uint64_t World::Digest() const {
  std::vector<std::string> lines = checker_.AllHistory();
  std::sort(lines.begin(), lines.end());
  const WorldCounts all = counts();
  for (const auto* const map : {&all.answers, &all.events, &all.faults}) {
    for (const auto& [name, count] : *map) {
      lines.push_back(name + " " + std::to_string(count));
    }
  }
  for (const std::uint64_t count :
       {all.operations, all.steps, all.simulated_ms}) {
    lines.push_back(std::to_string(count));
  }
  std::uint64_t digest = 0xcbf29ce484222325;
  for (const std::string& line : lines) {
    for (const char c : line + "\n") {
      digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    }
  }
  return digest;
}

// ---- Before it begins.

void World::DrawWeather() {
  const auto perhaps = [this](unsigned most) -> unsigned {
    return random_.Chance(45) ? 0 : static_cast<unsigned>(random_.Below(most));
  };
  weather_.cuts_per_mille = perhaps(80);
  weather_.held_up_per_mille = perhaps(40);
  weather_.slow_commit_per_mille = perhaps(80);
  weather_.lost_requests_per_mille = perhaps(80);
  weather_.lost_answers_per_mille = perhaps(80);
  weather_.duplicates_per_mille = perhaps(150);
  weather_.late_per_mille = perhaps(100);
  for (std::size_t i = 0; i < kTroubles; ++i) {
    troubles_.push_back(random_.Chance(40) ? 0 : 1);
  }
  trouble_every_ = random_.Between(Milliseconds(200), Milliseconds(2500));
}

void World::MakeReplicas() {
  LaneOptions options;
  options.batch_items_max = 1 + random_.Below(6);
  if (random_.Chance(10)) options.queue_items_max = 3;
  const ReplicaParts parts = {
      .scheduler = scheduler_,
      .database = database_,
      .weather = weather_,
      .checker = checker_,
      .lane_options = options,
      .lanes = 1 + random_.Below(2),
      .replay_cache_bytes = random_.Chance(50) ? kReplayCacheBytes : 0,
      .reaper_pause = Milliseconds(300 + random_.Below(1500))};
  const std::size_t replicas = 2 + random_.Below(2);
  for (std::size_t i = 0; i < replicas; ++i) {
    replicas_.push_back(std::make_unique<Replica>(parts));
    replicas_.back()->Start();
  }
}

// ---- Trouble.

void World::MakeTrouble() {
  if (scheduler_.Now() - began_ > kTroubleMax || weather_.calm) return;
  TroubleOnce();
  scheduler_.After(random_.Between(Microseconds(0), 2 * trouble_every_),
                   [this] { MakeTrouble(); });
}

void World::TroubleOnce() {
  const unsigned all = std::accumulate(troubles_.begin(), troubles_.end(), 0U);
  if (all == 0) return;
  std::size_t which = random_.Below(all);
  std::size_t what = 0;
  while (troubles_[what] == 0 || which-- > 0) ++what;
  const bool happened =
      what <= static_cast<std::size_t>(Trouble::kPoliciesChanged)
          ? TroubleReplicas(what)
          : TroubleDatabase(what);
  if (happened) weather_.Count(kTroubleNames[what]);
}

bool World::TroubleReplicas(std::size_t what) {
  Replica& replica = *replicas_[random_.Below(replicas_.size())];
  if (!replica.running()) return false;
  switch (static_cast<Trouble>(what)) {
    case Trouble::kReplicaKilled:
      replica.Kill();
      StartAgainLater(replica);
      return true;
    case Trouble::kReplicaPaused:
      replica.Pause(random_.Between(Milliseconds(10), Milliseconds(3000)));
      return true;
    case Trouble::kReplicaDrained:
      if (replica.draining()) return false;
      replica.Drain();
      StartAgainLater(replica);
      return true;
    default:
      ChangePolicies();
      return true;
  }
}

void World::StartAgainLater(Replica& replica) {
  scheduler_.After(random_.Between(Milliseconds(50), Milliseconds(1500)),
                   [this, &replica] {
                     // One that drains takes its time.
                     if (replica.running()) return StartAgainLater(replica);
                     replica.Start();
                   });
}

bool World::TroubleDatabase(std::size_t what) {
  const auto down_for = random_.Between(
      Milliseconds(5), Milliseconds(random_.Chance(80) ? 300 : 2000));
  switch (static_cast<Trouble>(what)) {
    case Trouble::kDatabaseRestarted:
      return database_.Restart(down_for);
    case Trouble::kFailedOver:
      if (random_.Chance(40)) return database_.FailOver(down_for);
      return LoseTheStandbyThenThePrimary(down_for);
    case Trouble::kStandbyStalled:
      return database_.StallStandby(
          random_.Between(Milliseconds(20), Milliseconds(1500)));
    case Trouble::kWaitsCancelled:
      return database_.CancelWaits();
    case Trouble::kBackendsKilled:
      return database_.KillBackends();
    case Trouble::kClockSet: {
      const Microseconds ahead =
          random_.Between(Milliseconds(0), kClockAheadMax);
      return random_.Chance(30) ? database_.SetStandbyClock(ahead)
                                : database_.SetClock(ahead);
    }
    default:
      return database_.TurnReadOnly(
          random_.Between(Milliseconds(20), Milliseconds(1000)));
  }
}

// The hole in synchronous replication: while the standby lags, waits for it are
// cancelled, so that others see what it does not have when it takes over.
bool World::LoseTheStandbyThenThePrimary(Microseconds down_for) {
  const Microseconds lag = random_.Between(Milliseconds(50), Milliseconds(800));
  if (!database_.StallStandby(lag + Milliseconds(50))) return false;
  for (const int part : {3, 2}) {
    scheduler_.After(lag / part, [this] {
      if (!weather_.calm) database_.CancelWaits();
    });
  }
  scheduler_.After(lag, [this, down_for] {
    if (!weather_.calm) database_.FailOver(down_for);
  });
  return true;
}

// Of the raw callers' policies only: what operations are promised goes by
// theirs.
void World::ChangePolicies() {
  Policy& policy = database_.rules.policies["default"];
  policy.lease = absl::Milliseconds(200 + random_.Below(1500));
  policy.retention = absl::Milliseconds(1500 + random_.Below(4000));
  policy.on_abandoned =
      random_.Chance(30) ? OnAbandoned::kHold : OnAbandoned::kTakeOver;
  if (random_.Chance(50)) {
    Policy& later = database_.rules.policies["later"];
    later = policy;
    later.name = "later";
  } else {
    database_.rules.policies.erase("later");
  }
}

// ---- The run.

template <typename Done>
bool World::RunUntil(Milliseconds at_most, const Done& done) {
  const SteadyTime end = scheduler_.Now() + at_most;
  while (!done()) {
    if (!violations().empty()) return false;
    if (scheduler_.Now() > end || scheduler_.steps() > kStepsMax ||
        !scheduler_.RunNext()) {
      checker_.Violate("L3", "it goes on and on");
      return false;
    }
  }
  return violations().empty();
}

void World::Run() {
  raw_callers_.Start(3 + random_.Below(3));
  once_callers_.Start(4 + random_.Below(6), Milliseconds(6000));
  scheduler_.After(trouble_every_, [this] { MakeTrouble(); });
  if (RunUntil(kAskingMax,
               [this] { return raw_callers_.operations() >= kOperations; })) {
    EndInCalm();
  }
  EndAllFibers();
}

void World::EndInCalm() {
  weather_.calm = true;
  const auto quiet = [this] {
    return once_callers_.AllEnded() && raw_callers_.asking() == 0 &&
           std::all_of(replicas_.begin(), replicas_.end(),
                       [](const auto& replica) {
                         return replica->running() && !replica->draining();
                       });
  };
  // Pauses end, the database comes back, what is on its way arrives.
  const auto settle = [this] {
    const SteadyTime end = scheduler_.Now() + kSettles;
    return RunUntil(kCalmMax, [&] { return scheduler_.Now() >= end; });
  };
  if (!RunUntil(kCalmMax, quiet) || !settle()) return;
  for (const auto& replica : replicas_) replica->AllIsCalm();
  raw_callers_.AskForEveryKey();
  if (!RunUntil(kCalmMax, quiet)) return;
  once_callers_.StartForEveryKey();
  if (!RunUntil(kCalmMax, quiet) || !settle()) return;
  once_callers_.CheckEnd();
  checker_.CheckEnd();
}

// Everything lies still afterwards.
void World::EndAllFibers() {
  weather_.calm = true;
  for (const auto& replica : replicas_) replica->Kill();
  while (scheduler_.fibers() > 0 && scheduler_.RunNext()) {
    for (const auto& replica : replicas_) replica->Kill();
  }
}

}  // namespace idempotency
