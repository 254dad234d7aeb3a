#include "tests/fault/checker/states.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "tests/support/record_rules.h"

namespace idempotency::fault {
namespace {

// A call takes so long at most from its decision to its place in the log.
constexpr std::int64_t kDecidedBeforeNs = 5'000'000'000;
// What readings of a clock that nobody sets differ by.
constexpr absl::Duration kSteady = absl::Milliseconds(10);

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

}  // namespace

States::States(const RecordId& id, const KeyHistory& key,
               const DatabaseClock& clock)
    : id_(id), key_(key), clock_(clock) {
  constexpr std::int64_t kEver = std::numeric_limits<std::int64_t>::min();
  states_.push_back(nullptr);
  made_.push_back({.earliest = kEver, .latest = kEver});
  for (const Change& change : key.changes) {
    const bool deleted = change.kind == ChangeKind::kDelete;
    states_.push_back(deleted ? nullptr : &change.row.record);
    made_.push_back({.earliest = std::max(made_.back().earliest,
                                          clock.FirstAt(change.row.at)),
                     .latest = clock.LastAt(change.row.at)});
  }
  for (std::size_t i = made_.size(); i-- > 1;) {
    made_[i - 1].latest = std::min(made_[i - 1].latest, made_[i].latest);
  }
  for (const Operation& operation : key.operations) {
    if (const Uuid* token = operation.token()) {
      by_token_[*token].push_back(&operation);
    }
  }
}

absl::Time States::DecidedBy(std::size_t i) const {
  const std::int64_t from = EarliestOf(i) - kDecidedBeforeNs;
  const std::int64_t until = LatestOf(i);
  const absl::Time logged = ChangeTo(i).row.at;
  if (clock_.VariationBetween(from, until) < kSteady) return logged;
  return std::max(logged, clock_.Between(from, until).latest);
}

std::string States::NameOf(std::size_t i) const {
  const Change& change = ChangeTo(i);
  const Record& record = change.row.record;
  const std::string what = change.kind == ChangeKind::kDelete
                               ? "deleted"
                               : fault::NameOf(record.state);
  return "change " + std::to_string(change.seq) + " (" + what + ", attempt " +
         std::to_string(record.attempt) + ", fencing token " +
         std::to_string(record.fencing_token) + ", claim token " +
         FormatUuid(record.claim_token) + ")";
}

std::size_t States::FirstAt(std::int64_t t) const {
  // A change can be seen from its commit on, which the log does not tell: by
  // the next change of the record it was there.
  const auto next =
      std::partition_point(made_.begin(), made_.end(),
                           [&](const Made& made) { return made.latest < t; });
  const auto i = static_cast<std::size_t>(next - made_.begin());
  return i < 2 ? 0 : i - 2;
}

std::size_t States::LastAt(std::int64_t t) const {
  const auto next = std::partition_point(
      made_.begin(), made_.end(),
      [&](const Made& made) { return made.earliest <= t; });
  return static_cast<std::size_t>(next - made_.begin()) - 1;
}

bool States::WasOver(const Record& state, std::int64_t t) const {
  return IsOver(state, clock_.At(t).earliest);
}

Span States::SpanOfChange(const Operation& operation, std::size_t i) const {
  const std::int64_t called = operation.call.t;
  return {clock_.Between(called, std::max(called, LatestOf(i))).earliest,
          DecidedBy(i)};
}

Span States::SpanOfRead(const Operation& operation, std::size_t i) const {
  std::int64_t from = std::max(operation.call.t, EarliestOf(i));
  std::int64_t until = operation.answer->t;
  if (i + 2 < count()) until = std::min(until, LatestOf(i + 2));
  if (until < from) std::swap(from, until);
  const auto [earliest, latest] = clock_.Between(from, until);
  Span span = {earliest, latest};
  // The log is more exact, unless the clock has stepped in between.
  if (i > 0 && ChangeTo(i).row.at <= latest) {
    span.from = std::max(earliest, ChangeTo(i).row.at);
  }
  if (i + 2 < count() && ChangeTo(i + 2).row.at >= span.from) {
    span.until = std::min(latest, ChangeTo(i + 2).row.at);
  }
  return span;
}

const std::vector<const Operation*>& States::OperationsOf(
    const Uuid& token) const {
  static const std::vector<const Operation*> none;
  const auto found = by_token_.find(token);
  return found == by_token_.end() ? none : found->second;
}

std::string Describe(const Operation& operation) {
  return std::string(KindName(operation.call.kind)) + " " + operation.name();
}

std::string WordOf(const AnswerEvent& answer) {
  return answer.code == "OK" ? std::string(OutcomeName(answer.outcome))
                             : answer.reason;
}

}  // namespace idempotency::fault
