#include "tests/fault/checker/answer_rules.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/core/limits.h"

namespace idempotency::fault {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kNsPerUs = 1000;

// One grant, as far as its owner was told of it.
struct Grant {
  std::string token{};
  std::int64_t attempt = 0;
  std::int64_t first_told = kNever;
  std::int64_t lease_end = 0;  // counted from the call
  std::string op{};            // that was told first
};

// A response whose recording was acknowledged.
struct Recorded {
  std::string digest{};
  std::int64_t since = 0;
  std::int64_t until = kNever;
  std::string op{};
};

class AnswerCheck {
 public:
  AnswerCheck(const RecordId& id, const KeyHistory& key,
              const DatabaseClock& clock, Findings& findings)
      : id_(id), key_(key), clock_(clock), findings_(findings) {
    for (const Operation& operation : key.operations) {
      if (operation.certainty == Certainty::kFact) {
        facts_.push_back(&operation);
      }
    }
    std::sort(facts_.begin(), facts_.end(),
              [](const Operation* a, const Operation* b) {
                return a->answer->t < b->answer->t;
              });
  }

  void Run() {
    CollectGrants();
    CheckOrderOfGrants();
    CheckLiveOwners();
    CheckRepeatedClaims();
    CheckRecorded();
    for (const Operation* operation : facts_) CheckInert(*operation);
  }

 private:
  void Violate(const std::string& number, const std::string& what) {
    findings_.Violate(number, id_, what);
  }

  static bool IsClaimed(const Operation& operation) {
    return operation.call.kind == Kind::kClaim &&
           operation.answer->outcome == Outcome::kClaimed;
  }

  void CollectGrants() {
    for (const Operation* operation : facts_) {
      if (!IsClaimed(*operation)) continue;
      const AnswerEvent& answer = *operation->answer;
      Grant& grant = grants_[answer.fencing];
      if (grant.op.empty()) {
        grant = {.token = operation->call.token,
                 .attempt = answer.attempt,
                 .op = operation->name()};
      } else if (grant.token != operation->call.token ||
                 grant.attempt != answer.attempt) {
        Violate("S1", "fencing token " + std::to_string(answer.fencing) +
                          " was given to " + grant.op + " and to " +
                          operation->name());
      }
      grant.first_told = std::min(grant.first_told, answer.t);
      grant.lease_end = std::max(
          grant.lease_end, operation->call.t + answer.lease_us * kNsPerUs);
    }
  }

  // Whoever asks later is never told of an earlier grant.
  void CheckOrderOfGrants() {
    std::vector<std::pair<std::int64_t, const Operation*>> newest;  // by answer
    for (const Operation* operation : facts_) {
      if (!IsClaimed(*operation)) continue;
      const auto before = std::partition_point(
          newest.begin(), newest.end(),
          [&](const auto& one) { return one.first < operation->call.t; });
      if (before != newest.begin()) {
        CheckLater(*(before - 1)->second, *operation);
      }
      const Operation* top =
          newest.empty() || newest.back().second->answer->fencing <
                                operation->answer->fencing
              ? operation
              : newest.back().second;
      newest.emplace_back(operation->answer->t, top);
    }
  }

  void CheckLater(const Operation& first, const Operation& second) {
    const std::int64_t earlier = first.answer->fencing;
    const std::int64_t later = second.answer->fencing;
    if (later > earlier ||
        (later == earlier && first.call.token == second.call.token)) {
      return;
    }
    Violate("S2", second.name() + " was given fencing token " +
                      std::to_string(later) + " after " + first.name() +
                      " had been given " + std::to_string(earlier));
  }

  // When the owner of a grant first gave it up, or may have.
  std::int64_t MayHaveGivenUp(const std::string& token) const {
    const auto found = given_up_.find(token);
    return found == given_up_.end() ? kNever : found->second;
  }

  void CheckLiveOwners() {
    for (const Operation& operation : key_.operations) {
      const bool gives_up = operation.call.kind == Kind::kRelease ||
                            (operation.call.kind == Kind::kFinalize &&
                             operation.call.status >= limits::kServerErrorMin);
      if (!gives_up) continue;
      const auto [first, is_new] =
          given_up_.emplace(operation.call.token, operation.call.t);
      first->second = std::min(first->second, operation.call.t);
    }
    for (auto second = grants_.begin(); second != grants_.end(); ++second) {
      for (auto first = grants_.begin(); first != second; ++first) {
        CheckOneLiveOwner(first->second, second->second);
      }
    }
  }

  void CheckOneLiveOwner(const Grant& first, const Grant& second) {
    if (first.token == second.token ||
        second.first_told >= first.lease_end - clock_.error_ns() ||
        MayHaveGivenUp(first.token) < second.first_told) {
      return;
    }
    // A new life of the key: the first was recorded, and that had expired.
    if (second.attempt == 1 && WasRecordedUntil(first.token, second)) return;
    Violate("S3", second.op + " was given the key while the lease of " +
                      first.op + " ran");
  }

  bool WasRecordedUntil(const std::string& token, const Grant& next) const {
    return std::any_of(key_.operations.begin(), key_.operations.end(),
                       [&](const Operation& operation) {
                         return operation.call.kind == Kind::kFinalize &&
                                operation.call.token == token &&
                                operation.call.t < next.first_told;
                       });
  }

  // S4: one claim token has one grant, unless somebody else had one between.
  void CheckRepeatedClaims() {
    std::map<std::string, std::int64_t> last;
    for (const auto& [fencing, grant] : grants_) {
      const auto [found, is_new] = last.emplace(grant.token, fencing);
      if (is_new) continue;
      const std::int64_t earlier = std::exchange(found->second, fencing);
      if (grant.attempt == 1 || IsGrantBetween(earlier, fencing)) continue;
      Violate("S4", grants_[earlier].op + " and " + grant.op +
                        " have one claim token and two grants, " +
                        std::to_string(earlier) + " and " +
                        std::to_string(fencing));
    }
  }

  bool IsGrantBetween(std::int64_t low, std::int64_t high) const {
    const auto next = grants_.upper_bound(low);
    if (next != grants_.end() && next->first < high) return true;
    return std::any_of(
        key_.changes.begin(), key_.changes.end(), [&](const Change& change) {
          const std::int64_t token = change.row.record.fencing_token;
          return token > low && token < high;
        });
  }

  void CheckRecorded() {
    for (const Operation* operation : facts_) {
      const AnswerEvent& answer = *operation->answer;
      CheckKept(*operation);
      if (answer.outcome != Outcome::kRecorded &&
          answer.outcome != Outcome::kRecordedWithoutBody) {
        continue;
      }
      std::int64_t until = kNever;
      if (answer.expires_us.has_value()) {
        until = clock_.ToMonotonic(absl::FromUnixMicros(*answer.expires_us)) -
                clock_.error_ns();
      }
      bool is_new = true;
      for (const Recorded& one : recorded_) {
        if (answer.t >= one.until) continue;
        is_new &= one.digest != operation->call.digest;
        if (one.digest == operation->call.digest) continue;
        Violate("S6", one.op + " and " + operation->name() +
                          " had two responses recorded");
      }
      if (is_new) {
        recorded_.push_back({.digest = operation->call.digest,
                             .since = answer.t,
                             .until = until,
                             .op = operation->name()});
      }
    }
  }

  // S8: what was acknowledged before the call is what it is told.
  void CheckKept(const Operation& operation) {
    const AnswerEvent& answer = *operation.answer;
    const bool claims = operation.call.kind == Kind::kClaim;
    if (!claims && operation.call.kind != Kind::kLookup) return;
    if (answer.outcome == Outcome::kMismatch) return;
    const bool has_response = answer.outcome == Outcome::kReplay ||
                              answer.state == SaidState::kFinalized;
    const bool whole = !answer.body_omitted && !answer.headers_omitted;
    for (const Recorded& one : recorded_) {
      if (operation.call.t <= one.since || answer.t >= one.until) continue;
      if (has_response && (!whole || answer.digest == one.digest)) continue;
      Violate("S8", operation.name() + " was not told the response that " +
                        one.op + " had recorded");
    }
  }

  // S11: nothing of the record is shown to another request.
  void CheckInert(const Operation& operation) {
    const AnswerEvent& answer = *operation.answer;
    if (answer.outcome != Outcome::kMismatch) return;
    if (answer.digest.empty() && answer.status == 0 && answer.fencing == 0 &&
        answer.owner.empty() && answer.checkpoint.empty() &&
        answer.downstream.empty() && answer.abandoned_attempt == 0) {
      return;
    }
    Violate("S11",
            operation.name() + " was told Mismatch, and what the record holds");
  }

  const RecordId& id_;
  const KeyHistory& key_;
  const DatabaseClock& clock_;
  Findings& findings_;
  std::vector<const Operation*> facts_{};   // in the order of their answers
  std::map<std::int64_t, Grant> grants_{};  // by fencing token
  std::map<std::string, std::int64_t> given_up_{};
  std::vector<Recorded> recorded_{};
};

// ---- Effects.

bool ToldOfGrant(const Operation& operation, const EffectEvent& effect) {
  return operation.certainty == Certainty::kFact &&
         operation.answer->outcome == Outcome::kClaimed &&
         operation.call.token == effect.token &&
         operation.answer->t <= effect.t &&
         (effect.fencing == 0 || operation.answer->fencing == effect.fencing) &&
         (operation.answer->downstream.empty() ||
          operation.answer->downstream == effect.downstream);
}

// Was whoever acted told before that he may? Of a whole operation's claim only
// the log tells, and it may not even be known which one it was.
bool WasAllowed(const EffectEvent& effect, const KeyHistory& key,
                const KeyCheck& states, const DatabaseClock& clock) {
  const bool named = std::any_of(key.operations.begin(), key.operations.end(),
                                 [&](const Operation& operation) {
                                   return !effect.token.empty() &&
                                          operation.call.token == effect.token;
                                 });
  if (!named) {
    const std::optional<std::int64_t> granted =
        states.FirstGrantOf(ParseUuid(effect.token));
    return granted.has_value() && *granted - clock.error_ns() <= effect.t;
  }
  return std::any_of(key.operations.begin(), key.operations.end(),
                     [&](const Operation& operation) {
                       return ToldOfGrant(operation, effect);
                     });
}

// Had another owner taken over for certain when this one acted?
bool IsOvertaken(const EffectEvent& effect, const KeyCheck& states) {
  if (effect.fencing == 0) return false;
  for (std::size_t i = states.FirstStateAt(effect.t);
       i <= states.LastStateAt(effect.t); ++i) {
    const Record* const state = states.state(i);
    if (state == nullptr || state->fencing_token <= effect.fencing) {
      return false;
    }
  }
  return true;
}

// One downstream key for all attempts until a Release frees the key.
void CheckDownstreamKeys(const RecordId& id, const KeyHistory& key,
                         Findings& findings) {
  std::map<std::int64_t, std::int32_t> freed_counts;  // by fencing token
  for (const Change& change : key.changes) {
    freed_counts.emplace(change.row.record.fencing_token,
                         change.row.record.freed_count);
  }
  std::map<std::int32_t, const Operation*> first;
  for (const Operation& operation : key.operations) {
    if (operation.certainty != Certainty::kFact ||
        operation.answer->outcome != Outcome::kClaimed ||
        operation.answer->downstream.empty()) {
      continue;
    }
    const auto freed = freed_counts.find(operation.answer->fencing);
    if (freed == freed_counts.end()) continue;
    const auto known = first.emplace(freed->second, &operation).first;
    if (known->second->answer->downstream == operation.answer->downstream) {
      continue;
    }
    findings.Violate("S14", id,
                     known->second->name() + " and " + operation.name() +
                         " were given two downstream keys for one operation");
  }
}

}  // namespace

void CheckAnswers(const RecordId& id, const KeyHistory& key,
                  const DatabaseClock& clock, Findings& findings) {
  AnswerCheck(id, key, clock, findings).Run();
}

void CheckEffects(const RecordId& id, const KeyHistory& key,
                  const KeyCheck& states, const DatabaseClock& clock,
                  Findings& findings) {
  std::map<std::string, std::int64_t> executed;
  for (const EffectEvent& effect : key.effects) {
    ++findings.counts.effects;
    if (effect.result == EffectResult::kExecuted &&
        ++executed[effect.downstream] == 2) {
      findings.Violate("S14", id,
                       "downstream key " + effect.downstream +
                           " was executed twice, the second time by " +
                           effect.token);
    }
    if (!WasAllowed(effect, key, states, clock)) {
      findings.Violate("S14", id,
                       "an effect under downstream key " + effect.downstream +
                           " by " + effect.token +
                           ", which had not been given the key");
    }
    if (IsOvertaken(effect, states)) ++findings.counts.overlapping_owners;
  }
  CheckDownstreamKeys(id, key, findings);
}

}  // namespace idempotency::fault
