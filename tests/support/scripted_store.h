// A store that says yes to everything, or fails as the test says.
#ifndef IDEMPOTENCY_TESTS_SUPPORT_SCRIPTED_STORE_H_
#define IDEMPOTENCY_TESTS_SUPPORT_SCRIPTED_STORE_H_

#include <atomic>
#include <cstddef>
#include <utility>
#include <vector>

#include "server/core/store.h"
#include "server/core/transitions.h"

namespace idempotency {

// What the stores of one engine answer and what they were asked. Set up before
// the lanes are driven, read after; `items` at any time.
struct StoreScript {
  absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  absl::Status failure{};  // instead of every answer
  Record record{};         // of Lookup
  FleetRules rules{};

  std::atomic<int> items{0};  // calls that reached a store
  std::vector<FinalizeCommand> finalizes{};
  std::vector<ReleaseCommand> releases{};
};

// Rules with the policy `default` only.
inline FleetRules OnePolicy(const Uuid& downstream_namespace) {
  FleetRules rules;
  rules.policies["default"] = {.name = "default",
                               .lease = absl::Seconds(30),
                               .max_lease = absl::Hours(1),
                               .retention = absl::Hours(24)};
  rules.downstream_namespace = downstream_namespace;
  return rules;
}

class YesStore final : public Store {
 public:
  // `script` must outlive the store.
  explicit YesStore(StoreScript& script) : script_(script) {}

  std::vector<ClaimAnswer> ClaimBatch(Batch<ClaimCommand> claims) override {
    std::vector<ClaimAnswer> answers;
    for (const ClaimCommand* claim : claims) {
      const Record record = NewRecord(*claim, script_.now);
      answers.push_back(
          {.outcome = OrFailure<ClaimOutcome>(GrantOf(record, script_.now))});
      if (claim->wants_record) {
        answers.back().observed = Observed{record, script_.now};
      }
    }
    return answers;
  }
  std::vector<absl::StatusOr<FinalizeOutcome>> FinalizeBatch(
      Batch<FinalizeCommand> finalizes) override {
    std::vector<absl::StatusOr<FinalizeOutcome>> answers;
    for (const FinalizeCommand* finalize : finalizes) {
      script_.finalizes.push_back(*finalize);
      answers.push_back(OrFailure(FinalizeOutcome{
          .result = FinalizeResult::kRecorded, .expires_at = script_.now}));
    }
    return answers;
  }
  std::vector<absl::StatusOr<LookupOutcome>> LookupBatch(
      Batch<LookupCommand> lookups) override {
    std::vector<absl::StatusOr<LookupOutcome>> answers;
    for (std::size_t i = 0; i < lookups.size(); ++i) {
      answers.push_back(OrFailure(
          LookupOutcome{.record = script_.record,
                        .state = StateAt(script_.record, script_.now)}));
    }
    return answers;
  }
  std::vector<absl::StatusOr<ReleaseOutcome>> ReleaseBatch(
      Batch<ReleaseCommand> releases) override {
    std::vector<absl::StatusOr<ReleaseOutcome>> answers;
    for (const ReleaseCommand* release : releases) {
      script_.releases.push_back(*release);
      answers.push_back(OrFailure(
          ReleaseOutcome{.released = true, .state = VisibleState::kReleased}));
    }
    return answers;
  }
  absl::StatusOr<std::vector<bool>> FindChanged(
      Batch<Watched> watched) override {
    return std::vector<bool>(watched.size());
  }
  absl::StatusOr<FleetRules> ReadRules() override { return script_.rules; }

 private:
  template <typename Outcome>
  absl::StatusOr<Outcome> OrFailure(Outcome outcome) {
    ++script_.items;
    if (!script_.failure.ok()) return script_.failure;
    return outcome;
  }

  StoreScript& script_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SUPPORT_SCRIPTED_STORE_H_
