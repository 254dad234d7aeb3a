#include "tests/fault/checker/effect_rules.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include "tests/fault/checker/grants.h"

namespace idempotency::fault {
namespace {

// RunOnce and the middleware keep their claim tokens to themselves: then it is
// known by its fencing token.
bool ToldOfGrant(const Operation& operation, const EffectEvent& effect) {
  return operation.certainty == Certainty::kFact &&
         operation.answer->outcome == Outcome::kClaimed &&
         (effect.token.empty() || operation.call.token == effect.token) &&
         operation.answer->t <= effect.t &&
         operation.answer->fencing == effect.fencing &&
         operation.answer->downstream == effect.downstream;
}

// Had another owner taken over for certain when this one acted?
bool IsOvertaken(const EffectEvent& effect, const States& states) {
  for (std::size_t i = states.FirstAt(effect.t); i <= states.LastAt(effect.t);
       ++i) {
    const Record* const state = states.at(i);
    if (state == nullptr || state->fencing_token <= effect.fencing) {
      return false;
    }
  }
  return true;
}

class EffectCheck {
 public:
  EffectCheck(const States& states, Findings& findings)
      : states_(states),
        key_(states.key()),
        findings_(findings),
        grants_(GrantsOf(states.key())) {}

  void Run() {
    for (const EffectEvent& effect : key_.effects) {
      ++findings_.counts.effects;
      CheckAllowed(effect);
      if (effect.result == EffectResult::kExecuted) CheckOnlyOne(effect);
      if (IsOvertaken(effect, states_)) ++findings_.counts.overlapping_owners;
    }
    CheckDownstreamKeys();
  }

 private:
  void Violate(const std::string& what) {
    findings_.Violate("S14", states_.id(), what);
  }

  // Was whoever acted told before that he may?
  void CheckAllowed(const EffectEvent& effect) {
    if (std::any_of(key_.operations.begin(), key_.operations.end(),
                    [&](const Operation& operation) {
                      return ToldOfGrant(operation, effect);
                    })) {
      return;
    }
    Violate(
        "an effect under downstream key " + effect.downstream + " by " +
        (effect.token.empty() ? std::to_string(effect.fencing) : effect.token) +
        ", which had not been given the key");
  }

  // Whoever releases a key as not executed has made sure of it: in one life
  // there is one effect, whatever its downstream key.
  void CheckOnlyOne(const EffectEvent& effect) {
    if (++executed_[effect.downstream] == 2) {
      Violate("downstream key " + effect.downstream +
              " was executed twice, the second time by " + effect.token);
    }
    const auto grant = grants_.find(effect.fencing);
    if (grant == grants_.end()) return;
    const auto first =
        lives_.emplace(grant->second.created_at, effect.downstream).first;
    if (first->second == effect.downstream) return;
    Violate("executed under two downstream keys in one life of the key: " +
            first->second + " and " + effect.downstream);
  }

  // One downstream key for all attempts until a Release frees the key, and
  // another one from then on.
  void CheckDownstreamKeys() {
    for (const Operation& operation : key_.operations) {
      if (operation.certainty != Certainty::kFact) continue;
      const AnswerEvent& answer = *operation.answer;
      switch (answer.outcome) {
        case Outcome::kClaimed:
        case Outcome::kFound:
          CheckDownstreamKey(operation, answer.fencing, answer.downstream);
          if (answer.abandoned_attempt > 0) {
            CheckDownstreamKey(operation, answer.fencing,
                               answer.abandoned_downstream);
          }
          break;
        case Outcome::kInDoubt:
          CheckDownstreamKey(operation, answer.abandoned_fencing,
                             answer.abandoned_downstream);
          break;
        default:
          break;
      }
    }
  }

  void CheckDownstreamKey(const Operation& operation, std::int64_t fencing,
                          const std::string& told) {
    const auto grant = grants_.find(fencing);
    if (grant == grants_.end()) return;
    std::int32_t freed = grant->second.freed_count;
    // After the release: of the grant to come.
    if (operation.answer->state == SaidState::kReleased) ++freed;
    const auto by_count = by_count_.emplace(freed, told).first;
    const auto by_key = by_key_.emplace(told, freed).first;
    if (by_count->second != told) {
      Violate(operation.name() + " was told downstream key " + told +
              ", and others " + by_count->second + " for the same operation");
    } else if (by_key->second != freed) {
      Violate(operation.name() + " was told downstream key " + told +
              " again after the key had been freed");
    }
  }

  const States& states_;
  const KeyHistory& key_;
  Findings& findings_;
  const LoggedGrants grants_;
  std::map<std::string, int> executed_{};      // by downstream key
  std::map<absl::Time, std::string> lives_{};  // executed in each
  std::map<std::int32_t, std::string> by_count_{};
  std::map<std::string, std::int32_t> by_key_{};
};

}  // namespace

void CheckEffects(const States& states, Findings& findings) {
  EffectCheck(states, findings).Run();
}

void CheckRecordedEffects(const RecordId& id, const KeyHistory& key,
                          const DatabaseClock& clock, Findings& findings) {
  constexpr int kFailed = 300;
  std::map<std::int32_t, std::string> downstream_keys;
  const LoggedGrants grants = GrantsOf(key);
  for (const Operation& operation : key.operations) {
    if (operation.certainty != Certainty::kFact ||
        operation.answer->outcome != Outcome::kClaimed) {
      continue;
    }
    const auto grant = grants.find(operation.answer->fencing);
    if (grant == grants.end()) continue;
    downstream_keys.emplace(grant->second.freed_count,
                            operation.answer->downstream);
  }
  for (const Change& change : key.changes) {
    const Record& record = change.row.record;
    if (record.state != RecordState::kFinal ||
        record.response.status_code >= kFailed) {
      continue;
    }
    const std::int64_t by = clock.LastAt(change.row.at);
    const auto downstream = downstream_keys.find(record.freed_count);
    const bool executed =
        downstream != downstream_keys.end() &&
        std::any_of(key.effects.begin(), key.effects.end(),
                    [&](const EffectEvent& effect) {
                      return effect.result == EffectResult::kExecuted &&
                             effect.downstream == downstream->second &&
                             effect.t <= by;
                    });
    if (executed) continue;
    findings.Violate("S14", id,
                     "change " + std::to_string(change.seq) +
                         " has a recorded success, and nothing was executed");
    return;
  }
}

}  // namespace idempotency::fault
