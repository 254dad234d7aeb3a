#include "tests/simulation/planted_store.h"

#include <map>
#include <set>
#include <utility>
#include <variant>
#include <vector>

namespace idempotency {
namespace {

class PlantedStore final : public Store {
 public:
  PlantedStore(std::unique_ptr<Store> store, PlantedBug bug)
      : store_(std::move(store)), bug_(bug) {}

  std::vector<ClaimAnswer> ClaimBatch(Batch<ClaimCommand> claims) override {
    std::vector<ClaimCommand> asked;
    std::vector<const ClaimCommand*> batch;
    asked.reserve(claims.size());
    for (const ClaimCommand* claim : claims) {
      asked.push_back(*claim);
      if (bug_ == PlantedBug::kRetriedClaimIsNew &&
          claim->renew_fencing_token == 0 &&
          !tokens_.insert(claim->claim_token).second) {
        asked.back().claim_token.bytes[15] ^= 0xff;
      }
      batch.push_back(&asked.back());
    }
    std::vector<ClaimAnswer> answers = store_->ClaimBatch(batch);
    for (std::size_t i = 0; i < answers.size(); ++i) {
      Spoil(*claims[i], answers[i]);
    }
    return answers;
  }

  ClaimAndFinalizeAnswers ClaimAndFinalize(
      Batch<ClaimCommand> claims, Batch<FinalizeCommand> finalizes) override {
    return {.claims = ClaimBatch(claims),
            .finalizes = FinalizeBatch(finalizes)};
  }
  std::vector<absl::StatusOr<FinalizeOutcome>> FinalizeBatch(
      Batch<FinalizeCommand> finalizes) override {
    return store_->FinalizeBatch(finalizes);
  }
  std::vector<absl::StatusOr<LookupOutcome>> LookupBatch(
      Batch<LookupCommand> lookups) override {
    return store_->LookupBatch(lookups);
  }
  std::vector<absl::StatusOr<ReleaseOutcome>> ReleaseBatch(
      Batch<ReleaseCommand> releases) override {
    return store_->ReleaseBatch(releases);
  }
  absl::StatusOr<std::vector<bool>> FindChanged(
      Batch<Watched> watched) override {
    return store_->FindChanged(watched);
  }
  absl::StatusOr<FleetRules> ReadRules() override {
    return store_->ReadRules();
  }

 private:
  void Spoil(const ClaimCommand& claim, ClaimAnswer& answer) {
    if (!answer.outcome.ok()) return;
    if (bug_ == PlantedBug::kUnfinishedIsCached) {
      const auto cached = in_progress_.find(claim.id);
      if (std::holds_alternative<InProgress>(*answer.outcome)) {
        in_progress_[claim.id] = std::get<InProgress>(*answer.outcome);
      } else if (cached != in_progress_.end() &&
                 std::holds_alternative<Replay>(*answer.outcome)) {
        answer.outcome = cached->second;
      }
    }
    if (bug_ == PlantedBug::kWaiterHearsOldNews &&
        answer.observed.has_value()) {
      const auto [old, first] = observed_.emplace(claim.id, *answer.observed);
      if (!first)
        answer.observed = std::exchange(old->second, *answer.observed);
    }
  }

  const std::unique_ptr<Store> store_;
  const PlantedBug bug_;
  std::set<Uuid> tokens_;
  std::map<RecordId, InProgress> in_progress_;
  std::map<RecordId, Observed> observed_;
};

}  // namespace

std::unique_ptr<Store> WithPlantedBug(std::unique_ptr<Store> store,
                                      PlantedBug bug) {
  switch (bug) {
    case PlantedBug::kRetriedClaimIsNew:
    case PlantedBug::kUnfinishedIsCached:
    case PlantedBug::kWaiterHearsOldNews:
      return std::make_unique<PlantedStore>(std::move(store), bug);
    default:
      return store;
  }
}

}  // namespace idempotency
