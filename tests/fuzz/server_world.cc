#include "tests/fuzz/server_world.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "google/rpc/error_details.pb.h"
#include "server/core/limits.h"
#include "server/core/optimistic_store.h"
#include "server/core/transitions.h"
#include "server/rpc/status.h"
#include "server/rpc/validation.h"
#include "server/rpc/wire_calls.h"
#include "tests/fuzz/check.h"

namespace idempotency::fuzz {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr std::size_t kLanes = 2;
constexpr int kRoundsMax = 10'000;
// How long before its deadline a call may be given up: it may have met a lock.
constexpr milliseconds kMargins =
    limits::kWaitMargin + limits::kLockWaitMax + limits::kAnswerMargin;

const FleetRules& Rules() {
  static const FleetRules made = [] {
    const Policy brief = {.name = "default",
                          .lease = absl::Seconds(1),
                          .max_lease = absl::Seconds(3),
                          .retention = absl::Seconds(4)};
    FleetRules rules;
    rules.downstream_namespace.bytes.fill(0x5a);
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
    rules.scopes["payments"] = {.policy = "held", .enforced = true};
    return rules;
  }();
  return made;
}

std::string ReasonIn(const google::rpc::Status& error) {
  google::rpc::ErrorInfo info;
  for (const auto& detail : error.details()) {
    if (detail.UnpackTo(&info)) return info.reason();
  }
  return "";
}

Told ErrorOf(const grpc::Status& status) {
  Told told;
  Require(told.error.ParseFromString(status.error_details()) &&
              told.error.code() == static_cast<int>(status.error_code()),
          "an error has details, with its code");
  return told;
}

// The request as the engine is to get it, or why it is to be refused.
absl::StatusOr<Sent> Validated(const v1::Command& command) {
  const auto sent = [](auto validated) -> absl::StatusOr<Sent> {
    if (!validated.ok()) return validated.status();
    return Sent{.command = *std::move(validated)};
  };
  switch (command.command_case()) {
    case v1::Command::kClaim:
      return sent(ValidateClaim(command.claim()));
    case v1::Command::kFinalize:
      return sent(
          ValidateFinalize(command.finalize(), ServerWorld::kBodyBytesMax));
    case v1::Command::kLookup:
      return sent(ValidateLookup(command.lookup()));
    default:
      return sent(ValidateRelease(command.release()));
  }
}

}  // namespace

const std::vector<RecordId>& ServerWorld::ids() {
  static const std::vector<RecordId> all = {
      {"orders", "a"}, {"orders/create", "b"}, {"payments", "c"}};
  return all;
}

// ---- What is open.

struct ServerWorld::Stream {
  grpc::CallbackServerContext context;
  BulkSide side;
  std::size_t messages_taken = 0;
  bool abandoned = false;
  bool half_closed = false;
};

template <typename Wire>
struct ServerWorld::UnaryInHand final : InHand {
  bool Collect() override {
    if (!side.finished() || told.has_value()) return false;
    Require(side.done(), "gRPC is done with a call that is answered");
    if (side.status().ok()) {
      told = Told{.message = response.SerializeAsString()};
    } else {
      told = ErrorOf(side.status());
    }
    return true;
  }

  typename Wire::Request request;
  typename Wire::Response response;
  grpc::CallbackServerContext context;
  UnarySide side;
};

// ---- The replicas.

ServerWorld::ServerWorld(const Options& options) : options_(options) {
  database_.SetRules(Rules());
  for (const RecordId& id : ids()) models_.emplace_back(id, Rules());
  for (std::size_t i = 0; i < kReplicas; ++i) Start(i);
}

ServerWorld::~ServerWorld() = default;

void ServerWorld::Start(std::size_t number) {
  Replica& replica = replicas_[number];
  replica.service = nullptr;
  replica.engine = nullptr;
  replica.metrics = std::make_unique<Metrics>();
  const auto make_store = [&] {
    return std::make_unique<OptimisticStore>(
        std::make_unique<MemoryTable>(
            database_,
            [this, number](MemoryStatement, StatementPhase phase) {
              return OnStatement(number, phase);
            }),
        clock_, *replica.metrics);
  };
  std::vector<std::unique_ptr<Store>> stores;
  for (std::size_t i = 0; i < kLanes; ++i) stores.push_back(make_store());
  LaneOptions lane;
  lane.batch_items_max = options_.batch_items_max;
  lane.queue_wait_max = milliseconds(0);
  replica.engine = std::make_unique<Engine>(
      lane, clock_, replica.rules, *replica.metrics, log_, std::move(stores),
      make_store(), options_.replay_cache_bytes);
  replica.service =
      std::make_unique<Service>(ServiceOptions{.body_bytes_max = kBodyBytesMax},
                                ServiceParts{.engine = *replica.engine,
                                             .rules = replica.rules,
                                             .clock = clock_,
                                             .log = log_,
                                             .metrics = *replica.metrics,
                                             .random = [] { return kRandom; }});
  replica.draining = false;
}

absl::Status ServerWorld::OnStatement(std::size_t number,
                                      StatementPhase phase) {
  Replica& replica = replicas_[number];
  if (!replica.planned.has_value()) return absl::OkStatus();
  const Fault fault = replica.planned->fault;
  if ((phase == StatementPhase::kAfterCommit) != (fault == Fault::kLostAfter) ||
      replica.planned->later-- > 0) {
    return absl::OkStatus();
  }
  replica.planned.reset();
  replica.has_failed = true;
  switch (fault) {
    case Fault::kLocked:
      return absl::AbortedError("locked");
    case Fault::kAway:
      return absl::UnavailableError("away");
    default:
      effects_are_unsure_ = true;
      return absl::UnknownError("the reply was lost");
  }
}

void ServerWorld::PlanFault(std::size_t replica, Fault fault, int later) {
  replicas_[replica].planned = {.fault = fault, .later = later};
}

void ServerWorld::Drain(std::size_t number) {
  Replica& replica = replicas_[number];
  replica.draining = true;
  replica.engine->StopAccepting();
  replica.service->streams().Drain();
}

void ServerWorld::Restart(std::size_t number) {
  const bool busy =
      std::any_of(calls_.begin(), calls_.end(),
                  [&](const auto& call) { return call->replica == number; });
  if (!replicas_[number].draining || busy || !ending_.empty() ||
      replicas_[number].stream != nullptr) {
    return;
  }
  Start(number);
}

void ServerWorld::PassTime(milliseconds time) {
  database_.Advance(absl::FromChrono(time));
  clock_.Advance(time);
}

void ServerWorld::Sweep(int limit) {
  MemorySweeper sweeper(database_);
  Require(sweeper.SweepRecords(limit).ok(), "a sweep succeeds");
  for (RecordModel& model : models_) {
    model.Sweep(database_.Find(model.id()), database_.Now());
  }
}

// ---- The callers.

std::unique_ptr<ServerWorld::InHand> ServerWorld::Prepare(
    std::size_t replica, const v1::Command& command,
    std::unique_ptr<InHand> made) {
  const auto timeout = ValidateTimeout(command);
  Require(timeout.ok(), "the timeouts are good ones");
  nanoseconds wait{0};
  if (command.has_claim()) {
    wait = absl::ToChronoNanoseconds(WaitOf(command.claim()));
  }
  made->replica = replica;
  made->submitted = clock_.Now();
  made->patience =
      std::min<nanoseconds>(*timeout, limits::kDeadlineDefault + wait);
  while (ids()[made->key] != made->id()) ++made->key;
  return made;
}

void ServerWorld::CheckRefusal(const absl::Status& wanted, const Told& told) {
  Require(told.error.SerializeAsString() ==
              ToErrorReply(wanted, kRandom).details.SerializeAsString(),
          "a bad request is refused, with the reason");
}

template <typename Wire>
void ServerWorld::CallAs(std::size_t replica, const v1::Command& command,
                         const typename Wire::Request& request) {
  auto call = std::make_unique<UnaryInHand<Wire>>();
  call->request = request;
  call->side.Bind(replicas_[replica].service->template Start<Wire>(
      &call->context, &call->request, &call->response));
  absl::StatusOr<Sent> sent = Validated(command);
  if (!sent.ok()) {
    Require(call->Collect(), "a bad request is refused at once");
    return CheckRefusal(sent.status(), *call->told);
  }
  call->command = std::move(sent->command);
  calls_.push_back(Prepare(replica, command, std::move(call)));
}

void ServerWorld::Call(std::size_t replica, const v1::Command& command) {
  switch (command.command_case()) {
    case v1::Command::kClaim:
      return CallAs<ClaimWire>(replica, command, command.claim());
    case v1::Command::kFinalize:
      return CallAs<FinalizeWire>(replica, command, command.finalize());
    case v1::Command::kLookup:
      return CallAs<LookupWire>(replica, command, command.lookup());
    default:
      return CallAs<ReleaseWire>(replica, command, command.release());
  }
}

ServerWorld::Stream* ServerWorld::StreamOf(std::size_t number) {
  Replica& replica = replicas_[number];
  if (replica.stream == nullptr) {
    replica.stream = std::make_unique<Stream>();
    replica.stream->side.Bind(
        replica.service->streams().Open(&replica.stream->context));
  }
  return replica.stream.get();
}

void ServerWorld::SendBulk(std::size_t replica, v1::BulkRequest message) {
  Stream* const stream = StreamOf(replica);
  if (!stream->side.reading() || stream->side.ended()) return;
  for (v1::Command& command : *message.mutable_commands()) {
    command.set_id(next_id_++);
    absl::StatusOr<Sent> sent = Validated(command);
    if (!sent.ok()) {
      refused_by_id_[command.id()] = sent.status();
      continue;
    }
    auto call = std::make_unique<InHand>();
    call->command = std::move(sent->command);
    by_id_[command.id()] = call.get();
    calls_.push_back(Prepare(replica, command, std::move(call)));
  }
  stream->side.Send(message);
}

void ServerWorld::CancelBulk(std::size_t number) {
  std::unique_ptr<Stream>& stream = replicas_[number].stream;
  if (stream == nullptr) return;
  stream->abandoned = true;
  // Results that were on their way are lost with it.
  for (auto& [id, call] : by_id_) {
    if (call->replica == number) call->abandoned = true;
  }
  std::erase_if(by_id_, [](const auto& one) { return one.second->abandoned; });
  refused_by_id_.clear();
  stream->side.Cancel();
  ending_.push_back(std::move(stream));
}

void ServerWorld::HalfCloseBulk(std::size_t number) {
  Stream* const stream = replicas_[number].stream.get();
  if (stream == nullptr || !stream->side.reading() || stream->side.ended()) {
    return;
  }
  stream->half_closed = true;
  stream->side.HalfClose();
}

// ---- What comes of it.

void ServerWorld::RunLanes() {
  int rounds = 0;
  bool ran = true;
  while (ran) {
    ran = false;
    for (Replica& replica : replicas_) {
      for (Lane* const lane : replica.engine->lanes()) {
        if (lane->next_work() > clock_.Now()) continue;
        lane->RunBatch();
        ran = true;
        Require(++rounds < kRoundsMax, "lanes get done");
      }
    }
  }
}

void ServerWorld::TakeResults(Stream& stream) {
  const auto& messages = stream.side.messages();
  for (; stream.messages_taken < messages.size(); ++stream.messages_taken) {
    if (stream.abandoned) continue;
    for (const v1::Result& result : messages[stream.messages_taken].results()) {
      Told told;
      if (result.has_error()) {
        told.error = result.error();
      } else if (result.has_claim()) {
        told.message = result.claim().SerializeAsString();
      } else if (result.has_finalize()) {
        told.message = result.finalize().SerializeAsString();
      } else if (result.has_lookup()) {
        told.message = result.lookup().SerializeAsString();
      } else {
        told.message = result.release().SerializeAsString();
      }
      if (auto refused = refused_by_id_.extract(result.id());
          !refused.empty() && ReasonIn(told.error) != "DRAINING") {
        CheckRefusal(refused.mapped(), told);
        continue;
      }
      const auto call = by_id_.extract(result.id());
      if (call.empty()) {
        Require(ReasonIn(told.error) == "DRAINING",
                "every command has one result");
        continue;
      }
      call.mapped()->told = std::move(told);
    }
  }
}

void ServerWorld::RunStreams() {
  const auto run = [&](std::unique_ptr<Stream>& stream) {
    if (stream == nullptr) return;
    while (stream->side.writing()) {
      stream->side.FinishWrite(!stream->abandoned);
    }
    TakeResults(*stream);
    if (!stream->side.ended()) return;
    if (stream->half_closed && !stream->abandoned) {
      Require(stream->side.end()->ok(), "a stream ends well after its end");
    }
    stream->side.Done();
    stream = nullptr;
  };
  for (Replica& replica : replicas_) run(replica.stream);
  for (std::unique_ptr<Stream>& stream : ending_) run(stream);
  std::erase(ending_, nullptr);
}

bool ServerWorld::IsExcused(const InHand& call) const {
  const Replica& replica = replicas_[call.replica];
  const std::string reason = ReasonIn(call.told->error);
  if (reason == "DRAINING") return replica.draining;
  if (reason == "STORE_UNAVAILABLE" || reason == "OUTCOME_UNKNOWN") {
    return replica.has_failed;
  }
  return reason == "DEADLINE_EXCEEDED" &&
         clock_.Now() - call.submitted + kMargins >= call.patience;
}

void ServerWorld::CheckEvidence(const RecordModel& model) const {
  const std::size_t kept = database_.ConflictsOf(model.id()).size();
  Require(kept >= std::min<std::size_t>(model.evidence(),
                                        limits::kConflictsPerRecordMax),
          "who is told that a response is refused leaves evidence");
}

void ServerWorld::CheckAnswers() {
  std::vector<RecordModel::Happened> happened(models_.size());
  for (const std::unique_ptr<InHand>& call : calls_) {
    call->Collect();
    RecordModel::Happened& here = happened[call->key];
    const bool told = call->told.has_value();
    if (told && !IsExcused(*call)) here.answered.push_back(call.get());
    if (call->abandoned || effects_are_unsure_) {
      here.unseen.push_back(call.get());
    }
    if (!told && std::holds_alternative<ClaimCommand>(call->command)) {
      here.waiting.push_back(call.get());
    }
  }
  for (std::size_t i = 0; i < models_.size(); ++i) {
    models_[i].Explain(happened[i], database_.Find(models_[i].id()),
                       database_.Now());
    CheckEvidence(models_[i]);
  }
  effects_are_unsure_ = false;
  const bool idle = std::all_of(
      replicas_.begin(), replicas_.end(),
      [](const Replica& replica) { return replica.engine->idle(); });
  std::erase_if(calls_, [&](const auto& call) {
    return call->told.has_value() || (call->abandoned && idle);
  });
}

void ServerWorld::Settle() {
  RunLanes();
  RunStreams();
  CheckAnswers();
}

// Whoever still waits does so because somebody else's attempt runs.
void ServerWorld::CheckThatNobodyIsForgotten() {
  for (const std::unique_ptr<InHand>& call : calls_) {
    if (call->abandoned) continue;
    const auto* claim = std::get_if<ClaimCommand>(&call->command);
    const std::optional<Record>& record = models_[call->key].record();
    Require(claim != nullptr && record.has_value() &&
                record->state == RecordState::kUnfinished &&
                record->gave_up == GaveUp::kNo &&
                record->lease_expires_at > database_.Now(),
            "only a claim waits, and only for an attempt that runs");
  }
}

void ServerWorld::Finish() {
  for (Replica& replica : replicas_) replica.planned.reset();
  Settle();
  // Rules that could not be read are read anew after a second, a store that
  // failed is asked again sooner, as are records that others wait for.
  for (int i = 0; i < 20; ++i) {
    PassTime(milliseconds(150));
    Settle();
  }
  CheckThatNobodyIsForgotten();
  for (std::size_t i = 0; i < kReplicas; ++i) HalfCloseBulk(i);
  for (int i = 0; i < 5; ++i) {
    PassTime(limits::kWaitMax / 2);
    Settle();
  }
  Require(calls_.empty(), "every call is answered");
  for (const Replica& replica : replicas_) {
    Require(replica.stream == nullptr, "every stream ends");
    Require(replica.metrics->reply_bytes == 0, "no memory stays reserved");
  }
  Require(ending_.empty(), "every stream ends");
}

}  // namespace idempotency::fuzz
