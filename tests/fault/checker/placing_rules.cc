// Which state of a record each answer tells of.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/fault/checker/answer_fits.h"
#include "tests/fault/checker/explain.h"
#include "tests/fault/checker/order_rules.h"

namespace idempotency::fault {
namespace {

class Placing {
 public:
  Placing(const States& states, Findings& findings)
      : states_(states), findings_(findings), told_(states.count(), false) {
    told_[0] = true;
  }

  Told Run() {
    std::vector<const Operation*> answered;
    for (const Operation& operation : states_.key().operations) {
      if (operation.certainty == Certainty::kFact) {
        answered.push_back(&operation);
      }
    }
    std::sort(answered.begin(), answered.end(),
              [](const Operation* a, const Operation* b) {
                return a->answer->t < b->answer->t;
              });
    for (const Operation* operation : answered) Place(*operation);
    return std::move(told_);
  }

 private:
  void Violate(const std::string& number, const std::string& what) {
    findings_.Violate(number, states_.id(), what);
  }

  void Place(const Operation& operation) {
    const std::size_t first = states_.FirstAt(operation.call.t);
    const std::size_t last = states_.LastAt(operation.answer->t);
    for (std::size_t i = std::max(first, LeastFor(operation.call.t)); i <= last;
         ++i) {
      if (!IsExplainedBy(operation, i)) continue;
      if (TellsOfChange(*operation.answer)) told_[i] = true;
      const std::size_t seen = seen_.empty() ? 0 : seen_.back().second;
      seen_.emplace_back(operation.answer->t, std::max(seen, i));
      return;
    }
    Refuse(operation, first, last);
  }

  std::size_t LeastFor(std::int64_t called) const {
    const auto ended = std::partition_point(
        seen_.begin(), seen_.end(),
        [&](const auto& seen) { return seen.first < called; });
    return ended == seen_.begin() ? 0 : (ended - 1)->second;
  }

  bool IsExplainedBy(const Operation& operation, std::size_t i) const {
    const AnswerEvent& answer = *operation.answer;
    if (TellsOfChange(answer)) {
      return i > 0 && !told_[i] &&
             Makes(operation.command, states_.StepTo(i),
                   states_.SpanOfChange(operation, i), &answer);
    }
    return Answers(operation.command, answer, states_.at(i),
                   states_.SpanOfRead(operation, i));
  }

  void Refuse(const Operation& operation, std::size_t first, std::size_t last) {
    const AnswerEvent& answer = *operation.answer;
    const std::string told =
        Describe(operation) + " was told " + WordOf(answer);
    for (std::size_t i = first; i <= last; ++i) {
      if (!IsExplainedBy(operation, i)) continue;
      Violate("S17", told + ", which was so before " + states_.NameOf(i + 1) +
                         " that others had seen");
      return;
    }
    Violate(NumberOf(operation, first, last),
            told + ", and no state of the record explains it");
  }

  // The promise that an answer without an explanation breaks.
  std::string NumberOf(const Operation& operation, std::size_t first,
                       std::size_t last) const {
    const AnswerEvent& answer = *operation.answer;
    const auto* const claim = std::get_if<ClaimCommand>(&operation.command);
    for (std::size_t i = first; i <= last; ++i) {
      const Record* const state = states_.at(i);
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
    return NumberOf(operation.call.kind, answer.outcome);
  }

  static std::string NumberOf(Kind kind, Outcome outcome) {
    switch (outcome) {
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
      default:
        break;
    }
    if (kind == Kind::kFinalize) return "S7";
    if (kind == Kind::kLookup) return "S8";
    return "S12";
  }

  const States& states_;
  Findings& findings_;
  Told told_;
  // Of placed answers: when, and the greatest state that was seen by then.
  std::vector<std::pair<std::int64_t, std::size_t>> seen_{};
};

}  // namespace

Told PlaceAnswers(const States& states, Findings& findings) {
  return Placing(states, findings).Run();
}

}  // namespace idempotency::fault
