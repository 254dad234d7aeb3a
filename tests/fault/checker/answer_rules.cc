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
#include "tests/fault/checker/grants.h"

namespace idempotency::fault {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// One grant, as far as its owner was told of it.
struct Grant {
  std::string token{};
  std::int64_t attempt = 0;
  std::int64_t first_asked = kNever;  // of the calls that were told of it
  std::int64_t first_told = kNever;
  // By the database's clock, what was left counted from the call.
  absl::Time lease_end = absl::InfinitePast();
  std::string op{};  // that was told first
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
      : id_(id),
        key_(key),
        clock_(clock),
        findings_(findings),
        logged_(GrantsOf(key)) {
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
      grant.first_asked = std::min(grant.first_asked, operation->call.t);
      grant.first_told = std::min(grant.first_told, answer.t);
      const absl::Time counted_from =
          clock_.Between(operation->call.t, answer.t).earliest;
      grant.lease_end = std::max(
          grant.lease_end, counted_from + absl::Microseconds(answer.lease_us));
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
        (later == earlier && first.call.token == second.call.token) ||
        HasClockSteppedBack(earlier, later)) {
      return;
    }
    Violate("S2", second.name() + " was given fencing token " +
                      std::to_string(later) + " after " + first.name() +
                      " had been given " + std::to_string(earlier));
  }

  // A new life of a key whose record was deleted takes its fencing token from
  // the database's clock alone.
  bool HasClockSteppedBack(std::int64_t earlier, std::int64_t later) const {
    return AreOfTwoLives(logged_, earlier, later) &&
           logged_.at(later).claimed_at < logged_.at(later).claimed_before;
  }

  // Does the log have them in the order of their fencing tokens?
  bool AreLoggedInOrder(std::int64_t lower, std::int64_t higher) const {
    const auto first = logged_.find(lower);
    const auto second = logged_.find(higher);
    return first == logged_.end() || second == logged_.end() ||
           first->second.changes_before < second->second.changes_before;
  }

  // When the owner of a grant first gave it up, or may have.
  std::int64_t MayHaveGivenUp(const std::string& token) const {
    const auto found = given_up_.find(token);
    return found == given_up_.end() ? kNever : found->second;
  }

  // Under each policy that its grants were given under.
  bool RecordsServerErrors(const std::string& token) const {
    bool is_known = false;
    for (const auto& [fencing, grant] : grants_) {
      if (grant.token != token) continue;
      const auto logged = logged_.find(fencing);
      if (logged == logged_.end() ||
          logged->second.on_server_error != OnServerError::kRecord) {
        return false;
      }
      is_known = true;
    }
    return is_known;
  }

  // Can it have ended its owner's attempt without a recorded response?
  bool MayGiveUp(const Operation& operation) const {
    const bool is_server_error =
        operation.call.kind == Kind::kFinalize &&
        operation.call.status >= limits::kServerErrorMin;
    if (operation.call.kind != Kind::kRelease && !is_server_error) return false;
    if (is_server_error && RecordsServerErrors(operation.call.token)) {
      return false;
    }
    switch (operation.certainty) {
      case Certainty::kNothing:
        return false;
      case Certainty::kUnknown:
        return true;
      case Certainty::kFact:
        break;
    }
    return !IsSentOnce(operation.call, *operation.answer) ||
           operation.answer->outcome == Outcome::kReleased ||
           operation.answer->outcome == Outcome::kResultReleased ||
           operation.answer->outcome == Outcome::kResultInDoubt;
  }

  void CheckLiveOwners() {
    for (const Operation& operation : key_.operations) {
      if (!MayGiveUp(operation)) continue;
      const auto [first, is_new] =
          given_up_.emplace(operation.call.token, operation.call.t);
      first->second = std::min(first->second, operation.call.t);
    }
    for (auto second = grants_.begin(); second != grants_.end(); ++second) {
      for (auto first = grants_.begin(); first != second; ++first) {
        CheckOneLiveOwner(*first, *second);
      }
    }
  }

  void CheckOneLiveOwner(const std::pair<const std::int64_t, Grant>& earlier,
                         const std::pair<const std::int64_t, Grant>& later) {
    const Grant& first = earlier.second;
    const Grant& second = later.second;
    // Whether fencing tokens grow is for S2 to say.
    if (first.token == second.token || second.first_told < first.first_asked ||
        !AreLoggedInOrder(earlier.first, later.first)) {
      return;
    }
    // The record was the first one's when that was told so. Then the clock came
    // to the end of the lease, or it was given up.
    if (clock_.Between(first.first_asked, second.first_told).latest >=
            first.lease_end ||
        MayHaveGivenUp(first.token) < second.first_told) {
      return;
    }
    // A new life of the key: the first was recorded, and that had expired.
    if (AreOfTwoLives(logged_, earlier.first, later.first) &&
        logged_.at(earlier.first).recorded) {
      return;
    }
    Violate("S3", second.op + " was given the key while the lease of " +
                      first.op + " ran");
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
        until = clock_.FirstAt(absl::FromUnixMicros(*answer.expires_us));
      }
      bool is_new = true;
      for (const Recorded& one : recorded_) {
        // Who stood still hears of a response when it has expired, and the
        // key's next life has its own.
        const bool late = answer.t >= until && operation->call.t <= one.since;
        if (answer.t >= one.until || late) continue;
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
  const LoggedGrants logged_;
  std::vector<const Operation*> facts_{};   // in the order of their answers
  std::map<std::int64_t, Grant> grants_{};  // by fencing token
  std::map<std::string, std::int64_t> given_up_{};
  std::vector<Recorded> recorded_{};
};

}  // namespace

void CheckAnswers(const RecordId& id, const KeyHistory& key,
                  const DatabaseClock& clock, Findings& findings) {
  AnswerCheck(id, key, clock, findings).Run();
}

}  // namespace idempotency::fault
