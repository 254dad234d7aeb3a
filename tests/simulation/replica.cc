#include "tests/simulation/replica.h"

#include <algorithm>
#include <string_view>
#include <type_traits>
#include <variant>

#include "server/core/limits.h"
#include "server/core/optimistic_store.h"
#include "server/database_watch.h"
#include "tests/simulation/planted_store.h"
#include "tests/simulation/process.h"
#include "tests/simulation/simulated_table.h"

namespace idempotency {
namespace {

// As in Lane::WaitForWork().
constexpr Milliseconds kSweepInterval{20};
constexpr Milliseconds kDrainPoll{5};
constexpr Milliseconds kDrainTimeout{2000};
// Every key that is waited for is looked at once in this time, and more.
constexpr Milliseconds kLearnsWithin{1500};

class NoLog final : public Log {
 public:
  void Write(Severity, std::string_view, const LogFields&) override {}
};

Microseconds Until(SteadyTime time, SteadyTime now) {
  constexpr std::chrono::hours kLongest{1};
  if (time - now > kLongest) return kLongest;
  return std::chrono::ceil<Microseconds>(time - now);
}

}  // namespace

struct Replica::Life {
  explicit Life(Scheduler& scheduler) : process(scheduler) {}

  struct Driver {
    explicit Driver(Scheduler& scheduler) : gate(scheduler) {}
    Lane* lane = nullptr;
    Gate gate;
    SteadyTime sleeps_until = SteadyTime::min();  // min: it is at work
  };

  Process process;
  FleetRulesCache rules;
  Metrics metrics;
  NoLog log;
  std::unique_ptr<Engine> engine;
  std::vector<std::unique_ptr<Driver>> drivers;
  std::unique_ptr<Reaper> reaper;
  std::unique_ptr<DatabaseWatch> watch;
  // As the watch saw it last, or is about to.
  bool serving = false;
  std::uint64_t looks_at = 0;    // the database's epoch
  std::uint64_t heard_from = 0;  // likewise, when it last could be used
  SteadyTime remembers_since = SteadyTime::max();
  bool draining = false;
  bool stopped = false;
  int fibers = 0;
  int lanes_at_work = 0;
};

class Replica::Connection {
 public:
  Connection(Scheduler& scheduler, std::function<void()> broken)
      : scheduler_(scheduler),
        order_(scheduler.random().Next()),
        broken_(std::move(broken)) {}
  ~Connection() {
    if (broken_) scheduler_.AsDrawn(order_, std::move(broken_));
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void Answer(Scheduler::Task tell) {
    broken_ = nullptr;
    scheduler_.AsDrawn(order_, std::move(tell));
  }

 private:
  Scheduler& scheduler_;
  // The engine may answer in the order of a hash table.
  const std::uint64_t order_;
  std::function<void()> broken_;
};

Replica::Replica(const ReplicaParts& parts) : parts_(parts) {}
Replica::~Replica() = default;

// ---- Life and death.

void Replica::SpawnInto(Life& life, std::function<void()> body) {
  ++life.fibers;
  parts_.scheduler.Spawn(
      Microseconds(0), [this, &life, body = std::move(body)] {
        body();
        if (--life.fibers == 0) {
          parts_.scheduler.After(Microseconds(0), [this] { BuryTheDead(); });
        }
      });
}

void Replica::Start() {
  BuryTheDead();
  life_ = std::make_unique<Life>(parts_.scheduler);
  Life& life = *life_;
  life.remembers_since = parts_.scheduler.Now();
  const auto make_store = [&] {
    return WithPlantedBug(
        std::make_unique<OptimisticStore>(
            std::make_unique<SimulatedTable>(parts_.database, life.process,
                                             parts_.weather),
            parts_.scheduler, life.metrics),
        parts_.scheduler, parts_.database.bug());
  };
  std::vector<std::unique_ptr<Store>> stores;
  for (std::size_t i = 0; i < parts_.lanes; ++i) stores.push_back(make_store());
  life.engine = std::make_unique<Engine>(
      parts_.lane_options, parts_.scheduler, life.rules, life.metrics, life.log,
      std::move(stores), make_store(), parts_.replay_cache_bytes);
  for (Lane* const lane : life.engine->lanes()) {
    auto driver = std::make_unique<Life::Driver>(parts_.scheduler);
    driver->lane = lane;
    life.drivers.push_back(std::move(driver));
    SpawnInto(life, [this, &life, number = life.drivers.size() - 1] {
      RunLane(life, number);
    });
  }
  life.reaper = std::make_unique<Reaper>(
      ReaperOptions{.batch = 2, .pause = absl::FromChrono(parts_.reaper_pause)},
      std::make_unique<SimulatedSweeper>(parts_.database, life.process,
                                         parts_.weather),
      parts_.scheduler, life.metrics, [](const auto&) {});
  life.watch = std::make_unique<DatabaseWatch>(DatabaseWatch::Parts{
      .migrate = nullptr,
      .check_schema = [] { return absl::OkStatus(); },
      .check_durability = nullptr,
      .store = make_store(),
      .rules = life.rules,
      .clock = parts_.scheduler,
      .log = life.log,
      .serving = [this, &life](bool serving) { SetServing(life, serving); }});
  const auto repeat = [&life](const std::function<absl::Duration()>& step) {
    while (!life.process.dead()) {
      const absl::Duration rest = step();
      life.process.Sleep(absl::ToChronoMicroseconds(rest));
    }
  };
  SpawnInto(life, [this, &life, repeat] {
    repeat([this, &life] {
      life.looks_at = parts_.database.epoch();
      return life.watch->Look();
    });
  });
  SpawnInto(life, [&life, repeat] {
    repeat([&life] {
      return life.rules.Get() == nullptr ? absl::Milliseconds(100)
                                         : life.reaper->SweepOnce();
    });
  });
}

// As App::SetServing() does. Connections to an earlier database have ended
// since this look began, if there was one: what it said must be forgotten now.
void Replica::SetServing(Life& life, bool serving) {
  if (serving && !life.serving &&
      parts_.database.bug() != PlantedBug::kServingForgetsNothing) {
    life.engine->ForgetReplays();
  }
  life.serving = serving;
  if (!serving || life.heard_from == life.looks_at) return;
  life.heard_from = life.looks_at;
  life.remembers_since = parts_.scheduler.Now();
}

void Replica::Kill() {
  if (life_ == nullptr) return;
  life_->process.Kill();
  dead_.push_back(std::move(life_));
}

void Replica::BuryTheDead() {
  std::erase_if(dead_, [](const auto& life) { return life->fibers == 0; });
}

void Replica::Pause(Microseconds duration) {
  if (life_ != nullptr) life_->process.Pause(duration);
}

Microseconds Replica::pause_left() const {
  return life_ == nullptr ? Microseconds(0) : life_->process.pause_left();
}

bool Replica::draining() const { return life_ != nullptr && life_->draining; }

void Replica::Drain() {
  if (life_ == nullptr || life_->draining) return;
  Life& life = *life_;
  life.draining = true;
  life.engine->StopAccepting();
  WakeLanes(life);
  SpawnInto(life, [this, &life] {
    const SteadyTime end = parts_.scheduler.Now() + kDrainTimeout;
    while (!life.engine->idle() && parts_.scheduler.Now() < end &&
           !life.process.dead()) {
      life.process.Sleep(kDrainPoll);
    }
    if (life.process.dead()) return;
    life.engine->Stop();
    life.stopped = true;
    WakeLanes(life);
    while (life.lanes_at_work > 0 && !life.process.dead()) {
      life.process.Sleep(kDrainPoll);
    }
    if (!life.process.dead()) Kill();
  });
}

// ---- What its threads do.

void Replica::RunLane(Life& life, std::size_t number) {
  Life::Driver& driver = *life.drivers[number];
  Scheduler& scheduler = parts_.scheduler;
  ++life.lanes_at_work;
  while (!life.process.dead() && !life.stopped) {
    const SteadyTime now = scheduler.Now();
    SteadyTime next = driver.lane->next_work();
    if (driver.lane->queued() > 0) next = std::min(next, now + kSweepInterval);
    if (next <= now) {
      driver.sleeps_until = SteadyTime::min();
      driver.lane->RunBatch();
      WakeLanes(life);
      life.process.Sleep(
          scheduler.random().Between(Microseconds(5), Microseconds(60)));
      continue;
    }
    driver.sleeps_until = next;
    life.process.WaitAt(driver.gate, Until(next, now));
  }
  // Answers what is left.
  if (!life.process.dead()) driver.lane->RunBatch();
  --life.lanes_at_work;
}

void Replica::WakeLanes(Life& life) {
  for (const auto& driver : life.drivers) {
    if (driver->sleeps_until == SteadyTime::min()) continue;
    if (life.stopped || driver->lane->next_work() < driver->sleeps_until) {
      driver->gate.Open();
    }
  }
}

// ---- Calls.

// Once there is no trouble, a waiter's answer is to be explained by what the
// record was of late, and not just at some moment since it asked.
HistoryChecker::Sent Replica::CheckWait(const RecordId& id,
                                        const HistoryChecker::Sent& sent,
                                        const Life& life,
                                        SteadyTime wait_until) {
  if (!calm_since_.has_value() || life.draining ||
      wait_until < *calm_since_ + kLearnsWithin) {
    return sent;
  }
  if (parts_.scheduler.Now() > wait_until + kLearnsWithin) {
    parts_.checker.ViolateAbout(id, "W2", "a wait did not end");
  }
  return parts_.checker.NotBefore(id, sent,
                                  parts_.scheduler.Now() - kLearnsWithin);
}

// Nobody is sent away early who may wait.
void Replica::CheckPatience(const Life& life, SteadyTime wait_until,
                            const ClaimOutcome& outcome) {
  if (std::holds_alternative<InProgress>(outcome) && !life.draining &&
      parts_.scheduler.Now() + limits::kLockWaitMax < wait_until) {
    parts_.checker.Violate("W1", "a wait ended early");
  }
}

template <typename Command, typename Outcome>
void Replica::Serve(const Command& command, const Patience& patience,
                    std::function<void(absl::StatusOr<Outcome>)> answered,
                    std::function<void()> broken) {
  Life& life = *life_;
  const SteadyTime now = parts_.scheduler.Now();
  CallContext context;
  context.deadline = now + patience.listens;
  if (patience.waits > Microseconds(0)) {
    context.wait_until = std::min<SteadyTime>(
        now + patience.waits, context.deadline - limits::kWaitMargin);
  }
  if (patience.gone_at.has_value()) {
    context.cancelled = [gone_at = *patience.gone_at,
                         &scheduler = parts_.scheduler] {
      return scheduler.Now() >= gone_at;
    };
  }
  HistoryChecker::Sent sent = parts_.checker.Send(command);
  if (parts_.replay_cache_bytes > 0) {
    sent.remembers_since = life.remembers_since;
  }
  const SteadyTime wait_until = context.wait_until;
  Command asked = command;
  if (parts_.database.bug() == PlantedBug::kScopeIsForgotten) {
    asked.id.scope = "one";
  }
  auto connection =
      std::make_unique<Connection>(parts_.scheduler, std::move(broken));
  if (parts_.database.bug() == PlantedBug::kQueuedCallsAreForgotten &&
      parts_.scheduler.random().PerMille(5)) {
    connection->Answer([] {});
    return;
  }
  life.engine->Submit(
      std::move(asked), std::move(context),
      Done<Outcome>([this, &life, command, sent, wait_until,
                     answered = std::move(answered),
                     connection = std::move(connection)](
                        absl::StatusOr<Outcome> answer) mutable {
        if (life.process.dead()) return;
        if constexpr (std::is_same_v<Command, ClaimCommand>) {
          parts_.checker.Answer(CheckWait(command.id, sent, life, wait_until),
                                command, answer);
          if (answer.ok()) CheckPatience(life, wait_until, *answer);
        } else {
          parts_.checker.Answer(sent, command, answer);
        }
        connection->Answer([answered = std::move(answered),
                            answer = std::move(answer)]() mutable {
          answered(std::move(answer));
        });
      }));
  WakeLanes(life);
}

template void Replica::Serve<ClaimCommand, ClaimOutcome>(
    const ClaimCommand&, const Patience&,
    std::function<void(absl::StatusOr<ClaimOutcome>)>, std::function<void()>);
template void Replica::Serve<FinalizeCommand, FinalizeOutcome>(
    const FinalizeCommand&, const Patience&,
    std::function<void(absl::StatusOr<FinalizeOutcome>)>,
    std::function<void()>);
template void Replica::Serve<LookupCommand, LookupOutcome>(
    const LookupCommand&, const Patience&,
    std::function<void(absl::StatusOr<LookupOutcome>)>, std::function<void()>);
template void Replica::Serve<ReleaseCommand, ReleaseOutcome>(
    const ReleaseCommand&, const Patience&,
    std::function<void(absl::StatusOr<ReleaseOutcome>)>, std::function<void()>);

}  // namespace idempotency
