#include "tests/unit/engine_world.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "server/core/limits.h"
#include "server/core/optimistic_store.h"

namespace idempotency {
namespace {

constexpr std::size_t kKeys = 3;
constexpr std::size_t kLanes = 2;
constexpr int kDepthMax = 3;
constexpr int kSweepBatch = 2;
// Enough for all keys.
constexpr std::size_t kReplayCacheBytes = limits::kMiB;

FleetRules Rules() {
  const Policy brief = {.name = "default",
                        .lease = absl::Seconds(1),
                        .max_lease = absl::Seconds(3),
                        .retention = absl::Seconds(4)};
  FleetRules rules;
  rules.policies["default"] = brief;
  Policy& held = rules.policies["held"] = brief;
  held.name = "held";
  held.on_abandoned = OnAbandoned::kHold;
  held.on_server_error = OnServerError::kHold;
  Policy& recorded = rules.policies["recorded"] = brief;
  recorded.name = "recorded";
  recorded.on_server_error = OnServerError::kRecord;
  Policy& permanent = rules.policies["permanent"] = brief;
  permanent.name = "permanent";
  permanent.retention = std::nullopt;
  permanent.retention_after_finalize = absl::Seconds(3);
  return rules;
}

bool IsWrite(MemoryStatement statement) {
  switch (statement) {
    case MemoryStatement::kInsertNew:
    case MemoryStatement::kFinalizeOwned:
    case MemoryStatement::kReplace:
    case MemoryStatement::kKeepConflicts:
    case MemoryStatement::kSweepRecords:
    case MemoryStatement::kSweepConflicts:
      return true;
    default:
      return false;
  }
}

template <typename Item>
std::vector<const Item*> PointersTo(const std::vector<Item>& items) {
  std::vector<const Item*> pointers;
  for (const Item& item : items) pointers.push_back(&item);
  return pointers;
}

template <typename Item>
std::vector<Item> CopiesOf(Batch<Item> items) {
  std::vector<Item> copies;
  for (const Item* item : items) copies.push_back(*item);
  return copies;
}

std::vector<RecordId> MakeIds() {
  std::vector<RecordId> ids;
  for (std::size_t i = 0; i < kKeys; ++i) {
    ids.push_back({"simulated", "key-" + std::to_string(i)});
  }
  return ids;
}

absl::Status Lost() { return absl::UnknownError("the reply was lost"); }

}  // namespace

// A lane's table: the one in memory, with writes that may arrive late, and
// with the planted bug.
class EngineWorld::Table final : public RecordTable {
 public:
  explicit Table(EngineWorld& world)
      : world_(world),
        inner_(world.database_,
               [&world](MemoryStatement statement, StatementPhase phase) {
                 return world.OnStatement(statement, phase);
               }) {}

  absl::StatusOr<std::vector<std::optional<absl::Time>>> InsertNew(
      Batch<ClaimCommand> claims) override {
    if (world_.IsToArriveLater()) {
      world_.lost_statements_.push_back([this, copies = CopiesOf(claims)] {
        inner_.InsertNew(PointersTo(copies)).status().IgnoreError();
      });
      return Lost();
    }
    return inner_.InsertNew(claims);
  }

  absl::StatusOr<std::vector<std::optional<absl::Time>>> FinalizeOwned(
      Batch<FinalizeCommand> finalizes) override {
    if (world_.IsToArriveLater()) {
      world_.lost_statements_.push_back([this, copies = CopiesOf(finalizes)] {
        inner_.FinalizeOwned(PointersTo(copies)).status().IgnoreError();
      });
      return Lost();
    }
    if (world_.bug_ != PlantedBug::kFinalizeIgnoresTheOwner) {
      return inner_.FinalizeOwned(finalizes);
    }
    std::vector<FinalizeCommand> as_owner = CopiesOf(finalizes);
    for (FinalizeCommand& finalize : as_owner) {
      const std::optional<Record> record = world_.database_.Find(finalize.id);
      if (record.has_value()) finalize.claim_token = record->claim_token;
    }
    return inner_.FinalizeOwned(PointersTo(as_owner));
  }

  absl::StatusOr<Snapshot> Read(Batch<RecordId> ids,
                                ReadBodies bodies) override {
    return inner_.Read(ids, bodies);
  }

  absl::StatusOr<std::vector<bool>> Replace(
      Batch<Replacement> replacements) override {
    std::vector<Copy> copies;
    for (const Replacement* one : replacements) {
      copies.push_back({*one->id, *one->before, *one->after});
    }
    if (world_.IsToArriveLater()) {
      world_.lost_statements_.push_back(
          [this, copies] { ReplaceCopies(copies).status().IgnoreError(); });
      return Lost();
    }
    Plant(copies);
    return ReplaceCopies(copies);
  }

  absl::StatusOr<std::vector<bool>> KeepConflicts(
      Batch<Conflict> conflicts) override {
    return inner_.KeepConflicts(conflicts);
  }
  absl::StatusOr<std::vector<int>> CountConflicts(
      Batch<RecordId> ids) override {
    return inner_.CountConflicts(ids);
  }
  absl::StatusOr<std::vector<bool>> FindChanged(
      Batch<Watched> watched) override {
    if (world_.bug_ == PlantedBug::kLooksFindNothing) {
      return std::vector<bool>(watched.size());
    }
    return inner_.FindChanged(watched);
  }
  absl::StatusOr<FleetRules> ReadRules() override { return inner_.ReadRules(); }

 private:
  struct Copy {
    RecordId id;
    Record before;
    Record after;
  };

  absl::StatusOr<std::vector<bool>> ReplaceCopies(
      const std::vector<Copy>& copies) {
    std::vector<Replacement> replacements;
    for (const Copy& copy : copies) {
      replacements.push_back(
          {.id = &copy.id, .before = &copy.before, .after = &copy.after});
    }
    return inner_.Replace(PointersTo(replacements));
  }

  void Plant(std::vector<Copy>& copies) {
    for (Copy& copy : copies) {
      const std::optional<Record> now = world_.database_.Find(copy.id);
      if (world_.bug_ == PlantedBug::kReplaceIgnoresTheGuard &&
          now.has_value()) {
        copy.before = *now;
      }
      if (world_.bug_ == PlantedBug::kTakeoverIsNotTold &&
          copy.after.attempt > copy.before.attempt) {
        copy.after.abandoned.reset();
      }
    }
  }

  EngineWorld& world_;
  MemoryTable inner_;
};

EngineWorld::EngineWorld(std::uint64_t seed, PlantedBug bug)
    : bug_(bug), random_(seed), checker_(database_, MakeIds()) {
  database_.SetRules(Rules());
  for (const RecordId& id : MakeIds()) keys_.push_back({id, {}});
  LaneOptions options;
  options.batch_items_max = 1 + Below(6);
  if (Chance(10)) options.queue_items_max = 3;
  for (Replica& replica : replicas_) {
    const auto make_store = [&] {
      return std::make_unique<OptimisticStore>(std::make_unique<Table>(*this),
                                               clock_, replica.metrics);
    };
    std::vector<std::unique_ptr<Store>> stores;
    for (std::size_t i = 0; i < kLanes; ++i) stores.push_back(make_store());
    replica.engine = std::make_unique<Engine>(
        options, clock_, replica.rules, replica.metrics, log_,
        std::move(stores), make_store(), Chance(50) ? kReplayCacheBytes : 0);
    replica.lanes = replica.engine->lanes();
    replica.busy.resize(replica.lanes.size());
  }
}

EngineWorld::~EngineWorld() = default;

absl::Duration EngineWorld::AnyDuration() {
  constexpr int kMillis[] = {1, 5, 20, 60, 150, 250, 600, 1000, 2500, 5000};
  return absl::Milliseconds(kMillis[Below(std::size(kMillis))]);
}

void EngineWorld::Run(int steps) {
  for (int i = 0; i < steps && checker_.violations().empty(); ++i) Step();
  violations_ = checker_.violations();
  if (!violations_.empty()) calm_ = true;
  Finish();
}

void EngineWorld::Step() {
  const std::size_t what = Below(100);
  if (what < 30) {
    AskAnything();
  } else if (what < 82) {
    RunALane();
  } else if (what < 90) {
    PassTime(AnyDuration());
  } else if (what < 94) {
    Sweep();
  } else {
    LetALostStatementArrive();
  }
  if (Below(1000) == 0) {
    replicas_[1].engine->StopAccepting();
    replicas_[1].draining = true;
  }
}

// ---- The callers.

void EngineWorld::AskAnything() {
  Key& key = keys_[Below(keys_.size())];
  const std::size_t what = Below(100);
  if (what < 48 || key.attempts.empty()) {
    AskForClaim(key);
  } else if (what < 73) {
    AskToFinalize(key);
  } else if (what < 87) {
    AskToRelease(key);
  } else {
    AskToLookup(key);
  }
}

EngineWorld::Attempt& EngineWorld::NewAttempt(Key& key) {
  Attempt attempt;
  attempt.number = ++attempts_;
  attempt.token.bytes[0] = static_cast<std::uint8_t>(attempt.number / 256);
  attempt.token.bytes[1] = static_cast<std::uint8_t>(attempt.number % 256);
  attempt.request_hash = Chance(92) ? "the request" : "another request";
  key.attempts.push_back(std::move(attempt));
  return key.attempts.back();
}

// Mostly one of the latest, which are the ones that may own the key.
EngineWorld::Attempt& EngineWorld::AnyAttempt(Key& key) {
  const std::size_t all = key.attempts.size();
  const std::size_t recent = Chance(80) ? std::min<std::size_t>(all, 3) : all;
  return key.attempts[all - 1 - Below(recent)];
}

void EngineWorld::AskForClaim(Key& key) {
  constexpr const char* kPolicies[] = {"", "held", "recorded", "permanent"};
  const bool anew = key.attempts.empty() || Chance(60);
  const Attempt& attempt = anew ? NewAttempt(key) : AnyAttempt(key);
  ClaimCommand claim{.id = key.id,
                     .request_hash = attempt.request_hash,
                     .claim_token = attempt.token};
  claim.policy_name = kPolicies[Below(std::size(kPolicies))];
  if (Chance(50)) claim.lease = absl::Milliseconds(100) + AnyDuration();
  claim.resolve_in_doubt = Chance(35);
  if (!anew && Chance(40)) {
    claim.renew_fencing_token =
        attempt.fencing_token != 0 ? attempt.fencing_token : 1;
  }
  if (Chance(40)) {
    claim.checkpoint_number = static_cast<std::int64_t>(Below(4));
    claim.checkpoint = "progress " + std::to_string(claim.checkpoint_number) +
                       " of " + std::to_string(attempt.number);
  }
  Ask<ClaimCommand, ClaimOutcome>(std::move(claim));
}

void EngineWorld::AskToFinalize(Key& key) {
  constexpr int kStatuses[] = {200, 201, 404, 500, 504};
  const Attempt& attempt = AnyAttempt(key);
  FinalizeCommand finalize{.id = key.id, .claim_token = attempt.token};
  finalize.response.status_code =
      kStatuses[Chance(80) ? static_cast<std::size_t>(attempt.number) % 3
                           : Below(std::size(kStatuses))];
  finalize.response.body = "by " + std::to_string(attempt.number);
  finalize.response_digest = std::to_string(finalize.response.status_code) +
                             " " + finalize.response.body;
  Ask<FinalizeCommand, FinalizeOutcome>(std::move(finalize));
}

void EngineWorld::AskToRelease(Key& key) {
  constexpr Disposition kDispositions[] = {Disposition::kNotExecuted,
                                           Disposition::kOutcomeUnknown,
                                           Disposition::kNeverExecuted};
  Ask<ReleaseCommand, ReleaseOutcome>(
      {.id = key.id,
       .claim_token = AnyAttempt(key).token,
       .disposition = kDispositions[Below(std::size(kDispositions))]});
}

void EngineWorld::AskToLookup(Key& key) {
  Ask<LookupCommand, LookupOutcome>({.id = key.id});
}

template <typename Command, typename Outcome>
void EngineWorld::Ask(Command command) {
  CallContext context;
  context.deadline = clock_.Now() + std::chrono::milliseconds(500) +
                     absl::ToChronoNanoseconds(10 * AnyDuration());
  if (Chance(8)) {
    const SteadyTime gone =
        clock_.Now() + absl::ToChronoNanoseconds(AnyDuration());
    context.cancelled = [this, gone] { return clock_.Now() >= gone; };
  }
  const std::size_t replica = Below(replicas_.size());
  if (std::is_same_v<Command, ClaimCommand> && Chance(50)) {
    context.wait_until = std::min<SteadyTime>(
        clock_.Now() + absl::ToChronoNanoseconds(AnyDuration()),
        context.deadline - limits::kWaitMargin);
  }
  ++asked_;
  const HistoryChecker::Sent sent = checker_.Send(command);
  const SteadyTime wait_until = context.wait_until;
  replicas_[replica].engine->Submit(
      command, std::move(context),
      Done<Outcome>([this, sent, command, replica,
                     wait_until](absl::StatusOr<Outcome> answer) {
        ++answered_;
        if constexpr (std::is_same_v<Command, ClaimCommand>) {
          checker_.Answer(CheckWait(sent, replicas_[replica], wait_until),
                          command, answer);
          if (answer.ok()) {
            CheckPatience(replicas_[replica], wait_until, *answer);
            NoteClaim(command, *answer);
          }
        } else {
          checker_.Answer(sent, command, answer);
        }
      }));
}

void EngineWorld::NoteClaim(const ClaimCommand& command,
                            const ClaimOutcome& outcome) {
  const auto* const claimed = std::get_if<Claimed>(&outcome);
  if (claimed == nullptr) return;
  for (Key& key : keys_) {
    for (Attempt& attempt : key.attempts) {
      if (attempt.token == command.claim_token) {
        attempt.fencing_token = claimed->fencing_token;
      }
    }
  }
}

// ---- The replicas, time and trouble.

void EngineWorld::RunALane() {
  Replica& replica = replicas_[Below(replicas_.size())];
  const std::size_t i = Below(replica.lanes.size());
  if (replica.busy[i]) return;
  replica.busy[i] = true;
  replica.lanes[i]->RunBatch();
  replica.busy[i] = false;
}

void EngineWorld::PassTime(absl::Duration by) {
  database_.Advance(by);
  clock_.Advance(absl::ToChronoNanoseconds(by));
  checker_.Observe();
}

void EngineWorld::Sweep() {
  if (bug_ == PlantedBug::kSweepDoesNotLookAgain) {
    SweepWithoutLookingAgain();
    return;
  }
  MemorySweeper sweeper(
      database_, [this](MemoryStatement statement, StatementPhase phase) {
        return OnStatement(statement, phase);
      });
  sweeper.SweepRecords(kSweepBatch).status().IgnoreError();
}

// Deletes what was due when it looked, whatever has become of it since.
void EngineWorld::SweepWithoutLookingAgain() {
  std::vector<RecordId> due;
  for (const Key& key : keys_) {
    const std::optional<Record> record = database_.Find(key.id);
    if (record.has_value() && !record->held &&
        record->expires_at <= database_.Now()) {
      due.push_back(key.id);
    }
  }
  OnStatement(MemoryStatement::kSweepRecords, StatementPhase::kBefore)
      .IgnoreError();
  for (const RecordId& id : due) {
    std::optional<Record> record = database_.Find(id);
    if (!record.has_value()) continue;
    record->held = false;
    record->expires_at = database_.Now();
    database_.Put(id, *std::move(record));
  }
  MemorySweeper(database_)
      .SweepRecords(static_cast<int>(keys_.size()))
      .status()
      .IgnoreError();
  checker_.Observe();
}

void EngineWorld::LetALostStatementArrive() {
  if (lost_statements_.empty()) return;
  const std::size_t i = Below(lost_statements_.size());
  const std::function<void()> arrive = std::move(lost_statements_[i]);
  lost_statements_.erase(lost_statements_.begin() +
                         static_cast<std::ptrdiff_t>(i));
  const bool calm = std::exchange(calm_, true);
  arrive();
  calm_ = calm;
}

absl::Status EngineWorld::OnStatement(MemoryStatement statement,
                                      StatementPhase phase) {
  const bool write = IsWrite(statement);
  if (write && phase == StatementPhase::kAfterCommit) checker_.Observe();
  if (calm_) return absl::OkStatus();
  if (depth_ < kDepthMax && Chance(30)) {
    ++depth_;
    for (std::size_t i = 1 + Below(3); i > 0; --i) Step();
    --depth_;
  }
  const std::size_t luck = Below(100);
  if (phase == StatementPhase::kAfterCommit) {
    if (luck >= 5) return absl::OkStatus();
    return write && bug_ != PlantedBug::kLostReplyCountsAsUndone
               ? Lost()
               : absl::UnavailableError("the reply was lost");
  }
  if (luck < 3) return absl::UnavailableError("not reached");
  if (luck < 6) return absl::AbortedError("a lock");
  if (luck < 7) return absl::InternalError("a poisoned batch");
  return absl::OkStatus();
}

}  // namespace idempotency
