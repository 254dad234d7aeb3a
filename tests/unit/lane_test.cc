// The lane as a step function over a store that the test scripts: which calls
// reach it, in what batches, and what becomes of each answer.
#include "server/core/lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/core/engine.h"
#include "server/core/errors.h"
#include "server/core/transitions.h"
#include "tests/support/manual_clock.h"
#include "tests/support/memory_log.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Keys = std::vector<std::string>;

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

// Grants every claim, unless the test says what to answer.
class ScriptedStore final : public Store {
 public:
  struct Script {
    // The keys of every batch, in order of arrival.
    std::vector<Keys> batches;
    // Null: grant.
    std::function<absl::Status(const Keys& batch, const std::string& key)>
        failure;
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
  absl::StatusOr<FleetRules> ReadRules() override {
    ++script_.rules_read;
    return script_.rules;
  }

 private:
  template <typename Command>
  Keys Arrived(Batch<Command> batch) {
    Keys keys;
    for (const Command* command : batch) keys.push_back(command->id.key);
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

Policy PolicyNamed(const std::string& name) {
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
          LaneOptions{.batch_items_max = 1}, clock_, rules_, metrics_, log_,
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
    std::size_t bytes = 100;
    std::function<bool()> cancelled{};
  };

  // Submits a claim; its answer appears in answers_ under `name`.
  void Claim(const std::string& name, const Asked& asked) {
    ClaimCommand command{.id = {"scope", asked.key},
                         .request_hash = "hash",
                         .policy_name = asked.policy};
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

absl::Status Never(const Keys&, const std::string&) { return absl::OkStatus(); }

TEST_F(LaneTest, WhatWasQueuedGoesInOneBatchSortedByKey) {
  Claim("1", {.key = "b"});
  Claim("2", {.key = "c"});
  Claim("3", {.key = "a"});
  lane().RunBatch();
  EXPECT_THAT(script_.batches, ElementsAre(ElementsAre("a", "b", "c")));
  EXPECT_THAT(answers_,
              ElementsAre(std::pair("3", "Claimed"), std::pair("1", "Claimed"),
                          std::pair("2", "Claimed")));
  EXPECT_TRUE(lane().idle());
}

TEST_F(LaneTest, WhatArrivesWhileTheStoreWorksIsTheNextBatch) {
  script_.while_working = [this] {
    script_.while_working = nullptr;
    Claim("2", {.key = "b"});
    Claim("3", {.key = "c"});
  };
  Claim("1", {.key = "a"});
  lane().RunBatch();
  lane().RunBatch();
  EXPECT_THAT(script_.batches,
              ElementsAre(ElementsAre("a"), ElementsAre("b", "c")));
}

TEST_F(LaneTest, ABatchHasABoundInItems) {
  options_.batch_items_max = 2;
  for (const char* key : {"a", "b", "c"}) Claim(key, {.key = key});
  lane().RunBatch();
  lane().RunBatch();
  EXPECT_THAT(script_.batches,
              ElementsAre(ElementsAre("a", "b"), ElementsAre("c")));
}

TEST_F(LaneTest, ABatchHasABoundInBytesButACallThatExceedsItGoesByItself) {
  options_.batch_bytes_max = 250;
  Claim("1", {.key = "a", .bytes = 1000});
  Claim("2", {.key = "b"});
  Claim("3", {.key = "c"});
  Claim("4", {.key = "d"});
  lane().RunBatch();
  lane().RunBatch();
  lane().RunBatch();
  EXPECT_THAT(
      script_.batches,
      ElementsAre(ElementsAre("a"), ElementsAre("b", "c"), ElementsAre("d")));
}

TEST_F(LaneTest, FollowersOfAKeyAreAnsweredFromTheirLeadersOutcome) {
  Claim("leader", {.key = "a"});
  Claim("follower", {.key = "a"});
  Claim("another", {.key = "a"});
  lane().RunBatch();
  EXPECT_THAT(script_.batches, ElementsAre(ElementsAre("a")));
  EXPECT_THAT(answers_, ElementsAre(std::pair("leader", "Claimed"),
                                    std::pair("follower", "InProgress"),
                                    std::pair("another", "InProgress")));
  EXPECT_EQ(metrics_.followers_answered, 2u);
}

TEST_F(LaneTest, WhoAsksAfterTheStatementWasSentIsNotAnsweredFromIt) {
  script_.while_working = [this] {
    script_.while_working = nullptr;
    Claim("late", {.key = "a"});
  };
  Claim("leader", {.key = "a"});
  lane().RunBatch();
  EXPECT_THAT(answers_, ElementsAre(std::pair("leader", "Claimed")));
  lane().RunBatch();
  EXPECT_THAT(script_.batches, SizeIs(2));
}

TEST_F(LaneTest, CallsOfOneKeyKeepTheirOrder) {
  Claim("claim", {.key = "a"});
  Finalize("finalize", {.key = "a"});
  Claim("claim again", {.key = "a"});
  for (int i = 0; i < 3; ++i) lane().RunBatch();
  EXPECT_THAT(answers_, ElementsAre(std::pair("claim", "Claimed"),
                                    std::pair("finalize", "Recorded"),
                                    std::pair("claim again", "Claimed")));
}

TEST_F(LaneTest, ACallWhoseDeadlinePassedInTheQueueNeverReachesTheStore) {
  Claim("late", {.key = "a", .timeout = milliseconds(100)});
  Claim("in time", {.key = "b"});
  clock_.Advance(milliseconds(100));
  lane().RunBatch();
  EXPECT_THAT(script_.batches, ElementsAre(ElementsAre("b")));
  EXPECT_THAT(answers_, ElementsAre(std::pair("late", "DEADLINE_EXCEEDED"),
                                    std::pair("in time", "Claimed")));
}

TEST_F(LaneTest, ACallWhoseCallerHasGoneNeverReachesTheStore) {
  Claim("gone", {.key = "a", .cancelled = [] { return true; }});
  Claim("follower of the gone one", {.key = "a"});
  lane().RunBatch();
  EXPECT_THAT(script_.batches, ElementsAre(ElementsAre("a")));
  EXPECT_THAT(answers_,
              ElementsAre(std::pair("gone", "CANCELLED: the caller has gone"),
                          std::pair("follower of the gone one", "Claimed")));
}

TEST_F(LaneTest, OneCallsFaultIsNotItsNeighbours) {
  script_.failure = [](const Keys& batch, const std::string&) {
    for (const std::string& key : batch) {
      if (key == "poison") return absl::InternalError("SQLSTATE 22021");
    }
    return absl::OkStatus();
  };
  Claim("1", {.key = "a"});
  Claim("2", {.key = "poison"});
  Claim("3", {.key = "z"});
  lane().RunBatch();
  EXPECT_THAT(answers_,
              ElementsAre(std::pair("1", "Claimed"), std::pair("2", "INTERNAL"),
                          std::pair("3", "Claimed")));
  EXPECT_THAT(script_.batches,
              ElementsAre(SizeIs(3), SizeIs(1), SizeIs(1), SizeIs(1)));
  EXPECT_THAT(log_.lines(), SizeIs(1));
}

TEST_F(LaneTest, AnswersOfAnotherNumberAreGivenToNobody) {
  script_.answers_too_many = 1;
  Claim("1", {.key = "a"});
  Claim("2", {.key = "b"});
  lane().RunBatch();
  EXPECT_THAT(answers_, ElementsAre(std::pair("1", "INTERNAL"),
                                    std::pair("2", "INTERNAL")));
}

TEST_F(LaneTest, ALostAnswerIsAskedForAgainByTheSameCall) {
  script_.failure = [](const Keys&, const std::string&) {
    return absl::UnknownError("connection lost");
  };
  Claim("1", {.key = "a"});
  lane().RunBatch();
  EXPECT_THAT(answers_, IsEmpty());
  script_.failure = Never;
  lane().RunBatch();
  EXPECT_THAT(script_.batches, SizeIs(1)) << "the pause is kept";
  clock_.Advance(options_.backoff_min);
  lane().RunBatch();
  EXPECT_THAT(answers_, ElementsAre(std::pair("1", "Claimed")));
}

TEST_F(LaneTest, ALostAnswerStaysUnknownWhateverHappensAfterIt) {
  script_.failure = [](const Keys&, const std::string&) {
    return absl::UnknownError("connection lost");
  };
  Claim("1", {.key = "a", .timeout = seconds(10)});
  lane().RunBatch();
  script_.failure = [](const Keys&, const std::string&) {
    return absl::UnavailableError("connection refused");
  };
  for (int i = 0; i < 200 && answers_.empty(); ++i) {
    clock_.Advance(milliseconds(100));
    lane().RunBatch();
  }
  EXPECT_THAT(answers_, ElementsAre(std::pair("1", "OUTCOME_UNKNOWN")));
  EXPECT_GE(clock_.Now() - SteadyTime(std::chrono::hours(1)),
            seconds(10) - milliseconds(200))
      << "asked again until the deadline";
}

TEST_F(LaneTest, AnAbsentStoreIsReportedAfterThePatienceAndNeverGranted) {
  script_.failure = [](const Keys&, const std::string&) {
    return absl::UnavailableError("connection refused");
  };
  Claim("1", {.key = "a"});
  Finalize("2", {.key = "b"});
  Claim("short", {.key = "c", .timeout = milliseconds(500)});
  const SteadyTime start = clock_.Now();
  for (int i = 0; i < 100 && answers_.size() < 3; ++i) {
    lane().RunBatch();
    clock_.Advance(milliseconds(50));
  }
  EXPECT_THAT(answers_, ::testing::UnorderedElementsAre(
                            std::pair("short", "STORE_UNAVAILABLE"),
                            std::pair("1", "STORE_UNAVAILABLE"),
                            std::pair("2", "STORE_UNAVAILABLE")));
  EXPECT_EQ(answers_.front().first, "short");
  EXPECT_LE(clock_.Now() - start, options_.store_patience + milliseconds(200));
}

TEST_F(LaneTest, AStoreThatComesBackServesWhatWaited) {
  script_.failure = [](const Keys&, const std::string&) {
    return absl::UnavailableError("connection refused");
  };
  Claim("1", {.key = "a"});
  lane().RunBatch();
  script_.failure = Never;
  clock_.Advance(options_.backoff_max);
  lane().RunBatch();
  EXPECT_THAT(answers_, ElementsAre(std::pair("1", "Claimed")));
  EXPECT_THAT(log_.lines(), SizeIs(2)) << "away, and back";
}

TEST_F(LaneTest, ACallThatMeetsALockGoesAsideAndItsNeighboursGoOn) {
  script_.failure = [](const Keys& batch, const std::string&) {
    for (const std::string& key : batch) {
      if (key == "locked") return absl::AbortedError("SQLSTATE 55P03");
    }
    return absl::OkStatus();
  };
  Claim("1", {.key = "a"});
  Claim("2", {.key = "locked"});
  lane().RunBatch();
  EXPECT_THAT(answers_, ElementsAre(std::pair("1", "Claimed")));
  EXPECT_TRUE(lane().idle());
  aside_->RunBatch();
  EXPECT_THAT(answers_, ElementsAre(std::pair("1", "Claimed"),
                                    std::pair("2", "Claimed")));
}

TEST_F(LaneTest, ACallThatMeetsALockUntilItsDeadlineIsNeverGranted) {
  const auto locked = [](const Keys&, const std::string&) {
    return absl::AbortedError("SQLSTATE 55P03");
  };
  script_.failure = locked;
  aside_script_.failure = locked;
  Claim("1", {.key = "a", .timeout = seconds(5)});
  lane().RunBatch();
  for (int i = 0; i < 100 && answers_.empty(); ++i) {
    clock_.Advance(milliseconds(100));
    aside_->RunBatch();
  }
  EXPECT_THAT(answers_, ElementsAre(std::pair("1", "STORE_UNAVAILABLE")));
}

TEST_F(LaneTest, AFullQueueRefusesAtOnce) {
  options_.queue_items_max = 1;
  Claim("1", {.key = "a"});
  Claim("2", {.key = "b"});
  EXPECT_THAT(answers_, ElementsAre(std::pair("2", "OVERLOADED")));
  lane().RunBatch();
}

TEST_F(LaneTest, AQueueHasABoundInBytes) {
  options_.queue_bytes_max = 150;
  Claim("1", {.key = "a"});
  Claim("2", {.key = "b"});
  EXPECT_THAT(answers_, ElementsAre(std::pair("2", "OVERLOADED")));
  lane().RunBatch();
}

TEST_F(LaneTest, ADrainingLaneFinishesWhatItHasAndRefusesTheRest) {
  Claim("1", {.key = "a"});
  lane().StopAccepting();
  Claim("2", {.key = "b"});
  lane().RunBatch();
  EXPECT_THAT(answers_, ElementsAre(std::pair("2", "DRAINING"),
                                    std::pair("1", "Claimed")));
}

TEST_F(LaneTest, AStoppedLaneAnswersWhatIsLeft) {
  Claim("1", {.key = "a"});
  lane().Stop();
  EXPECT_FALSE(lane().WaitForWork());
  lane().RunBatch();
  EXPECT_THAT(answers_, ElementsAre(std::pair("1", "DRAINING")));
  EXPECT_THAT(script_.batches, IsEmpty());
}

TEST_F(LaneTest, AnUnknownPolicyMakesTheLaneReadTheRulesOnceASecond) {
  script_.rules.policies["new"] = PolicyNamed("new");
  Claim("1", {.key = "a", .policy = "new"});
  lane().RunBatch();
  EXPECT_THAT(answers_, ElementsAre(std::pair("1", "Claimed")));
  EXPECT_EQ(script_.rules_read, 1);
  script_.rules.policies["newer"] = PolicyNamed("newer");
  lane().RunBatch();
  EXPECT_EQ(script_.rules_read, 1);
  clock_.Advance(seconds(1));
  Claim("2", {.key = "b", .policy = "newer"});
  Claim("3", {.key = "c", .policy = "never heard of"});
  lane().RunBatch();
  EXPECT_EQ(script_.rules_read, 2);
  EXPECT_THAT(answers_,
              ElementsAre(std::pair("1", "Claimed"), std::pair("2", "Claimed"),
                          std::pair("3", "UNKNOWN_POLICY")));
}

TEST_F(LaneTest, NothingIsGrantedBeforeTheRulesAreKnown) {
  FleetRulesCache unread;
  class NoRules final : public Store {
   public:
    std::vector<ClaimAnswer> ClaimBatch(Batch<ClaimCommand>) override {
      ADD_FAILURE() << "no batch may come";
      return {};
    }
    std::vector<absl::StatusOr<FinalizeOutcome>> FinalizeBatch(
        Batch<FinalizeCommand>) override {
      return {};
    }
    std::vector<absl::StatusOr<LookupOutcome>> LookupBatch(
        Batch<LookupCommand>) override {
      return {};
    }
    std::vector<absl::StatusOr<ReleaseOutcome>> ReleaseBatch(
        Batch<ReleaseCommand>) override {
      return {};
    }
    absl::StatusOr<FleetRules> ReadRules() override {
      return absl::UnavailableError("connection refused");
    }
  };
  lane_ = std::make_unique<Lane>(options_, clock_, unread, metrics_, log_,
                                 std::make_unique<NoRules>(), nullptr);
  Claim("1", {.key = "a"});
  for (int i = 0; i < 100 && answers_.empty(); ++i) {
    lane_->RunBatch();
    clock_.Advance(milliseconds(100));
  }
  EXPECT_THAT(answers_, ElementsAre(std::pair("1", "STORE_UNAVAILABLE")));
}

}  // namespace
}  // namespace idempotency
