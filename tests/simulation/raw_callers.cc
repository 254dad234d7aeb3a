#include "tests/simulation/raw_callers.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>
#include <variant>

#include "server/core/errors.h"
#include "tests/support/record_rules.h"

namespace idempotency {
namespace {

// The longest lease, the longest step back of the clock, the longest wait for
// the database, and as much again.
constexpr Milliseconds kHadWithin{20'000};

}  // namespace

RawCallers::RawCallers(const CallerParts& parts, const Keys& keys)
    : parts_(parts) {
  for (const RecordId& id : keys.free) keys_.push_back({id, false, {}});
  for (const RecordId& id : keys.shared) keys_.push_back({id, true, {}});
}

Microseconds RawCallers::AnyDuration() {
  constexpr int kMillis[] = {1, 5, 20, 60, 150, 250, 600, 1000, 2500};
  return Milliseconds(kMillis[parts_.random.Below(std::size(kMillis))]);
}

void RawCallers::Start(std::size_t callers) {
  for (std::size_t i = 0; i < callers; ++i) {
    ++asking_;
    parts_.scheduler.Spawn(AnyDuration(), [this] {
      while (!parts_.weather.calm) {
        AskAnything();
        parts_.scheduler.Sleep(
            parts_.random.Chance(70)
                ? parts_.random.Between(Microseconds(0), Milliseconds(20))
                : AnyDuration());
      }
      --asking_;
    });
  }
}

void RawCallers::AskAnything() {
  ++operations_;
  // The shared ones come last, and more seldom.
  const std::size_t free = static_cast<std::size_t>(std::count_if(
      keys_.begin(), keys_.end(), [](const Key& key) { return !key.shared; }));
  const bool shared = free < keys_.size() && parts_.random.Chance(15);
  Key& key = shared ? keys_[free + parts_.random.Below(keys_.size() - free)]
                    : keys_[parts_.random.Below(free)];
  const std::size_t what = parts_.random.Below(100);
  if (what < 48 || key.attempts.empty()) {
    AskForClaim(key);
  } else if (what < 73) {
    AskToFinalize(key);
  } else if (what < 87) {
    AskToRelease(key);
  } else {
    AskToLookup(key);
  }
}

RawCallers::Attempt& RawCallers::NewAttempt(Key& key) {
  Attempt attempt;
  attempt.number = ++attempts_;
  attempt.token.bytes[0] = static_cast<std::uint8_t>(attempt.number / 256);
  attempt.token.bytes[1] = static_cast<std::uint8_t>(attempt.number % 256);
  attempt.token.bytes[2] = 1;
  // That of operations is made of the same letter.
  attempt.request_hash = std::string(32, parts_.random.Chance(92) ? 'h' : 'r');
  key.attempts.push_back(std::move(attempt));
  return key.attempts.back();
}

// Mostly one of the latest, which are the ones that may own the key.
RawCallers::Attempt& RawCallers::AnyAttempt(Key& key) {
  const std::size_t all = key.attempts.size();
  const std::size_t recent =
      parts_.random.Chance(80) ? std::min<std::size_t>(all, 3) : all;
  return key.attempts[all - 1 - parts_.random.Below(recent)];
}

Patience RawCallers::AnyPatience(bool waits) {
  Patience patience;
  patience.listens = Milliseconds(250) + 3 * AnyDuration();
  if (waits) {
    patience.waits = std::min<Microseconds>(AnyDuration(), Milliseconds(1500));
    patience.listens += patience.waits;
  }
  if (parts_.random.Chance(8))
    patience.gone_at = parts_.scheduler.Now() + AnyDuration();
  return patience;
}

template <typename Command, typename Outcome>
std::optional<absl::StatusOr<Outcome>> RawCallers::Ask(const Command& command,
                                                       Patience patience,
                                                       int times) {
  struct Heard {
    explicit Heard(Scheduler& scheduler) : gate(scheduler) {}
    Gate gate;
    std::optional<absl::StatusOr<Outcome>> answer;
  };
  const auto heard = std::make_shared<Heard>(parts_.scheduler);
  for (int i = 0; i < times; ++i) {
    parts_.network.Send<Command, Outcome>(
        parts_.random.Below(parts_.network.replicas()), command, patience,
        [heard](absl::StatusOr<Outcome> outcome) {
          if (!heard->answer.has_value()) heard->answer = std::move(outcome);
          heard->gate.Open();
        },
        [heard](bool) { heard->gate.Open(); });
    // Some do not wait for the answer, and ask again at once.
    heard->gate.WaitFor(parts_.weather.calm || parts_.random.Chance(85)
                            ? patience.listens
                            : AnyDuration());
    if (heard->answer.has_value() &&
        (heard->answer->ok() || parts_.random.Chance(60))) {
      break;
    }
    if (i + 1 < times) parts_.scheduler.Sleep(AnyDuration() / 4);
  }
  return heard->answer;
}

void RawCallers::AskForClaim(Key& key) {
  constexpr const char* kPolicies[] = {"",         "",          "held",
                                       "recorded", "permanent", "later"};
  const bool anew = key.attempts.empty() || parts_.random.Chance(60);
  const Attempt attempt = anew ? NewAttempt(key) : AnyAttempt(key);
  ClaimCommand claim{.id = key.id,
                     .request_hash = attempt.request_hash,
                     .claim_token = attempt.token};
  claim.policy_name =
      key.shared ? "payment"
                 : kPolicies[parts_.random.Below(std::size(kPolicies))];
  if (parts_.random.Chance(50)) {
    claim.lease = absl::Milliseconds(100) + absl::FromChrono(AnyDuration());
  }
  claim.resolve_in_doubt = parts_.random.Chance(35);
  if (!anew && parts_.random.Chance(40)) {
    claim.renew_fencing_token =
        attempt.fencing_token != 0 ? attempt.fencing_token : 1;
  }
  if (parts_.random.Chance(40)) {
    claim.checkpoint_number = static_cast<std::int64_t>(parts_.random.Below(4));
    claim.checkpoint =
        TextOf(key.id, "progress " + std::to_string(claim.checkpoint_number) +
                           " of " + std::to_string(attempt.number));
  }
  const auto answer = Ask<ClaimCommand, ClaimOutcome>(
      claim, AnyPatience(parts_.random.Chance(50)),
      1 + static_cast<int>(parts_.random.Below(3)));
  if (answer.has_value() && answer->ok()) NoteClaim(claim, **answer);
}

void RawCallers::NoteClaim(const ClaimCommand& command,
                           const ClaimOutcome& outcome) {
  const auto* const claimed = std::get_if<Claimed>(&outcome);
  if (claimed == nullptr) return;
  for (Key& key : keys_) {
    for (Attempt& attempt : key.attempts) {
      if (attempt.token == command.claim_token) {
        attempt.fencing_token = claimed->fencing_token;
      }
    }
  }
}

void RawCallers::AskToFinalize(Key& key) {
  constexpr int kStatuses[] = {200, 201, 404, 500, 504};
  const Attempt attempt = AnyAttempt(key);
  FinalizeCommand finalize{.id = key.id, .claim_token = attempt.token};
  finalize.response.status_code =
      kStatuses[parts_.random.Chance(80)
                    ? static_cast<std::size_t>(attempt.number) % 3
                    : parts_.random.Below(std::size(kStatuses))];
  finalize.response.body =
      TextOf(key.id, "by " + std::to_string(attempt.number));
  finalize.response_digest = std::to_string(finalize.response.status_code) +
                             " " + finalize.response.body;
  Ask<FinalizeCommand, FinalizeOutcome>(
      finalize, AnyPatience(false),
      1 + static_cast<int>(parts_.random.Below(3)));
}

void RawCallers::AskToRelease(Key& key) {
  constexpr Disposition kDispositions[] = {Disposition::kNotExecuted,
                                           Disposition::kOutcomeUnknown,
                                           Disposition::kNeverExecuted};
  const ReleaseCommand release = {
      .id = key.id,
      .claim_token = AnyAttempt(key).token,
      .disposition = kDispositions[parts_.random.Below(key.shared ? 2 : 3)]};
  Ask<ReleaseCommand, ReleaseOutcome>(
      release, AnyPatience(false),
      1 + static_cast<int>(parts_.random.Below(3)));
}

void RawCallers::AskToLookup(Key& key) {
  Ask<LookupCommand, LookupOutcome>({.id = key.id}, AnyPatience(false), 1);
}

void RawCallers::AskForEveryKey() {
  for (Key& key : keys_) {
    ++asking_;
    parts_.scheduler.Spawn(AnyDuration(), [this, &key] {
      InsistOn(key);
      --asking_;
    });
  }
}

void RawCallers::InsistOn(Key& key) {
  const SteadyTime end = parts_.scheduler.Now() + kHadWithin;
  const Attempt attempt = NewAttempt(key);
  ClaimCommand claim{.id = key.id, .claim_token = attempt.token};
  claim.policy_name = key.shared ? "payment" : "held";
  claim.resolve_in_doubt = true;
  while (parts_.scheduler.Now() < end) {
    const RecordPtr record = parts_.database.Find(key.id);
    claim.request_hash =
        record == nullptr ? attempt.request_hash : record->request_hash;
    const auto answer = Ask<ClaimCommand, ClaimOutcome>(
        claim, {.listens = Milliseconds(2000), .waits = Milliseconds(1000)}, 1);
    if (!answer.has_value()) {
      parts_.checker.ViolateAbout(key.id, "L3", "no answer in calm weather");
      return;
    }
    if (answer->ok() && (std::holds_alternative<Claimed>(**answer) ||
                         std::holds_alternative<Replay>(**answer))) {
      return;
    }
    parts_.scheduler.Sleep(Milliseconds(100));
  }
  parts_.checker.ViolateAbout(key.id, "L2", "nobody gets the key");
}

}  // namespace idempotency
