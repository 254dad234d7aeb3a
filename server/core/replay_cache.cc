#include "server/core/replay_cache.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/hash/hash.h"
#include "server/core/errors.h"
#include "server/core/limits.h"
#include "server/core/outcome_counts.h"
#include "server/core/recorded_bytes.h"
#include "server/core/transitions.h"

namespace idempotency {
namespace {

// A larger entry would push out too many others.
constexpr std::size_t kEntriesOfAShardMin = 16;
// Nodes of list and table, and what their allocation costs.
constexpr std::size_t kOverheadBytes = 160;

// The part of a final record that a claim is decided and counted by.
Record WhatClaimsNeed(const Record& record) {
  Record needed;
  needed.state = record.state;
  needed.request_hash = record.request_hash;
  needed.policy.name = record.policy.name;
  needed.created_at = record.created_at;
  needed.expires_at = record.expires_at;
  needed.finalized_at = record.finalized_at;
  needed.response = record.response;
  return needed;
}

std::size_t BytesOf(const RecordId& id, const Record& record) {
  return id.scope.size() + id.key.size() + record.request_hash.size() +
         record.policy.name.size() + RecordedBytes(record.response);
}

bool IsAway(const ClaimAnswer& answer) {
  return IsStoreAway(answer.outcome.status());
}
template <typename Outcome>
bool IsAway(const absl::StatusOr<Outcome>& answer) {
  return IsStoreAway(answer.status());
}
template <typename Answer>
bool IsAnyAway(const std::vector<Answer>& answers) {
  return std::any_of(answers.begin(), answers.end(),
                     [](const Answer& answer) { return IsAway(answer); });
}

class ReplayKeepingStore final : public Store {
 public:
  ReplayKeepingStore(std::unique_ptr<Store> store, ReplayCache& cache,
                     const Clock& clock)
      : store_(std::move(store)), cache_(cache), clock_(clock) {}

  std::vector<ClaimAnswer> ClaimBatch(Batch<ClaimCommand> claims) override {
    const SteadyTime asked_at = clock_.Now();
    std::vector<ClaimAnswer> answers = store_->ClaimBatch(claims);
    Notice(answers, asked_at);
    KeepReplays(claims, answers, asked_at);
    return answers;
  }
  ClaimAndFinalizeAnswers ClaimAndFinalize(
      Batch<ClaimCommand> claims, Batch<FinalizeCommand> finalizes) override {
    const SteadyTime asked_at = clock_.Now();
    ClaimAndFinalizeAnswers answers =
        store_->ClaimAndFinalize(claims, finalizes);
    NoticeOne(IsAnyAway(answers.claims) || IsAnyAway(answers.finalizes),
              asked_at);
    KeepReplays(claims, answers.claims, asked_at);
    return answers;
  }
  std::vector<absl::StatusOr<FinalizeOutcome>> FinalizeBatch(
      Batch<FinalizeCommand> finalizes) override {
    const SteadyTime asked_at = clock_.Now();
    return Noticed(store_->FinalizeBatch(finalizes), asked_at);
  }
  std::vector<absl::StatusOr<LookupOutcome>> LookupBatch(
      Batch<LookupCommand> lookups) override {
    const SteadyTime asked_at = clock_.Now();
    return Noticed(store_->LookupBatch(lookups), asked_at);
  }
  std::vector<absl::StatusOr<ReleaseOutcome>> ReleaseBatch(
      Batch<ReleaseCommand> releases) override {
    const SteadyTime asked_at = clock_.Now();
    return Noticed(store_->ReleaseBatch(releases), asked_at);
  }
  absl::StatusOr<std::vector<bool>> FindChanged(
      Batch<Watched> watched) override {
    const SteadyTime asked_at = clock_.Now();
    absl::StatusOr<std::vector<bool>> changed = store_->FindChanged(watched);
    NoticeOne(IsAway(changed), asked_at);
    return changed;
  }
  absl::StatusOr<FleetRules> ReadRules() override {
    const SteadyTime asked_at = clock_.Now();
    absl::StatusOr<FleetRules> rules = store_->ReadRules();
    NoticeOne(IsAway(rules), asked_at);
    return rules;
  }

 private:
  void NoticeOne(bool away, SteadyTime asked_at) {
    if (away_ && !away) cache_.Forget(asked_at);
    away_ = away;
  }
  template <typename Answer>
  void Notice(const std::vector<Answer>& answers, SteadyTime asked_at) {
    if (!answers.empty()) NoticeOne(IsAnyAway(answers), asked_at);
  }
  template <typename Answers>
  Answers Noticed(Answers answers, SteadyTime asked_at) {
    Notice(answers, asked_at);
    return answers;
  }

  void KeepReplays(Batch<ClaimCommand> claims,
                   const std::vector<ClaimAnswer>& answers,
                   SteadyTime asked_at) {
    const std::size_t answered = std::min(answers.size(), claims.size());
    for (std::size_t i = 0; i < answered; ++i) {
      const ClaimAnswer& answer = answers[i];
      if (answer.outcome.ok() &&
          std::holds_alternative<Replay>(*answer.outcome) &&
          answer.observed.has_value()) {
        cache_.Keep(claims[i]->id, *answer.observed, asked_at);
      }
    }
  }

  const std::unique_ptr<Store> store_;
  ReplayCache& cache_;
  const Clock& clock_;
  // It could not be used when last tried: what answers next may be another
  // database.
  bool away_ = false;
};

}  // namespace

std::size_t ReplayCache::HashOfId::operator()(const RecordId* id) const {
  return absl::Hash<RecordId>()(*id);
}

ReplayCache::ReplayCache(std::size_t bytes_max, const Clock& clock,
                         Metrics& metrics)
    : shard_bytes_max_(bytes_max / std::tuple_size_v<decltype(shards_)>),
      clock_(clock),
      metrics_(metrics) {}

std::optional<ClaimOutcome> ReplayCache::Answer(const ClaimCommand& command) {
  const std::shared_ptr<const Entry> entry = Find(command.id);
  if (entry == nullptr) return std::nullopt;
  Decision<ClaimOutcome> decision =
      DecideClaim(&entry->record, command, entry->now);
  // No claim of a final record is anything but answered; if one were, it would
  // be the database's to decide.
  if (!decision.answer.ok() || decision.write.has_value()) return std::nullopt;
  CountUnwritten(*decision.answer, entry->record, metrics_);
  Count(metrics_.replay_cache_hits);
  return *std::move(decision.answer);
}

void ReplayCache::Keep(const RecordId& id, const Observed& observed,
                       SteadyTime asked_at) {
  if (!observed.record.has_value() ||
      observed.record->state != RecordState::kFinal) {
    return;
  }
  const std::size_t bytes =
      sizeof(Entry) + kOverheadBytes + BytesOf(id, *observed.record);
  if (bytes * kEntriesOfAShardMin > shard_bytes_max_) return;
  const absl::Duration life =
      std::min(observed.record->expires_at - observed.now,
               absl::FromChrono(limits::kReplayCacheLifeMax));
  const SteadyTime good_until = asked_at + absl::ToChronoNanoseconds(life);
  if (good_until <= clock_.Now()) return;
  const auto entry = std::make_shared<const Entry>(
      Entry{.id = id,
            .record = WhatClaimsNeed(*observed.record),
            .now = observed.now,
            .good_until = good_until,
            .bytes = bytes});
  Entries dropped;
  Shard& shard = ShardOf(id);
  MutexLock lock(shard.mutex);
  if (asked_at < shard.keeps_since) return;
  const auto known = shard.by_id.find(&id);
  if (known != shard.by_id.end()) {
    // A read that was overtaken by a later one, perhaps of the key's next life.
    if ((*known->second)->good_until >= good_until) return;
    Drop(shard, known->second, dropped);
  }
  shard.entries.push_front(entry);
  shard.by_id.emplace(&entry->id, shard.entries.begin());
  shard.bytes += bytes;
  Add(metrics_.replay_cache_entries, 1);
  Add(metrics_.replay_cache_bytes, static_cast<std::int64_t>(bytes));
  while (shard.bytes > shard_bytes_max_) {
    Drop(shard, std::prev(shard.entries.end()), dropped);
  }
}

void ReplayCache::Forget(SteadyTime since) {
  for (Shard& shard : shards_) {
    Entries dropped;
    MutexLock lock(shard.mutex);
    shard.keeps_since = std::max(shard.keeps_since, since);
    while (!shard.entries.empty()) {
      Drop(shard, shard.entries.begin(), dropped);
    }
  }
}

ReplayCache::Shard& ReplayCache::ShardOf(const RecordId& id) {
  // The table within the shard goes by the lower bits.
  constexpr int kShift = 40;
  return shards_[(HashOfId()(&id) >> kShift) % shards_.size()];
}

std::shared_ptr<const ReplayCache::Entry> ReplayCache::Find(
    const RecordId& id) {
  if (shard_bytes_max_ == 0) return nullptr;
  const SteadyTime now = clock_.Now();
  Entries dropped;
  Shard& shard = ShardOf(id);
  MutexLock lock(shard.mutex);
  const auto known = shard.by_id.find(&id);
  if (known == shard.by_id.end()) return nullptr;
  const Entries::iterator entry = known->second;
  if ((*entry)->good_until <= now) {
    Drop(shard, entry, dropped);
    return nullptr;
  }
  shard.entries.splice(shard.entries.begin(), shard.entries, entry);
  return *entry;
}

void ReplayCache::Drop(Shard& shard, Entries::iterator entry,
                       Entries& dropped) {
  const std::size_t bytes = (*entry)->bytes;
  shard.by_id.erase(&(*entry)->id);
  shard.bytes -= bytes;
  dropped.splice(dropped.end(), shard.entries, entry);
  Add(metrics_.replay_cache_entries, -1);
  Add(metrics_.replay_cache_bytes, -static_cast<std::int64_t>(bytes));
}

std::unique_ptr<Store> KeepingReplays(std::unique_ptr<Store> store,
                                      ReplayCache& cache, const Clock& clock) {
  return std::make_unique<ReplayKeepingStore>(std::move(store), cache, clock);
}

}  // namespace idempotency
