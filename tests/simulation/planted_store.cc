#include "tests/simulation/planted_store.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/core/limits.h"

namespace idempotency {
namespace {

class PlantedStore final : public Store {
 public:
  PlantedStore(std::unique_ptr<Store> store, const Clock& clock, PlantedBug bug)
      : store_(std::move(store)), clock_(clock), bug_(bug) {}

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
    const SteadyTime asked_at = clock_.Now();
    std::vector<ClaimAnswer> answers = store_->ClaimBatch(batch);
    if (bug_ == PlantedBug::kReplaysOutliveTheDatabase) {
      for (std::size_t i = 0; i < answers.size(); ++i) {
        SpoilByMemory(*claims[i], asked_at, answers[i]);
      }
    }
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
    if (bug_ == PlantedBug::kFencingTokenPerRow) {
      auto* const claimed = std::get_if<Claimed>(&*answer.outcome);
      if (claimed != nullptr && claimed->attempt == 1) {
        claimed->fencing_token = 1;
      }
    }
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

  // A replay is given again until the record expires, whatever database it is
  // that answers.
  void SpoilByMemory(const ClaimCommand& claim, SteadyTime asked_at,
                     ClaimAnswer& answer) {
    if (!answer.outcome.ok()) return;
    const auto* const replay = std::get_if<Replay>(&*answer.outcome);
    if (replay != nullptr && answer.observed.has_value()) {
      const absl::Duration life =
          std::min(replay->expires_at - answer.observed->now,
                   absl::FromChrono(limits::kReplayCacheLifeMax));
      replays_[{claim.id, claim.request_hash}] = {
          *replay, asked_at + absl::ToChronoNanoseconds(life)};
      return;
    }
    const auto kept = replays_.find({claim.id, claim.request_hash});
    if (kept != replays_.end() && asked_at < kept->second.second) {
      answer.outcome = kept->second.first;
    }
  }

  const std::unique_ptr<Store> store_;
  const Clock& clock_;
  const PlantedBug bug_;
  std::map<std::pair<RecordId, std::string>, std::pair<Replay, SteadyTime>>
      replays_;
  std::set<Uuid> tokens_;
  std::map<RecordId, InProgress> in_progress_;
  std::map<RecordId, Observed> observed_;
};

}  // namespace

std::unique_ptr<Store> WithPlantedBug(std::unique_ptr<Store> store,
                                      const Clock& clock, PlantedBug bug) {
  switch (bug) {
    case PlantedBug::kFencingTokenPerRow:
    case PlantedBug::kRetriedClaimIsNew:
    case PlantedBug::kUnfinishedIsCached:
    case PlantedBug::kWaiterHearsOldNews:
    case PlantedBug::kReplaysOutliveTheDatabase:
      return std::make_unique<PlantedStore>(std::move(store), clock, bug);
    default:
      return store;
  }
}

}  // namespace idempotency
