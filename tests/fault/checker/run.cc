#include "tests/fault/checker/run.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_set.h"

namespace idempotency::fault {
namespace {

constexpr std::string_view kDecisions[] = {"CLAIM_RELEASED", "CLAIM_SUPERSEDED",
                                           "ALREADY_FINALIZED",
                                           "RECORD_NOT_FOUND"};
constexpr std::string_view kNothingHappened[] = {
    "INVALID_FIELD",     "UNKNOWN_POLICY", "POLICY_NOT_ALLOWED",
    "STORE_UNAVAILABLE", "OVERLOADED",     "DRAINING",
    "DEADLINE_EXCEEDED"};

bool Contains(auto& list, std::string_view text) {
  return std::find(std::begin(list), std::end(list), text) != std::end(list);
}

bool IsSentOnce(const CallEvent& call, const AnswerEvent& answer) {
  return (call.path == Path::kUnary || call.path == Path::kBulk) &&
         answer.sends == 1;
}

void Hear(const std::string& op, std::int64_t t, Run& run) {
  std::int64_t& last = run.last_heard[CallerOf(op)];
  last = std::max(last, t);
}

absl::Status CheckAnswer(const Operation& operation) {
  const AnswerEvent& answer = *operation.answer;
  if (answer.t < operation.call.t) {
    return absl::InvalidArgumentError(operation.name() +
                                      " is answered before it is called");
  }
  const bool has_response = answer.outcome == Outcome::kReplay ||
                            (answer.outcome == Outcome::kFound &&
                             answer.state == SaidState::kFinalized);
  if (has_response && answer.digest.empty() &&
      operation.call.kind != Kind::kOnce) {
    return absl::InvalidArgumentError(operation.name() +
                                      " has a response without a digest");
  }
  return absl::OkStatus();
}

void Sort(KeyHistory& key) {
  std::sort(key.operations.begin(), key.operations.end(),
            [](const Operation& a, const Operation& b) {
              return a.call.t < b.call.t;
            });
  std::sort(
      key.effects.begin(), key.effects.end(),
      [](const EffectEvent& a, const EffectEvent& b) { return a.t < b.t; });
  std::sort(key.changes.begin(), key.changes.end(),
            [](const Change& a, const Change& b) { return a.seq < b.seq; });
}

absl::Status ReadTables(const Files& files, RunBuilder& run) {
  absl::Status status = ReadTransitions(
      files.transitions, [&](Change change) { run.Add(std::move(change)); });
  if (!status.ok()) return status;
  status =
      ReadRecords(files.dump, [&](StoredRow row) { run.Add(std::move(row)); });
  if (!status.ok() || files.conflicts.empty()) return status;
  return ReadConflicts(files.conflicts, [&](Conflict conflict) {
    run.Add(std::move(conflict));
  });
}

}  // namespace

const Uuid* Operation::token() const {
  if (const auto* claim = std::get_if<ClaimCommand>(&command)) {
    return &claim->claim_token;
  }
  if (const auto* finalize = std::get_if<FinalizeCommand>(&command)) {
    return &finalize->claim_token;
  }
  if (const auto* release = std::get_if<ReleaseCommand>(&command)) {
    return &release->claim_token;
  }
  return nullptr;
}

Certainty CertaintyOf(const CallEvent& call,
                      const std::optional<AnswerEvent>& answer) {
  if (!answer.has_value()) return Certainty::kUnknown;
  if (answer->code == "OK") {
    return answer->outcome == Outcome::kNone ? Certainty::kUnknown
                                             : Certainty::kFact;
  }
  if (Contains(kDecisions, answer->reason)) return Certainty::kFact;
  if (Contains(kNothingHappened, answer->reason) && IsSentOnce(call, *answer)) {
    return Certainty::kNothing;
  }
  return Certainty::kUnknown;
}

std::string CallerOf(const std::string& op) {
  return op.substr(0, op.rfind('-'));
}

absl::Status RunBuilder::Add(Event&& event) {
  if (auto* call = std::get_if<CallEvent>(&event)) {
    return AddCall(std::move(*call));
  }
  if (auto* answer = std::get_if<AnswerEvent>(&event)) {
    return AddAnswer(std::move(*answer));
  }
  if (auto* effect = std::get_if<EffectEvent>(&event)) {
    const RecordId id{effect->scope, effect->key};
    run_.keys[id].effects.push_back(std::move(*effect));
  } else if (auto* note = std::get_if<NoteEvent>(&event)) {
    run_.notes.push_back(std::move(*note));
  } else {
    run_.clocks.push_back(std::get<ClockEvent>(event));
  }
  return absl::OkStatus();
}

void RunBuilder::Add(Change change) {
  const RecordId id = change.row.id;
  run_.keys[id].changes.push_back(std::move(change));
}

void RunBuilder::Add(StoredRow row) {
  const RecordId id = row.id;
  run_.keys[id].dump.push_back(std::move(row));
}

void RunBuilder::Add(Conflict conflict) {
  const RecordId id = conflict.id;
  run_.keys[id].conflicts.push_back(std::move(conflict));
}

absl::Status RunBuilder::AddCall(CallEvent call) {
  Hear(call.op, call.t, run_);
  if (!names_.insert(call.op).second) {
    return absl::InvalidArgumentError(call.op + " is called twice");
  }
  absl::StatusOr<Command> command = CommandOf(call);
  if (!command.ok()) return command.status();
  const RecordId id{call.scope, call.key};
  if (!call.token.empty()) run_.token_owners.emplace(call.token, id);
  run_.keys[id].operations.push_back(
      {.call = std::move(call), .command = *std::move(command)});
  return absl::OkStatus();
}

absl::Status RunBuilder::AddAnswer(AnswerEvent answer) {
  Hear(answer.op, answer.t, run_);
  const std::string op = answer.op;
  if (answers_.emplace(op, std::move(answer)).second) return absl::OkStatus();
  return absl::InvalidArgumentError(op + " is answered twice");
}

absl::Status RunBuilder::Settle(Operation& operation) {
  const auto found = answers_.find(operation.name());
  if (found != answers_.end()) {
    operation.answer = std::move(found->second);
    answers_.erase(found);
    if (absl::Status status = CheckAnswer(operation); !status.ok()) {
      return status;
    }
  }
  operation.certainty = CertaintyOf(operation.call, operation.answer);
  return absl::OkStatus();
}

absl::StatusOr<Run> RunBuilder::Finish() {
  for (auto& [id, key] : run_.keys) {
    for (Operation& operation : key.operations) {
      if (absl::Status status = Settle(operation); !status.ok()) return status;
    }
    Sort(key);
  }
  if (!answers_.empty()) {
    return absl::InvalidArgumentError("the answer of " +
                                      answers_.begin()->first + " has no call");
  }
  return std::move(run_);
}

absl::StatusOr<Run> ReadRun(const Files& files) {
  RunBuilder run;
  for (const std::string& path : files.histories) {
    absl::Status status = ReadHistory(
        path, [&](Event&& event) { return run.Add(std::move(event)); });
    if (!status.ok()) return status;
  }
  if (absl::Status status = ReadTables(files, run); !status.ok()) {
    return status;
  }
  absl::StatusOr<Run> read = run.Finish();
  if (read.ok()) read->has_conflicts = !files.conflicts.empty();
  return read;
}

}  // namespace idempotency::fault
