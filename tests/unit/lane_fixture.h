// The lane as a step function over a store that the test scripts: which calls
// reach it, in what batches, and what becomes of each answer.
#ifndef IDEMPOTENCY_TESTS_UNIT_LANE_FIXTURE_H_
#define IDEMPOTENCY_TESTS_UNIT_LANE_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/core/errors.h"
#include "server/core/lane.h"
#include "server/core/transitions.h"
#include "tests/support/manual_clock.h"
#include "tests/support/memory_log.h"

namespace idempotency {

using std::chrono::milliseconds;
using std::chrono::seconds;

using Keys = std::vector<std::string>;

inline const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

// Grants every claim, unless the test says what to answer.
class ScriptedStore final : public Store {
 public:
  struct Script {
    // The keys of every batch, in order of arrival.
    std::vector<Keys> batches;
    // Null: grant.
    std::function<absl::Status(const Keys& batch, const std::string& key)>
        failure;
    // Claims and Finalizes go in one statement, which fails as a whole.
    bool one_statement = false;
    std::size_t answers_too_many = 0;
    int rules_read = 0;
    std::function<void()> while_working;
    FleetRules rules;
  };

  explicit ScriptedStore(Script& script) : script_(script) {}

  std::vector<ClaimAnswer> ClaimBatch(Batch<ClaimCommand> claims) override {
    const Keys keys = Arrived(claims);
    std::vector<ClaimAnswer> answers;
    for (const ClaimCommand* claim : claims) {
      ClaimAnswer& answer = answers.emplace_back();
      const absl::Status failure = Failure(keys, claim->id.key);
      if (!failure.ok() || !claim->policy.ok()) {
        answer.outcome = failure.ok() ? claim->policy.status() : failure;
        continue;
      }
      const Record record = NewRecord(*claim, kNow);
      answer.outcome = GrantOf(record, kNow);
      if (claim->wants_record) answer.observed = Observed{record, kNow};
    }
    answers.resize(answers.size() + script_.answers_too_many);
    return answers;
  }
  std::vector<absl::StatusOr<FinalizeOutcome>> FinalizeBatch(
      Batch<FinalizeCommand> finalizes) override {
    const Keys keys = Arrived(finalizes);
    std::vector<absl::StatusOr<FinalizeOutcome>> answers;
    for (const FinalizeCommand* finalize : finalizes) {
      const absl::Status failure = Failure(keys, finalize->id.key);
      if (failure.ok()) {
        answers.emplace_back(FinalizeOutcome{});
      } else {
        answers.emplace_back(failure);
      }
    }
    return answers;
  }
  ClaimAndFinalizeAnswers ClaimAndFinalize(
      Batch<ClaimCommand> claims, Batch<FinalizeCommand> finalizes) override {
    if (!script_.one_statement) {
      return Store::ClaimAndFinalize(claims, finalizes);
    }
    Keys keys = KeysOf(claims);
    for (const std::string& key : KeysOf(finalizes)) keys.push_back(key);
    script_.batches.push_back(keys);
    ClaimAndFinalizeAnswers answers{
        .claims = std::vector<ClaimAnswer>(claims.size()),
        .finalizes = std::vector<absl::StatusOr<FinalizeOutcome>>(
            finalizes.size(), FinalizeOutcome())};
    for (const std::string& key : keys) {
      const absl::Status failure = Failure(keys, key);
      if (failure.ok()) continue;
      for (ClaimAnswer& answer : answers.claims) answer.outcome = failure;
      for (auto& answer : answers.finalizes) answer = failure;
    }
    return answers;
  }
  std::vector<absl::StatusOr<LookupOutcome>> LookupBatch(
      Batch<LookupCommand> lookups) override {
    Arrived(lookups);
    return std::vector<absl::StatusOr<LookupOutcome>>(lookups.size());
  }
  std::vector<absl::StatusOr<ReleaseOutcome>> ReleaseBatch(
      Batch<ReleaseCommand> releases) override {
    Arrived(releases);
    return std::vector<absl::StatusOr<ReleaseOutcome>>(releases.size());
  }
  absl::StatusOr<std::vector<bool>> FindChanged(
      Batch<Watched> watched) override {
    return std::vector<bool>(watched.size());
  }
  absl::StatusOr<FleetRules> ReadRules() override {
    ++script_.rules_read;
    return script_.rules;
  }

 private:
  template <typename Command>
  static Keys KeysOf(Batch<Command> batch) {
    Keys keys;
    for (const Command* command : batch) keys.push_back(command->id.key);
    return keys;
  }

  template <typename Command>
  Keys Arrived(Batch<Command> batch) {
    const Keys keys = KeysOf(batch);
    script_.batches.push_back(keys);
    if (script_.while_working) script_.while_working();
    return keys;
  }

  absl::Status Failure(const Keys& keys, const std::string& key) const {
    return script_.failure == nullptr ? absl::OkStatus()
                                      : script_.failure(keys, key);
  }

  Script& script_;
};

inline Policy PolicyNamed(const std::string& name) {
  return {.name = name,
          .lease = absl::Seconds(30),
          .max_lease = absl::Hours(1),
          .retention = absl::Hours(24)};
}

class LaneTest : public ::testing::Test {
 protected:
  LaneTest() {
    script_.rules.policies["default"] = PolicyNamed("default");
    rules_.Set(script_.rules);
  }

  Lane& lane() {
    if (lane_ == nullptr) {
      aside_ = std::make_unique<Lane>(
          LaneOptions{.batch_items_max = 1, .queue_wait_max = milliseconds{0}},
          clock_, rules_, metrics_, log_,
          std::make_unique<ScriptedStore>(aside_script_), nullptr);
      lane_ = std::make_unique<Lane>(options_, clock_, rules_, metrics_, log_,
                                     std::make_unique<ScriptedStore>(script_),
                                     aside_.get());
    }
    return *lane_;
  }

  struct Asked {
    std::string key;
    milliseconds timeout = seconds(30);
    std::string policy{};
    std::int64_t renew_fencing_token = 0;
    std::size_t bytes = 100;
    std::function<bool()> cancelled{};
  };

  // Submits a claim; its answer appears in answers_ under `name`.
  void Claim(const std::string& name, const Asked& asked) {
    ClaimCommand command{.id = {"scope", asked.key},
                         .request_hash = "hash",
                         .policy_name = asked.policy,
                         .renew_fencing_token = asked.renew_fencing_token};
    command.claim_token.bytes[0] = ++tokens_;
    Submit(ClaimCall{std::move(command),
                     [this, name](absl::StatusOr<ClaimOutcome> outcome) {
                       answers_.emplace_back(name, NameOf(outcome));
                     }},
           asked);
  }

  void Finalize(const std::string& name, const Asked& asked) {
    Submit(FinalizeCall{FinalizeCommand{.id = {"scope", asked.key}},
                        [this, name](absl::StatusOr<FinalizeOutcome> outcome) {
                          answers_.emplace_back(
                              name, outcome.ok() ? "Recorded"
                                                 : NameOf(outcome.status()));
                        }},
           asked);
  }

  template <typename Request>
  void Submit(Request request, const Asked& asked) {
    std::list<Call> call;
    call.push_back({.request = std::move(request),
                    .context = {.deadline = clock_.Now() + asked.timeout,
                                .cancelled = asked.cancelled},
                    .submitted = clock_.Now(),
                    .bytes = asked.bytes});
    lane().Submit(std::move(call));
  }

  static std::string NameOf(const absl::Status& status) {
    return HasReason(status) ? std::string(ReasonName(ReasonOf(status)))
                             : status.ToString();
  }
  static std::string NameOf(const absl::StatusOr<ClaimOutcome>& outcome) {
    if (!outcome.ok()) return NameOf(outcome.status());
    if (std::holds_alternative<Claimed>(*outcome)) return "Claimed";
    if (std::holds_alternative<InProgress>(*outcome)) return "InProgress";
    if (std::holds_alternative<Mismatch>(*outcome)) return "Mismatch";
    return "other";
  }

  using Answers = std::vector<std::pair<std::string, std::string>>;

  LaneOptions options_;
  ManualClock clock_;
  FleetRulesCache rules_;
  Metrics metrics_;
  MemoryLog log_;
  ScriptedStore::Script script_;
  ScriptedStore::Script aside_script_;
  Answers answers_;
  std::uint8_t tokens_ = 0;
  std::unique_ptr<Lane> aside_;
  std::unique_ptr<Lane> lane_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_UNIT_LANE_FIXTURE_H_
