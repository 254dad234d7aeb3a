// What is answered from memory is what the database would have said, for as
// long as it would have said it, and within bounds.
#include "server/core/replay_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/core/engine.h"
#include "server/core/errors.h"
#include "server/core/transitions.h"
#include "tests/support/manual_clock.h"
#include "tests/support/memory_log.h"
#include "tests/unit/situations.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kMiB = 1024 * 1024;

RecordId IdOf(int i) { return {"orders", "key-" + std::to_string(i)}; }

Record Final(absl::Duration life, const std::string& body = "{}") {
  Record record = *RecordIn({.row = Row::kFinal});
  record.expires_at = Now() + life;
  record.response.body = body;
  return record;
}

ClaimCommand Asking(const RecordId& id, bool same_hash = true) {
  ClaimCommand command = ClaimOf({.row = Row::kFinal},
                                 {.same_token = false, .same_hash = same_hash});
  command.id = id;
  return command;
}

class ReplayCacheTest : public ::testing::Test {
 protected:
  void Keep(ReplayCache& cache, const RecordId& id, const Record& record) {
    cache.Keep(id, {.record = record, .now = Now()}, clock_.Now());
  }
  bool Has(ReplayCache& cache, const RecordId& id) {
    return cache.Answer(Asking(id)).has_value();
  }

  ManualClock clock_;
  Metrics metrics_;
  ReplayCache cache_{64 * kMiB, clock_, metrics_};
};

TEST_F(ReplayCacheTest, AnswersWhatTheTableOfOutcomesSaysInEverySituation) {
  int kept = 0;
  for (const Situation& situation : AllSituations()) {
    const std::optional<Record> record = RecordIn(situation);
    ReplayCache cache(kMiB, clock_, metrics_);
    if (record.has_value()) Keep(cache, Asking({}).id, *record);
    const bool replayable = record.has_value() &&
                            record->state == RecordState::kFinal &&
                            !IsAbsent(*record, Now());
    for (const ClaimChoice& choice : AllClaimChoices()) {
      ClaimCommand command = ClaimOf(situation, choice);
      command.id = Asking({}).id;
      const std::optional<ClaimOutcome> answer = cache.Answer(command);
      ASSERT_EQ(answer.has_value(), replayable)
          << Describe(situation) << ", " << Describe(choice);
      if (!replayable) break;
      ++kept;
      ASSERT_EQ(*answer, *DecideClaim(&*record, command, Now()).answer)
          << Describe(situation) << ", " << Describe(choice);
    }
  }
  EXPECT_GT(kept, 100);
}

TEST_F(ReplayCacheTest, AnEntryEndsWithItsRecordCountedFromBeforeTheQuestion) {
  const SteadyTime asked_at = clock_.Now();
  clock_.Advance(seconds(2));
  cache_.Keep(IdOf(1), {.record = Final(absl::Seconds(5)), .now = Now()},
              asked_at);
  clock_.Advance(milliseconds(2999));
  EXPECT_TRUE(Has(cache_, IdOf(1)));
  clock_.Advance(milliseconds(1));
  EXPECT_FALSE(Has(cache_, IdOf(1)));
  EXPECT_EQ(metrics_.replay_cache_entries, 0);
  EXPECT_EQ(metrics_.replay_cache_bytes, 0);
}

TEST_F(ReplayCacheTest, AnEntryEndsAfterAMinuteHoweverLongItsRecordLives) {
  Keep(cache_, IdOf(1), Final(absl::Hours(24)));
  Keep(cache_, IdOf(2), Final(absl::InfiniteDuration()));
  clock_.Advance(milliseconds(59'999));
  EXPECT_TRUE(Has(cache_, IdOf(1)));
  EXPECT_TRUE(Has(cache_, IdOf(2)));
  clock_.Advance(milliseconds(1));
  EXPECT_FALSE(Has(cache_, IdOf(1)));
  EXPECT_FALSE(Has(cache_, IdOf(2)));
}

TEST_F(ReplayCacheTest, WhatIsOverWhenTheAnswerComesIsNotKept) {
  const SteadyTime asked_at = clock_.Now();
  clock_.Advance(seconds(5));
  cache_.Keep(IdOf(1), {.record = Final(absl::Seconds(5)), .now = Now()},
              asked_at);
  EXPECT_EQ(metrics_.replay_cache_entries, 0);
}

// The key's first life was read, its second life is in the cache already.
TEST_F(ReplayCacheTest, OneKeyInTwoScopesIsTwoRecords) {
  Keep(cache_, {"orders", "key"}, Final(absl::Hours(1)));
  EXPECT_FALSE(Has(cache_, {"orders/refunds", "key"}));
  Keep(cache_, {"orders/refunds", "key"}, Final(absl::Hours(1), "other"));
  const std::optional<ClaimOutcome> answer =
      cache_.Answer(Asking({"orders", "key"}));
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(std::get<Replay>(*answer).response.body, "{}");
}

TEST_F(ReplayCacheTest, AReadThatWasOvertakenChangesNothing) {
  const SteadyTime asked_at = clock_.Now();
  clock_.Advance(seconds(1));
  Keep(cache_, IdOf(1), Final(absl::Seconds(9), "later"));
  cache_.Keep(IdOf(1), {.record = Final(absl::Seconds(9), "now"), .now = Now()},
              asked_at);
  const std::optional<ClaimOutcome> answer = cache_.Answer(Asking(IdOf(1)));
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(std::get<Replay>(*answer).response.body, "later");
  EXPECT_EQ(metrics_.replay_cache_entries, 1);
}

TEST_F(ReplayCacheTest, CountsItsAnswersUnderThePolicyOfTheRecord) {
  const Record record = Final(absl::Hours(1));
  Keep(cache_, IdOf(1), record);
  EXPECT_TRUE(cache_.Answer(Asking(IdOf(1))).has_value());
  EXPECT_TRUE(cache_.Answer(Asking(IdOf(1))).has_value());
  EXPECT_TRUE(cache_.Answer(Asking(IdOf(1), false)).has_value());
  EXPECT_FALSE(cache_.Answer(Asking(IdOf(2))).has_value());
  EXPECT_EQ(metrics_.replay_cache_hits, 3u);
  const auto& claims = metrics_.policies.At(record.policy.name).claims;
  EXPECT_EQ(claims[ClaimResult::kReplay], 2u);
  EXPECT_EQ(claims[ClaimResult::kMismatch], 1u);
}

TEST_F(ReplayCacheTest, StaysWithinItsBytesAndKeepsWhatIsAskedFor) {
  ReplayCache cache(kMiB, clock_, metrics_);
  constexpr int kRecords = 5000;
  for (int i = 0; i < kRecords; ++i) {
    Keep(cache, IdOf(i), Final(absl::Hours(1), std::string(1000, 'x')));
    ASSERT_LE(metrics_.replay_cache_bytes, static_cast<std::int64_t>(kMiB));
    ASSERT_TRUE(Has(cache, IdOf(i)));
    ASSERT_TRUE(Has(cache, IdOf(0))) << "the one that is asked for, at " << i;
  }
  EXPECT_FALSE(Has(cache, IdOf(1)));
  // It is used, too.
  EXPECT_GT(metrics_.replay_cache_entries, 400);
  EXPECT_GT(metrics_.replay_cache_bytes, static_cast<std::int64_t>(kMiB / 2));
}

TEST_F(ReplayCacheTest, AResponseThatWouldCrowdOutOthersIsNotKept) {
  ReplayCache cache(kMiB, clock_, metrics_);
  Keep(cache, IdOf(1), Final(absl::Hours(1), std::string(kMiB / 256, 'x')));
  EXPECT_FALSE(Has(cache, IdOf(1)));
  Keep(cache, IdOf(1), Final(absl::Hours(1), std::string(kMiB / 512, 'x')));
  EXPECT_TRUE(Has(cache, IdOf(1)));
}

TEST_F(ReplayCacheTest, WithoutBytesThereIsNone) {
  ReplayCache cache(0, clock_, metrics_);
  Keep(cache, IdOf(1), Final(absl::Hours(1)));
  EXPECT_FALSE(Has(cache, IdOf(1)));
}

TEST_F(ReplayCacheTest, WhatIsForgottenAndWhatWasAskedForBeforeIsNotKept) {
  Keep(cache_, IdOf(1), Final(absl::Hours(1)));
  Keep(cache_, IdOf(2), Final(absl::Hours(1)));
  const SteadyTime asked_at = clock_.Now();
  clock_.Advance(seconds(1));
  cache_.Forget(clock_.Now());
  EXPECT_FALSE(Has(cache_, IdOf(1)));
  EXPECT_FALSE(Has(cache_, IdOf(2)));
  EXPECT_EQ(metrics_.replay_cache_entries, 0);
  cache_.Keep(IdOf(1), {.record = Final(absl::Hours(1)), .now = Now()},
              asked_at);
  EXPECT_FALSE(Has(cache_, IdOf(1)));
  Keep(cache_, IdOf(2), Final(absl::Hours(1)));
  EXPECT_TRUE(Has(cache_, IdOf(2)));
}

TEST_F(ReplayCacheTest, ManyThreadsAreAnsweredWithTheRightRecord) {
  ReplayCache cache(kMiB, clock_, metrics_);
  constexpr int kKeys = 3000;
  std::atomic<int> wrong{0};
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 2 * kKeys; ++i) {
        const RecordId id = IdOf((i * 7 + thread * 13) % kKeys);
        Keep(cache, id, Final(absl::Hours(1), id.key + std::string(800, 'x')));
        const auto answer = cache.Answer(Asking(id));
        if (!answer.has_value()) continue;
        const std::string& body = std::get<Replay>(*answer).response.body;
        (body.starts_with(id.key + "x") ? right : wrong) += 1;
        if (i % 100 == 0) clock_.Advance(milliseconds(50));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(right, 0);
  EXPECT_LE(metrics_.replay_cache_bytes, static_cast<std::int64_t>(kMiB));
}

// ---- In the engine.

// Knows one record and counts how often it is asked. Fails with `*failure`
// where that is an error.
class OneRecordStore final : public Store {
 public:
  explicit OneRecordStore(int& asked, const absl::Status* failure = nullptr)
      : asked_(asked), failure_(failure) {}

  std::vector<ClaimAnswer> ClaimBatch(Batch<ClaimCommand> claims) override {
    asked_ += static_cast<int>(claims.size());
    std::vector<ClaimAnswer> answers;
    if (failure_ != nullptr && !failure_->ok()) {
      answers.resize(claims.size(), {.outcome = *failure_});
      return answers;
    }
    const Record record = Final(absl::Hours(1));
    for (const ClaimCommand* claim : claims) {
      answers.push_back({.outcome = DecideClaim(&record, *claim, Now()).answer,
                         .observed = Observed{record, Now()}});
    }
    return answers;
  }
  std::vector<absl::StatusOr<FinalizeOutcome>> FinalizeBatch(
      Batch<FinalizeCommand> items) override {
    return std::vector<absl::StatusOr<FinalizeOutcome>>(items.size(),
                                                        FinalizeOutcome());
  }
  std::vector<absl::StatusOr<LookupOutcome>> LookupBatch(
      Batch<LookupCommand> items) override {
    return std::vector<absl::StatusOr<LookupOutcome>>(items.size());
  }
  std::vector<absl::StatusOr<ReleaseOutcome>> ReleaseBatch(
      Batch<ReleaseCommand> items) override {
    return std::vector<absl::StatusOr<ReleaseOutcome>>(items.size());
  }
  absl::StatusOr<std::vector<bool>> FindChanged(
      Batch<Watched> watched) override {
    return std::vector<bool>(watched.size());
  }
  absl::StatusOr<FleetRules> ReadRules() override { return FleetRules(); }

 private:
  int& asked_;
  const absl::Status* const failure_;
};

TEST_F(ReplayCacheTest, IsEmptiedWhenTheDatabaseAnswersAgainNotBefore) {
  int asked = 0;
  absl::Status failure;
  const std::unique_ptr<Store> store = KeepingReplays(
      std::make_unique<OneRecordStore>(asked, &failure), cache_, clock_);
  const auto claim = [&](int key) {
    const ClaimCommand command = Asking(IdOf(key));
    const std::vector<const ClaimCommand*> batch = {&command};
    store->ClaimBatch(batch);
  };
  claim(1);
  claim(2);
  EXPECT_TRUE(Has(cache_, IdOf(1)));
  for (const absl::Status& away :
       {absl::UnavailableError("away"), absl::UnknownError("cut")}) {
    failure = away;
    claim(2);
    EXPECT_TRUE(Has(cache_, IdOf(1)));
    failure = absl::OkStatus();
    claim(2);
    EXPECT_FALSE(Has(cache_, IdOf(1)));
    EXPECT_TRUE(Has(cache_, IdOf(2)));
    claim(1);
    EXPECT_TRUE(Has(cache_, IdOf(1)));
  }
  // Nobody was away.
  failure = absl::AbortedError("locked");
  claim(2);
  failure = absl::OkStatus();
  claim(2);
  EXPECT_TRUE(Has(cache_, IdOf(1)));
}

TEST(EngineReplayTest, AnswersFromMemoryInSubmitUntilItDrains) {
  ManualClock clock;
  FleetRulesCache rules;
  FleetRules known;
  known.policies["default"] = FoundPolicy(OnAbandoned::kTakeOver);
  rules.Set(known);
  Metrics metrics;
  MemoryLog log;
  int asked = 0;
  std::vector<std::unique_ptr<Store>> stores;
  stores.push_back(std::make_unique<OneRecordStore>(asked));
  Engine engine({}, clock, rules, metrics, log, std::move(stores),
                std::make_unique<OneRecordStore>(asked), kMiB);
  std::vector<absl::StatusOr<ClaimOutcome>> answers;
  const auto submit = [&](bool same_hash) {
    engine.Submit(Asking(IdOf(1), same_hash), {},
                  [&](absl::StatusOr<ClaimOutcome> outcome) {
                    answers.push_back(std::move(outcome));
                  });
  };
  // A mismatch is not what fills the cache.
  submit(false);
  engine.lanes().front()->RunBatch();
  submit(true);
  EXPECT_EQ(answers.size(), 1u);
  // In one statement with a finalize.
  engine.Submit(FinalizeCommand{.id = IdOf(2)}, {},
                [](absl::StatusOr<FinalizeOutcome>) {});
  engine.lanes().front()->RunBatch();
  EXPECT_EQ(asked, 2);
  submit(true);
  submit(false);
  ASSERT_EQ(answers.size(), 4u);
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(*answers[2], *answers[1]);
  EXPECT_EQ(*answers[3], *answers[0]);
  engine.ForgetReplays();
  submit(true);
  EXPECT_EQ(answers.size(), 4u);
  engine.lanes().front()->RunBatch();
  ASSERT_EQ(answers.size(), 5u);
  EXPECT_EQ(asked, 3);
  engine.StopAccepting();
  submit(true);
  ASSERT_EQ(answers.size(), 6u);
  EXPECT_EQ(ReasonOf(answers[5].status()), Reason::kDraining);
}

}  // namespace
}  // namespace idempotency
