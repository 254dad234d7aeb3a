#include "tests/fault/checker/key_check.h"

#include <algorithm>
#include <variant>

#include "tests/fault/checker/answer_fits.h"
#include "tests/fault/checker/explain.h"
#include "tests/support/record_rules.h"

namespace idempotency::fault {
namespace {

const char* NameOf(RecordState state) {
  switch (state) {
    case RecordState::kUnfinished:
      return "unfinished";
    case RecordState::kFinal:
      return "final";
    case RecordState::kReleased:
      return "released";
  }
  return "?";
}

std::string Describe(const Operation& operation) {
  constexpr const char* kKinds[] = {"?",      "Claim",   "Finalize",
                                    "Lookup", "Release", "Once"};
  return std::string(kKinds[static_cast<int>(operation.call.kind)]) + " " +
         operation.name();
}

}  // namespace

KeyCheck::KeyCheck(const RecordId& id, const KeyHistory& key,
                   const fault::Run& run, const DatabaseClock& clock,
                   Findings& findings)
    : id_(id),
      key_(key),
      run_(run),
      clock_(clock),
      findings_(findings),
      states_{nullptr},
      since_{absl::InfinitePast()},
      is_explained_{true} {
  for (const Change& change : key.changes) {
    const bool deleted = change.kind == ChangeKind::kDelete;
    states_.push_back(deleted ? nullptr : &change.row.record);
    since_.push_back(std::max(since_.back(), change.row.at));
    is_explained_.push_back(false);
  }
  for (const Operation& operation : key.operations) {
    if (const Uuid* token = operation.token()) {
      by_token_[*token].push_back(&operation);
    } else if (std::holds_alternative<OnceCommand>(operation.command)) {
      once_.push_back(&operation);
    }
  }
}

void KeyCheck::Run() {
  CheckLog();
  PlaceAnswers();
  AttributeChanges();
}

std::size_t KeyCheck::FirstStateAt(std::int64_t t) const {
  // A change can be seen from its commit on, which the log does not tell: by
  // the next change of the record it was there.
  const absl::Time time = clock_.ToDatabase(t) - clock_.error();
  const auto next = std::lower_bound(since_.begin(), since_.end(), time);
  const auto i = static_cast<std::size_t>(next - since_.begin());
  return i < 2 ? 0 : i - 2;
}

std::size_t KeyCheck::LastStateAt(std::int64_t t) const {
  const absl::Time time = clock_.ToDatabase(t) + clock_.error();
  const auto next = std::upper_bound(since_.begin(), since_.end(), time);
  return static_cast<std::size_t>(next - since_.begin()) - 1;
}

std::optional<std::int64_t> KeyCheck::FirstGrantOf(
    const std::optional<Uuid>& token) const {
  for (std::size_t i = 1; i < states_.size(); ++i) {
    if (states_[i] != nullptr &&
        states_[i]->claim_token == token.value_or(states_[i]->claim_token)) {
      return clock_.ToMonotonic(since_[i]);
    }
  }
  return std::nullopt;
}

bool KeyCheck::WasOver(const Record& state, std::int64_t t) const {
  return IsOver(state, clock_.ToDatabase(t) - clock_.error());
}

void KeyCheck::Violate(const std::string& number, const std::string& what) {
  findings_.Violate(number, id_, what);
}

std::string KeyCheck::NameOf(std::size_t i) const {
  const Change& change = key_.changes[i - 1];
  const Record& record = change.row.record;
  const std::string what = change.kind == ChangeKind::kDelete
                               ? "deleted"
                               : fault::NameOf(record.state);
  return "change " + std::to_string(change.seq) + " (" + what + ", attempt " +
         std::to_string(record.attempt) + ", fencing token " +
         std::to_string(record.fencing_token) + ", claim token " +
         FormatUuid(record.claim_token) + ")";
}

const std::vector<const Operation*>& KeyCheck::OperationsOf(
    const Uuid& token) const {
  static const std::vector<const Operation*> none;
  const auto found = by_token_.find(token);
  return found == by_token_.end() ? none : found->second;
}

// ---- The log by itself.

void KeyCheck::CheckLog() {
  for (std::size_t i = 1; i < states_.size(); ++i) CheckOneChange(i);
}

void KeyCheck::CheckOneChange(std::size_t i) {
  const Change& change = key_.changes[i - 1];
  const auto [before, after] = StepTo(i);
  const bool inserted = change.kind == ChangeKind::kInsert;
  if (inserted != (before == nullptr) ||
      (before != nullptr && before->version != change.old_version)) {
    Violate("S17",
            "the log has a gap, or the table went back, before " + NameOf(i));
  }
  absl::Time now = change.row.at;
  bool resolves = false;
  if (after != nullptr &&
      (before == nullptr || before->fencing_token != after->fencing_token)) {
    now = std::min(now, after->claimed_at);
    CheckGrant(*after);
    for (const Operation* operation : OperationsOf(after->claim_token)) {
      resolves |= operation->call.resolve;
    }
    // Not seen from here: whoever uses HTTP or RunOnce may resolve.
    resolves |= OperationsOf(after->claim_token).empty() && !once_.empty();
  }
  CheckChange(before, after, now, resolves,
              [&](const std::string& promise, const std::string& what) {
                Violate(promise, what + ": " + NameOf(i));
              });
}

void KeyCheck::CheckGrant(const Record& after) {
  if (after.fencing_token < fencing_token_) {
    Violate("S2", "fencing token " + std::to_string(after.fencing_token) +
                      " was granted after " + std::to_string(fencing_token_));
  }
  fencing_token_ = std::max(fencing_token_, after.fencing_token);
  const auto [owner, is_new] =
      owners_.emplace(after.fencing_token, after.claim_token);
  if (!is_new) {
    Violate("S1", "fencing token " + std::to_string(after.fencing_token) +
                      " was granted to " + FormatUuid(owner->second) +
                      " and then to " + FormatUuid(after.claim_token));
  }
}

// What it may not delete is for CheckChange() to say.
bool KeyCheck::IsSweepers(std::size_t i) const {
  return states_[i] == nullptr ||
         IsParking(StepTo(i), key_.changes[i - 1].row.at);
}

// ---- Answers.

void KeyCheck::PlaceAnswers() {
  std::vector<const Operation*> answered;
  for (const Operation& operation : key_.operations) {
    if (operation.certainty == Certainty::kFact) answered.push_back(&operation);
  }
  std::sort(answered.begin(), answered.end(),
            [](const Operation* a, const Operation* b) {
              return a->answer->t < b->answer->t;
            });
  for (const Operation* operation : answered) PlaceAnswer(*operation);
}

std::size_t KeyCheck::LeastFor(std::int64_t called) const {
  const auto ended = std::partition_point(
      seen_.begin(), seen_.end(),
      [&](const auto& seen) { return seen.first < called; });
  return ended == seen_.begin() ? 0 : (ended - 1)->second;
}

void KeyCheck::PlaceAnswer(const Operation& operation) {
  const std::size_t first = FirstStateAt(operation.call.t);
  const std::size_t last = LastStateAt(operation.answer->t);
  for (std::size_t i = std::max(first, LeastFor(operation.call.t)); i <= last;
       ++i) {
    if (!IsExplainedBy(operation, i)) continue;
    if (TellsOfChange(*operation.answer) ||
        operation.answer->outcome == Outcome::kExecuted) {
      is_explained_[i] = true;
    }
    const std::size_t seen = seen_.empty() ? 0 : seen_.back().second;
    seen_.emplace_back(operation.answer->t, std::max(seen, i));
    return;
  }
  RefuseAnswer(operation, first, last);
}

Span KeyCheck::SpanOf(const Operation& operation, std::size_t i) const {
  return {clock_.ToDatabase(operation.call.t) - clock_.error(),
          key_.changes[i - 1].row.at};
}

bool KeyCheck::IsExplainedBy(const Operation& operation, std::size_t i) const {
  const AnswerEvent& answer = *operation.answer;
  if (answer.outcome == Outcome::kExecuted) return OnceRan(operation, i);
  if (TellsOfChange(answer)) {
    return i > 0 && !is_explained_[i] &&
           Makes(operation.command, StepTo(i), SpanOf(operation, i), &answer);
  }
  Span span = {clock_.ToDatabase(operation.call.t) - clock_.error(),
               clock_.ToDatabase(answer.t) + clock_.error()};
  span.from = std::max(span.from, since_[i]);
  if (i + 2 < since_.size()) span.until = std::min(span.until, since_[i + 2]);
  return Answers(operation.command, answer, states_[i], span);
}

bool KeyCheck::OnceRan(const Operation& operation, std::size_t i) const {
  if (i == 0 || states_[i] == nullptr || is_explained_[i]) return false;
  const auto [before, after] = StepTo(i);
  const bool granted =
      before == nullptr || before->fencing_token != after->fencing_token;
  const AnswerEvent& answer = *operation.answer;
  return granted && OperationsOf(after->claim_token).empty() &&
         (answer.fencing == 0 || answer.fencing == after->fencing_token) &&
         Makes(operation.command, StepTo(i), SpanOf(operation, i), nullptr);
}

void KeyCheck::RefuseAnswer(const Operation& operation, std::size_t first,
                            std::size_t last) {
  const AnswerEvent& answer = *operation.answer;
  const std::string told =
      Describe(operation) + " was told " +
      (answer.code == "OK" ? std::string(OutcomeName(answer.outcome))
                           : answer.reason);
  for (std::size_t i = first; i <= last; ++i) {
    if (!IsExplainedBy(operation, i)) continue;
    Violate("S17", told + ", which was so before " + NameOf(i + 1) +
                       " that others had seen");
    return;
  }
  Violate(NumberOf(operation, first, last),
          told + ", and no state of the record explains it");
}

// The promise that an answer without an explanation breaks.
std::string KeyCheck::NumberOf(const Operation& operation, std::size_t first,
                               std::size_t last) const {
  const AnswerEvent& answer = *operation.answer;
  const auto* const claim = std::get_if<ClaimCommand>(&operation.command);
  for (std::size_t i = first; i <= last; ++i) {
    const Record* const state = states_[i];
    if (state == nullptr) continue;
    const bool has_response = answer.outcome == Outcome::kReplay ||
                              answer.state == SaidState::kFinalized;
    if (has_response && state->state == RecordState::kFinal) {
      if (claim != nullptr && claim->request_hash != state->request_hash) {
        return "S11";
      }
      return "S9";
    }
    if (answer.outcome == Outcome::kClaimed &&
        answer.fencing == state->fencing_token &&
        !TellsOf(state->abandoned, answer)) {
      return "S16";
    }
  }
  switch (answer.outcome) {
    case Outcome::kClaimed:
      return "S1";
    case Outcome::kReplay:
      return "S10";
    case Outcome::kInProgress:
      return "S5";
    case Outcome::kMismatch:
      return "S11";
    case Outcome::kInDoubt:
      return "S16";
    case Outcome::kFound:
      return "S8";
    case Outcome::kReleased:
    case Outcome::kNotReleased:
      return "S12";
    case Outcome::kExecuted:
      return "ORDER";
    default:
      break;
  }
  if (operation.call.kind == Kind::kFinalize) return "S7";
  if (operation.call.kind == Kind::kLookup) return "S8";
  return "S12";
}

// ---- Changes that no answer told of.

void KeyCheck::AttributeChanges() {
  for (std::size_t i = 1; i < states_.size(); ++i) {
    if (!is_explained_[i] && !IsSweepers(i)) AttributeChange(i);
  }
}

bool KeyCheck::MakesChange(const Operation& operation, std::size_t i) const {
  return Makes(operation.command, StepTo(i), SpanOf(operation, i), nullptr);
}

void KeyCheck::AttributeChange(std::size_t i) {
  const Operation* definite = nullptr;
  const Operation* late = nullptr;
  for (const Operation* operation : OperationsOf(states_[i]->claim_token)) {
    if (!MakesChange(*operation, i)) continue;
    if (operation->certainty == Certainty::kUnknown) return;
    (operation->certainty == Certainty::kNothing ? definite : late) = operation;
  }
  if (late != nullptr) {
    ++findings_.counts.late_changes;
    return;
  }
  if (definite == nullptr && OperationsOf(states_[i]->claim_token).empty() &&
      MakesChangeOnce(i)) {
    return;
  }
  RefuseChange(i, definite);
}

bool KeyCheck::MakesChangeOnce(std::size_t i) const {
  return std::any_of(once_.begin(), once_.end(), [&](const Operation* once) {
    return MakesChange(*once, i);
  });
}

void KeyCheck::RefuseChange(std::size_t i, const Operation* definite) {
  if (definite != nullptr) {
    const bool expired = definite->answer->reason == "DEADLINE_EXCEEDED";
    Violate(expired ? "S20" : "S15",
            NameOf(i) + " was made by " + Describe(*definite) +
                ", which was told " + definite->answer->reason);
    return;
  }
  const auto owner =
      run_.token_owners.find(FormatUuid(states_[i]->claim_token));
  if (owner != run_.token_owners.end() && owner->second != id_) {
    Violate("S13", NameOf(i) + " has a claim token of " + owner->second.scope +
                       " " + owner->second.key);
    return;
  }
  std::string candidates;
  for (const Operation* operation : OperationsOf(states_[i]->claim_token)) {
    candidates +=
        (candidates.empty() ? "; by its token: " : ", ") + Describe(*operation);
  }
  Violate("ORDER", "no operation explains " + NameOf(i) + candidates);
}

}  // namespace idempotency::fault
