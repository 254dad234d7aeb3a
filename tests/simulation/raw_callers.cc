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

// The longest lease, the longest wait for the database, and as much again.
constexpr Milliseconds kHadWithin{12'000};

}  // namespace

RawCallers::RawCallers(Scheduler& scheduler, Weather& weather,
                       Database& database, Network& network,
                       HistoryChecker& checker, const Keys& keys)
    : scheduler_(scheduler),
      random_(scheduler.random()),
      weather_(weather),
      database_(database),
      network_(network),
      checker_(checker) {
  for (const RecordId& id : keys.free) keys_.push_back({id, false, {}});
  for (const RecordId& id : keys.shared) keys_.push_back({id, true, {}});
}

Microseconds RawCallers::AnyDuration() {
  constexpr int kMillis[] = {1, 5, 20, 60, 150, 250, 600, 1000, 2500};
  return Milliseconds(kMillis[random_.Below(std::size(kMillis))]);
}

void RawCallers::Start(std::size_t callers) {
  for (std::size_t i = 0; i < callers; ++i) {
    ++asking_;
    scheduler_.Spawn(AnyDuration(), [this] {
      while (!weather_.calm) {
        AskAnything();
        scheduler_.Sleep(random_.Chance(70) ? random_.Between(Microseconds(0),
                                                              Milliseconds(20))
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
  const bool shared = free < keys_.size() && random_.Chance(15);
  Key& key = shared ? keys_[free + random_.Below(keys_.size() - free)]
                    : keys_[random_.Below(free)];
  const std::size_t what = random_.Below(100);
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
  attempt.request_hash = std::string(32, random_.Chance(92) ? 'h' : 'r');
  key.attempts.push_back(std::move(attempt));
  return key.attempts.back();
}

// Mostly one of the latest, which are the ones that may own the key.
RawCallers::Attempt& RawCallers::AnyAttempt(Key& key) {
  const std::size_t all = key.attempts.size();
  const std::size_t recent =
      random_.Chance(80) ? std::min<std::size_t>(all, 3) : all;
  return key.attempts[all - 1 - random_.Below(recent)];
}

Patience RawCallers::AnyPatience(bool waits) {
  Patience patience;
  patience.listens = Milliseconds(250) + 3 * AnyDuration();
  if (waits) {
    patience.waits = std::min<Microseconds>(AnyDuration(), Milliseconds(1500));
    patience.listens += patience.waits;
  }
  if (random_.Chance(8)) patience.gone_at = scheduler_.Now() + AnyDuration();
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
  const auto heard = std::make_shared<Heard>(scheduler_);
  for (int i = 0; i < times; ++i) {
    network_.Send<Command, Outcome>(
        random_.Below(network_.replicas()), command, patience,
        [heard](absl::StatusOr<Outcome> outcome) {
          if (!heard->answer.has_value()) heard->answer = std::move(outcome);
          heard->gate.Open();
        },
        [heard](bool) { heard->gate.Open(); });
    // Some do not wait for the answer, and ask again at once.
    heard->gate.WaitFor(weather_.calm || random_.Chance(85) ? patience.listens
                                                            : AnyDuration());
    if (heard->answer.has_value() &&
        (heard->answer->ok() || random_.Chance(60))) {
      break;
    }
    if (i + 1 < times) scheduler_.Sleep(AnyDuration() / 4);
  }
  return heard->answer;
}

void RawCallers::AskForClaim(Key& key) {
  constexpr const char* kPolicies[] = {"",         "",          "held",
                                       "recorded", "permanent", "later"};
  const bool anew = key.attempts.empty() || random_.Chance(60);
  const Attempt attempt = anew ? NewAttempt(key) : AnyAttempt(key);
  ClaimCommand claim{.id = key.id,
                     .request_hash = attempt.request_hash,
                     .claim_token = attempt.token};
  claim.policy_name =
      key.shared ? "payment" : kPolicies[random_.Below(std::size(kPolicies))];
  if (random_.Chance(50)) {
    claim.lease = absl::Milliseconds(100) + absl::FromChrono(AnyDuration());
  }
  claim.resolve_in_doubt = random_.Chance(35);
  if (!anew && random_.Chance(40)) {
    claim.renew_fencing_token =
        attempt.fencing_token != 0 ? attempt.fencing_token : 1;
  }
  if (random_.Chance(40)) {
    claim.checkpoint_number = static_cast<std::int64_t>(random_.Below(4));
    claim.checkpoint =
        TextOf(key.id, "progress " + std::to_string(claim.checkpoint_number) +
                           " of " + std::to_string(attempt.number));
  }
  const auto answer =
      Ask<ClaimCommand, ClaimOutcome>(claim, AnyPatience(random_.Chance(50)),
                                      1 + static_cast<int>(random_.Below(3)));
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
      kStatuses[random_.Chance(80)
                    ? static_cast<std::size_t>(attempt.number) % 3
                    : random_.Below(std::size(kStatuses))];
  finalize.response.body =
      TextOf(key.id, "by " + std::to_string(attempt.number));
  finalize.response_digest = std::to_string(finalize.response.status_code) +
                             " " + finalize.response.body;
  Ask<FinalizeCommand, FinalizeOutcome>(finalize, AnyPatience(false),
                                        1 + static_cast<int>(random_.Below(3)));
}

void RawCallers::AskToRelease(Key& key) {
  constexpr Disposition kDispositions[] = {Disposition::kNotExecuted,
                                           Disposition::kOutcomeUnknown,
                                           Disposition::kNeverExecuted};
  const ReleaseCommand release = {
      .id = key.id,
      .claim_token = AnyAttempt(key).token,
      .disposition = kDispositions[random_.Below(key.shared ? 2 : 3)]};
  Ask<ReleaseCommand, ReleaseOutcome>(release, AnyPatience(false),
                                      1 + static_cast<int>(random_.Below(3)));
}

void RawCallers::AskToLookup(Key& key) {
  Ask<LookupCommand, LookupOutcome>({.id = key.id}, AnyPatience(false), 1);
}

void RawCallers::AskForEveryKey() {
  for (Key& key : keys_) {
    ++asking_;
    scheduler_.Spawn(AnyDuration(), [this, &key] {
      InsistOn(key);
      --asking_;
    });
  }
}

void RawCallers::InsistOn(Key& key) {
  const SteadyTime end = scheduler_.Now() + kHadWithin;
  const Attempt attempt = NewAttempt(key);
  ClaimCommand claim{.id = key.id, .claim_token = attempt.token};
  claim.policy_name = key.shared ? "payment" : "held";
  claim.resolve_in_doubt = true;
  while (scheduler_.Now() < end) {
    const RecordPtr record = database_.Find(key.id);
    claim.request_hash =
        record == nullptr ? attempt.request_hash : record->request_hash;
    const auto answer = Ask<ClaimCommand, ClaimOutcome>(
        claim, {.listens = Milliseconds(2000), .waits = Milliseconds(1000)}, 1);
    if (!answer.has_value()) {
      checker_.ViolateAbout(key.id, "L3", "no answer in calm weather");
      return;
    }
    if (answer->ok() && (std::holds_alternative<Claimed>(**answer) ||
                         std::holds_alternative<Replay>(**answer))) {
      return;
    }
    scheduler_.Sleep(Milliseconds(100));
  }
  checker_.ViolateAbout(key.id, "L2", "nobody gets the key");
}

}  // namespace idempotency
