#include "tests/fault/checker/story.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "server/core/errors.h"
#include "server/core/transitions.h"
#include "tests/fault/checker/explain.h"
#include "tests/fault/checker/hex.h"

namespace idempotency::fault {
namespace {

constexpr std::int64_t kEpochUs = 1'800'000'000'000'000;
constexpr std::int64_t kBeginNs = 5'000'000'000;
constexpr absl::Duration kStep = absl::Milliseconds(1);

std::int64_t Micros(absl::Time time) { return absl::ToUnixMicros(time); }

void TellExpiry(absl::Time expires_at, AnswerEvent& answer) {
  if (expires_at != absl::InfiniteFuture()) {
    answer.expires_us = Micros(expires_at);
  }
}

void TellAbandoned(const Abandoned& abandoned, AnswerEvent& answer) {
  constexpr SaidReason kReasons[] = {SaidReason::kLeaseLapsed,
                                     SaidReason::kOutcomeUnknown,
                                     SaidReason::kServerError};
  answer.abandoned_attempt = abandoned.attempt;
  answer.abandoned_fencing = abandoned.fencing_token;
  answer.abandoned_claimed_us = Micros(abandoned.claimed_at);
  answer.abandoned_us = Micros(abandoned.abandoned_at);
  answer.abandoned_reason = kReasons[static_cast<int>(abandoned.reason)];
  answer.abandoned_status = abandoned.status_code;
  answer.abandoned_checkpoint = ToHex(abandoned.checkpoint.value_or(""));
  answer.abandoned_owner = abandoned.owner;
}

std::string DownstreamOf(const RecordId& id, std::int32_t freed_count) {
  return id.scope + "/" + id.key + "/" + std::to_string(freed_count);
}

void Tell(const Claimed& claimed, AnswerEvent& answer) {
  answer.outcome = Outcome::kClaimed;
  answer.fencing = claimed.fencing_token;
  answer.attempt = claimed.attempt;
  answer.lease_us = absl::ToInt64Microseconds(claimed.lease);
  answer.lease_until_us = Micros(claimed.lease_expires_at);
  TellExpiry(claimed.expires_at, answer);
  if (claimed.abandoned.has_value()) TellAbandoned(*claimed.abandoned, answer);
}

void Tell(const Replay& replay, AnswerEvent& answer) {
  answer.outcome = Outcome::kReplay;
  answer.status = replay.response.status_code;
  answer.created_us = Micros(replay.created_at);
  answer.finalized_us = Micros(replay.finalized_at);
  TellExpiry(replay.expires_at, answer);
}

void Tell(const InProgress& in_progress, AnswerEvent& answer) {
  answer.outcome = Outcome::kInProgress;
  answer.attempt = in_progress.attempt;
  answer.lease_until_us = Micros(in_progress.lease_expires_at);
}

void Tell(const Mismatch& mismatch, AnswerEvent& answer) {
  answer.outcome = Outcome::kMismatch;
  answer.created_us = Micros(mismatch.created_at);
}

void Tell(const InDoubt& in_doubt, AnswerEvent& answer) {
  answer.outcome = Outcome::kInDoubt;
  TellAbandoned(in_doubt.abandoned, answer);
}

void Tell(const ClaimOutcome& outcome, AnswerEvent& answer) {
  std::visit([&](const auto& one) { Tell(one, answer); }, outcome);
}

void Tell(const FinalizeOutcome& outcome, AnswerEvent& answer) {
  constexpr Outcome kOutcomes[] = {
      Outcome::kRecorded, Outcome::kRecordedWithoutBody,
      Outcome::kResultReleased, Outcome::kResultInDoubt};
  answer.outcome = kOutcomes[static_cast<int>(outcome.result)];
  TellExpiry(outcome.expires_at, answer);
}

SaidState Said(VisibleState state) {
  constexpr SaidState kStates[] = {SaidState::kInProgress,
                                   SaidState::kFinalized, SaidState::kReleased,
                                   SaidState::kInDoubt};
  return kStates[static_cast<int>(state)];
}

void Tell(const ReleaseOutcome& outcome, AnswerEvent& answer) {
  answer.outcome =
      outcome.released ? Outcome::kReleased : Outcome::kNotReleased;
  if (outcome.state.has_value()) answer.state = Said(*outcome.state);
}

void Tell(const LookupOutcome& outcome, AnswerEvent& answer) {
  answer.outcome = Outcome::kFound;
  answer.state = Said(outcome.state);
  answer.fencing = outcome.record.fencing_token;
  answer.attempt = outcome.record.attempt;
  if (outcome.state != VisibleState::kFinalized) return;
  answer.status = outcome.record.response.status_code;
  answer.digest = ToHex(outcome.record.response_digest);
}

template <typename T>
T& Find(std::deque<T>& events, const std::string& op) {
  return *std::find_if(events.begin(), events.end(),
                       [&](const T& event) { return event.op == op; });
}

}  // namespace

Story::Story()
    : policy{.name = "short",
             .lease = absl::Seconds(1),
             .max_lease = absl::Seconds(10),
             .retention = absl::Seconds(2)},
      clocks{{.t = kBeginNs, .database_us = kEpochUs, .error_ns = 100'000}},
      now_(absl::FromUnixMicros(kEpochUs)) {}

std::int64_t Story::t() const {
  return kBeginNs + absl::ToUnixNanos(now_) - kEpochUs * 1000;
}

const Record* Story::Current() const {
  const auto found = records_.find(id());
  return found == records_.end() || !found->second.has_value()
             ? nullptr
             : &*found->second;
}

void Story::Log(ChangeKind kind, const Record& record) {
  const Record* const before = Current();
  changes.push_back({.seq = static_cast<std::int64_t>(changes.size()) + 1,
                     .kind = kind,
                     .old_version = before == nullptr ? 0 : before->version,
                     .row = {.id = id(), .at = now_, .record = record}});
}

void Story::Write(const Record& record) {
  Log(Current() == nullptr ? ChangeKind::kInsert : ChangeKind::kUpdate, record);
  records_[id()] = record;
}

void Story::Sweep() {
  const Record* const record = Current();
  if (record == nullptr || record->expires_at > now_) return;
  if (IsAbsent(*record, now_)) {
    Log(ChangeKind::kDelete, *record);
    records_[id()].reset();
    return;
  }
  Record parked = *record;
  parked.version += 1;
  parked.expires_at = absl::InfiniteFuture();
  Write(parked);
}

// ---- Calls.

CallEvent Story::ClaimCall(const std::string& op,
                           const std::string& token) const {
  return {.op = op,
          .path = Path::kUnary,
          .kind = Kind::kClaim,
          .scope = scope,
          .key = key,
          .token = token,
          .hash = kHash,
          .deadline_us = 1'000'000};
}

CallEvent Story::FinalizeCall(const std::string& op, const std::string& token,
                              const std::string& digest) const {
  CallEvent call = ClaimCall(op, token);
  call.kind = Kind::kFinalize;
  call.hash.clear();
  call.status = 200;
  call.digest = digest;
  return call;
}

CallEvent& Story::Send(CallEvent call) {
  call.t = t();
  return calls.emplace_back(std::move(call));
}

AnswerEvent& Story::Answer(AnswerEvent answer) {
  answer.t = t();
  return answers.emplace_back(std::move(answer));
}

AnswerEvent& Story::Fail(const std::string& op, const std::string& code,
                         const std::string& reason) {
  return Answer({.op = op, .code = code, .reason = reason});
}

AnswerEvent& Story::Do(CallEvent call) {
  Send(call);
  Advance(kStep);
  AnswerEvent answer = Decide(call);
  Advance(kStep);
  AnswerEvent& written = Answer(std::move(answer));
  Advance(kStep);
  return written;
}

AnswerEvent& Story::Claim(const std::string& op, const std::string& token) {
  return Do(ClaimCall(op, token));
}

AnswerEvent& Story::Finalize(const std::string& op, const std::string& token,
                             const std::string& digest) {
  return Do(FinalizeCall(op, token, digest));
}

AnswerEvent& Story::Lookup(const std::string& op) {
  CallEvent call = ClaimCall(op, "");
  call.kind = Kind::kLookup;
  call.hash.clear();
  return Do(call);
}

AnswerEvent& Story::Release(const std::string& op, const std::string& token,
                            SaidDisposition disposition) {
  CallEvent call = ClaimCall(op, token);
  call.kind = Kind::kRelease;
  call.hash.clear();
  call.disposition = disposition;
  return Do(call);
}

AnswerEvent Story::Decide(const CallEvent& call) {
  AnswerEvent answer{.op = call.op, .code = "OK"};
  const auto settle = [&](const auto& decision) {
    if (decision.write.has_value()) Write(*decision.write);
    if (decision.answer.ok()) {
      Tell(*decision.answer, answer);
      return;
    }
    answer.code = "FAILED_PRECONDITION";
    answer.reason = ReasonName(ReasonOf(decision.answer.status()));
  };
  Command command = CommandOf(call).value();
  if (auto* claim = std::get_if<ClaimCommand>(&command)) {
    claim->policy = policy;
    settle(DecideClaim(Current(), *claim, now_));
    if (answer.outcome == Outcome::kClaimed) {
      answer.downstream = DownstreamOf(id(), Current()->freed_count);
    }
    if (answer.outcome == Outcome::kReplay) {
      answer.digest = ToHex(Current()->response_digest);
    }
  } else if (auto* finalize = std::get_if<FinalizeCommand>(&command)) {
    const auto decision = DecideFinalize(Current(), *finalize, now_);
    settle(decision);
    if (decision.evidence) {
      conflicts.push_back({.id = id(),
                           .claim_token = finalize->claim_token,
                           .response_digest = finalize->response_digest,
                           .status_code = finalize->response.status_code});
    }
  } else if (auto* release = std::get_if<ReleaseCommand>(&command)) {
    settle(DecideRelease(Current(), *release, now_));
  } else {
    const absl::StatusOr<LookupOutcome> found = DecideLookup(Current(), now_);
    if (found.ok()) {
      Tell(*found, answer);
    } else {
      answer.code = "NOT_FOUND";
      answer.reason = ReasonName(ReasonOf(found.status()));
    }
  }
  return answer;
}

EffectEvent& Story::Effect(const std::string& token, std::int64_t fencing,
                           EffectResult result) {
  const std::int32_t freed = Current() == nullptr ? 0 : Current()->freed_count;
  return effects.emplace_back(
      EffectEvent{.t = t(),
                  .scope = scope,
                  .key = key,
                  .downstream = DownstreamOf(id(), freed),
                  .token = token,
                  .fencing = fencing,
                  .result = result});
}

NoteEvent& Story::Note(Phase phase, const std::string& caller) {
  return notes.emplace_back(
      NoteEvent{.t = t(), .fault = "test", .phase = phase, .caller = caller});
}

CallEvent& Story::call(const std::string& op) { return Find(calls, op); }
AnswerEvent& Story::answer(const std::string& op) { return Find(answers, op); }

// ---- The check.

absl::StatusOr<fault::Run> Story::Finish() const {
  RunBuilder builder;
  const auto add = [&](const auto& events) {
    absl::Status status = absl::OkStatus();
    for (const auto& event : events) status.Update(builder.Add(Event(event)));
    return status;
  };
  absl::Status status = add(calls);
  status.Update(add(answers));
  status.Update(add(effects));
  status.Update(add(notes));
  status.Update(add(clocks));
  if (!status.ok()) return status;
  for (const Change& change : changes) builder.Add(change);
  for (const Conflict& conflict : conflicts) builder.Add(conflict);
  std::map<RecordId, StoredRow> last;
  for (const Change& change : changes) {
    last[change.row.id] = change.row;
    if (change.kind == ChangeKind::kDelete) last.erase(change.row.id);
  }
  if (dump.has_value()) {
    for (const StoredRow& row : *dump) builder.Add(row);
  } else {
    for (const auto& [id, row] : last) builder.Add(row);
  }
  absl::StatusOr<fault::Run> run = builder.Finish();
  if (run.ok()) run->has_conflicts = true;
  return run;
}

Findings Story::Check() const {
  Findings findings;
  const absl::StatusOr<fault::Run> run = Finish();
  const absl::Status status =
      run.ok() ? fault::Check(*run, limits, findings) : run.status();
  if (!status.ok()) {
    findings.Violate("not checked", {}, std::string(status.message()));
  }
  return findings;
}

std::vector<std::string> Story::Broken() const {
  std::vector<std::string> broken;
  const Findings findings = Check();
  for (const Violation& violation : findings.violations()) {
    broken.push_back(violation.number + ": " + violation.what);
  }
  return broken;
}

}  // namespace idempotency::fault
