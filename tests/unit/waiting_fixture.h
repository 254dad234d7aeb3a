// Two replicas over one table of records in memory. Time passes from one thing
// that a lane has to do to the next, so that the tests can say when exactly a
// waiter is answered.
#ifndef IDEMPOTENCY_TESTS_UNIT_WAITING_FIXTURE_H_
#define IDEMPOTENCY_TESTS_UNIT_WAITING_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/core/engine.h"
#include "server/core/errors.h"
#include "server/core/optimistic_store.h"
#include "tests/support/manual_clock.h"
#include "tests/support/memory_log.h"
#include "tests/support/memory_table.h"

namespace idempotency {

using std::chrono::milliseconds;
using std::chrono::seconds;

class WaitingTest : public ::testing::Test {
 protected:
  struct Replica {
    FleetRulesCache rules;
    Metrics metrics;
    std::unique_ptr<Engine> engine;
  };

  struct Asked {
    std::string key = "key";
    int token = 1;
    milliseconds wait{0};
    milliseconds timeout = seconds(100);
    absl::Duration lease = absl::Seconds(30);
    std::string hash = "the request";
    bool resolve_in_doubt = false;
    std::string policy{};
    std::function<bool()> cancelled{};
  };

  // One answer, and when it came, counted from the beginning of the test.
  struct Answer {
    std::string outcome;
    milliseconds at{0};
    std::optional<ClaimOutcome> claim{};
  };

  WaitingTest() {
    FleetRules rules = database_.rules();
    Policy held = rules.policies["default"];
    held.name = "held";
    held.on_abandoned = OnAbandoned::kHold;
    rules.policies["held"] = held;
    database_.SetRules(rules);
  }

  // Replica 0 or 1, made when it is first asked for.
  Replica& At(std::size_t i) {
    Replica& replica = replicas_[i];
    if (replica.engine != nullptr) return replica;
    const auto make_store = [&] {
      return std::make_unique<OptimisticStore>(
          std::make_unique<MemoryTable>(
              database_,
              [this](MemoryStatement statement, StatementPhase phase) {
                return OnStatement(statement, phase);
              }),
          clock_, replica.metrics);
    };
    std::vector<std::unique_ptr<Store>> stores;
    stores.push_back(make_store());
    replica.engine = std::make_unique<Engine>(options_, clock_, replica.rules,
                                              replica.metrics, log_,
                                              std::move(stores), make_store());
    return replica;
  }

  void Claim(std::size_t replica, const std::string& name, const Asked& asked) {
    ClaimCommand command{.id = {"scope", asked.key},
                         .request_hash = asked.hash,
                         .claim_token = Token(asked.token),
                         .policy_name = asked.policy,
                         .lease = asked.lease,
                         .resolve_in_doubt = asked.resolve_in_doubt};
    CallContext context{.deadline = clock_.Now() + asked.timeout,
                        .cancelled = asked.cancelled};
    if (asked.wait.count() > 0) {
      context.wait_until = std::min<SteadyTime>(
          clock_.Now() + asked.wait, context.deadline - limits::kWaitMargin);
    }
    At(replica).engine->Submit(
        std::move(command), std::move(context),
        [this, name](absl::StatusOr<ClaimOutcome> outcome) {
          Note(name, outcome.ok() ? kOutcomes[outcome->index()]
                                  : NameOf(outcome.status()));
          if (outcome.ok()) answers_[name].claim = *std::move(outcome);
        });
  }

  void Finalize(std::size_t replica, const std::string& key = "key",
                int token = 1) {
    FinalizeCommand command{.id = {"scope", key}, .claim_token = Token(token)};
    command.response.status_code = 200;
    command.response_digest = "digest";
    At(replica).engine->Submit(
        std::move(command), {},
        [this](absl::StatusOr<FinalizeOutcome> outcome) {
          Note("finalize", outcome.ok() ? "ok" : NameOf(outcome.status()));
        });
  }

  void Release(std::size_t replica, Disposition disposition,
               const std::string& key = "key", int token = 1) {
    At(replica).engine->Submit(
        {.id = {"scope", key},
         .claim_token = Token(token),
         .disposition = disposition},
        {}, [this](absl::StatusOr<ReleaseOutcome> outcome) {
          Note("release", outcome.ok() ? "ok" : NameOf(outcome.status()));
        });
  }

  void Lookup(std::size_t replica, const std::string& name) {
    At(replica).engine->Submit(
        LookupCommand{.id = {"scope", "key"}}, {},
        [this, name](absl::StatusOr<LookupOutcome> outcome) {
          Note(name, outcome.ok() ? "found" : NameOf(outcome.status()));
        });
  }

  // Lets the lanes do what there is to do.
  void RunLanes() {
    while (NextWork() <= clock_.Now()) {
      for (Lane* const lane : Lanes()) {
        if (lane->next_work() <= clock_.Now()) lane->RunBatch();
      }
    }
  }

  void Pass(SteadyTime::duration by) {
    const SteadyTime end = clock_.Now() + by;
    RunLanes();
    while (clock_.Now() < end) {
      PassOnly(std::min(NextWork(), end) - clock_.Now());
      RunLanes();
    }
  }
  // While no lane runs. In whole microseconds, like the database's clock.
  void PassOnly(SteadyTime::duration by) {
    const auto micros = std::chrono::ceil<std::chrono::microseconds>(by);
    clock_.Advance(micros);
    database_.Advance(absl::FromChrono(micros));
  }

  std::string OutcomeOf(const std::string& name) const {
    const auto found = answers_.find(name);
    return found == answers_.end() ? "none yet" : found->second.outcome;
  }
  milliseconds TimeOf(const std::string& name) const {
    const auto found = answers_.find(name);
    return found == answers_.end() ? milliseconds(-1) : found->second.at;
  }
  milliseconds Elapsed() const {
    return std::chrono::duration_cast<milliseconds>(clock_.Now() - start_);
  }

  std::size_t waiting() {
    return At(0).engine->waiting() + At(1).engine->waiting();
  }
  // Statements of both replicas.
  int Sent(MemoryStatement statement) { return sent_[statement]; }

  static Uuid Token(int number) {
    Uuid token;
    token.bytes[0] = static_cast<std::uint8_t>(number / 256);
    token.bytes[1] = static_cast<std::uint8_t>(number % 256);
    return token;
  }

  static constexpr const char* kOutcomes[] = {"Claimed", "Replay", "InProgress",
                                              "Mismatch", "InDoubt"};

  LaneOptions options_;
  MemoryDatabase database_;
  ManualClock clock_;
  const SteadyTime start_ = clock_.Now();
  MemoryLog log_;
  std::map<std::string, Answer> answers_;
  // What befalls a statement; null: nothing.
  StatementHook trouble_;

 private:
  std::vector<Lane*> Lanes() {
    std::vector<Lane*> lanes;
    for (std::size_t i = 0; i < replicas_.size(); ++i) {
      const std::vector<Lane*> more = At(i).engine->lanes();
      lanes.insert(lanes.end(), more.begin(), more.end());
    }
    return lanes;
  }

  SteadyTime NextWork() {
    SteadyTime next = SteadyTime::max();
    for (Lane* const lane : Lanes()) next = std::min(next, lane->next_work());
    return next;
  }

  absl::Status OnStatement(MemoryStatement statement, StatementPhase phase) {
    if (phase == StatementPhase::kBefore) ++sent_[statement];
    return trouble_ ? trouble_(statement, phase) : absl::OkStatus();
  }

  void Note(const std::string& name, const std::string& outcome) {
    EXPECT_EQ(answers_[name].outcome, "") << name << " was answered twice";
    answers_[name].outcome = outcome;
    answers_[name].at = Elapsed();
  }

  static std::string NameOf(const absl::Status& status) {
    return HasReason(status) ? std::string(ReasonName(ReasonOf(status)))
                             : status.ToString();
  }

  std::map<MemoryStatement, int> sent_;
  std::array<Replica, 2> replicas_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_UNIT_WAITING_FIXTURE_H_
