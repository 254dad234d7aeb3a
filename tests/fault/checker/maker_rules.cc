// Who made the changes of a record that no answer told of.

#include <cstddef>
#include <string>

#include "tests/fault/checker/explain.h"
#include "tests/fault/checker/order_rules.h"

namespace idempotency::fault {
namespace {

class Makers {
 public:
  Makers(const States& states, const Run& run, Findings& findings)
      : states_(states), run_(run), findings_(findings) {}

  void Attribute(std::size_t i) {
    const Operation* definite = nullptr;
    bool late = false;
    for (const Operation* operation : OwnersOf(i)) {
      if (!MakesChange(*operation, i)) continue;
      if (operation->certainty == Certainty::kUnknown) return;
      if (operation->certainty == Certainty::kFact &&
          MayBeLate(*operation, i)) {
        late = true;
      } else {
        definite = operation;
      }
    }
    if (late) {
      ++findings_.counts.late_changes;
      return;
    }
    Refuse(i, definite);
  }

  // What it may not delete is for CheckChange() to say.
  bool IsSweepers(std::size_t i) const {
    return states_.at(i) == nullptr ||
           IsParking(states_.StepTo(i), states_.ChangeTo(i).row.at);
  }

 private:
  void Violate(const std::string& number, const std::string& what) {
    findings_.Violate(number, states_.id(), what);
  }

  const std::vector<const Operation*>& OwnersOf(std::size_t i) const {
    return states_.OperationsOf(states_.at(i)->claim_token);
  }

  bool MakesChange(const Operation& operation, std::size_t i) const {
    return Makes(operation.command, states_.StepTo(i),
                 states_.SpanOfChange(operation, i), nullptr);
  }

  // Can an operation have made another change than the one it was told of? Yes
  // if its request may have come twice. Otherwise the server tried it again,
  // after a connection to the database had failed it: then the first try is
  // done by the time of the answer, if nothing happens to connections for
  // longer.
  bool MayBeLate(const Operation& operation, std::size_t i) const {
    const AnswerEvent& answer = *operation.answer;
    if (!IsSentOnce(operation.call, answer)) return true;
    if (TellsOfChange(answer) && states_.EarliestOf(i) <= answer.t) return true;
    return run_.IsFaulty(operation.call.t, states_.LatestOf(i));
  }

  void Refuse(std::size_t i, const Operation* definite) {
    if (definite != nullptr) {
      const bool expired = definite->answer->reason == "DEADLINE_EXCEEDED";
      Violate(expired ? "S20" : "S15",
              states_.NameOf(i) + " was made by " + Describe(*definite) +
                  ", which was told " + WordOf(*definite->answer));
      return;
    }
    const auto owner =
        run_.token_owners.find(FormatUuid(states_.at(i)->claim_token));
    if (owner != run_.token_owners.end() && owner->second != states_.id()) {
      Violate("S13", states_.NameOf(i) + " has a claim token of " +
                         owner->second.scope + " " + owner->second.key);
      return;
    }
    std::string candidates;
    for (const Operation* operation : OwnersOf(i)) {
      candidates += (candidates.empty() ? "; by its token: " : ", ") +
                    Describe(*operation);
    }
    Violate("ORDER", "no operation explains " + states_.NameOf(i) + candidates);
  }

  const States& states_;
  const Run& run_;
  Findings& findings_;
};

}  // namespace

void AttributeChanges(const States& states, const Told& told, const Run& run,
                      Findings& findings) {
  Makers makers(states, run, findings);
  for (std::size_t i = 1; i < states.count(); ++i) {
    if (!told[i] && !makers.IsSweepers(i)) makers.Attribute(i);
  }
}

}  // namespace idempotency::fault
