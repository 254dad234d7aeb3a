// What a lane makes of a store that fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/lane_fixture.h"

namespace idempotency {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

absl::Status Never(const Keys&, const std::string&) { return absl::OkStatus(); }

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

TEST_F(LaneTest, ARoundThatWaitedInVainSendsNoOtherWrite) {
  script_.failure = [](const Keys&, const std::string&) {
    return absl::UnavailableError("no answer");
  };
  script_.while_working = [this] { clock_.Advance(seconds(1)); };
  Claim("claim", {.key = "a"});
  Submit(LookupCall{LookupCommand{.id = {"scope", "b"}},
                    [](const absl::StatusOr<LookupOutcome>&) {}},
         {.key = "b"});
  Submit(ReleaseCall{ReleaseCommand{.id = {"scope", "c"}},
                     [](const absl::StatusOr<ReleaseOutcome>&) {}},
         {.key = "c"});
  lane().RunBatch();
  EXPECT_THAT(script_.batches, ElementsAre(Keys{"a"}, Keys{"b"}))
      << "the claim, and the lookup";
  EXPECT_EQ(lane().queued(), 3u);
}

TEST_F(LaneTest, AStoreThatCannotWriteIsReadAllTheSame) {
  script_.failure = [](const Keys&, const std::string&) {
    return absl::UnavailableError("SQLSTATE 53100");
  };
  Claim("claim", {.key = "a"});
  Submit(LookupCall{LookupCommand{.id = {"scope", "b"}},
                    [](const absl::StatusOr<LookupOutcome>&) {}},
         {.key = "b"});
  lane().RunBatch();
  EXPECT_THAT(script_.batches, ElementsAre(Keys{"a"}, Keys{"b"}));
}

TEST_F(LaneTest, AStoreThatFailedLongAgoHindersNoShortCall) {
  options_.batch_items_max = 1;
  options_.queue_wait_max = milliseconds(0);
  script_.failure = [](const Keys&, const std::string&) {
    return absl::UnavailableError("connection refused");
  };
  Claim("1", {.key = "a", .timeout = milliseconds(500)});
  lane().RunBatch();
  clock_.Advance(seconds(1));
  lane().RunBatch();
  ASSERT_THAT(answers_, ElementsAre(std::pair("1", "STORE_UNAVAILABLE")));
  script_.failure = Never;
  clock_.Advance(std::chrono::hours(1));
  Claim("2", {.key = "b", .timeout = milliseconds(40)});
  Claim("3", {.key = "c", .timeout = milliseconds(40)});
  lane().RunBatch();
  lane().RunBatch();
  EXPECT_THAT(answers_, Contains(std::pair("2", "Claimed")));
  EXPECT_THAT(answers_, Contains(std::pair("3", "Claimed")));
}

TEST_F(LaneTest, CallsWhoseTimeIsUpAreAnsweredAlsoBehindManyRounds) {
  options_.batch_items_max = 1;
  options_.queue_wait_max = milliseconds(0);
  script_.while_working = [this] { clock_.Advance(seconds(1)); };
  for (int i = 0; i < 5; ++i) {
    Claim("long " + std::to_string(i), {.key = std::to_string(i)});
  }
  Claim("short", {.key = "short", .timeout = milliseconds(500)});
  lane().RunBatch();
  lane().RunBatch();
  EXPECT_THAT(answers_, Contains(std::pair("short", "DEADLINE_EXCEEDED")));
  EXPECT_EQ(lane().queued(), 3u);
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

// Whatever fails the statement of both kinds: a lock, or one bad item.
TEST_F(LaneTest, ABadFinalizeCostsTheClaimsOfItsRoundOneStatementMore) {
  for (const absl::Status& trouble : {absl::AbortedError("SQLSTATE 55P03"),
                                      absl::InternalError("SQLSTATE 22021")}) {
    script_.batches.clear();
    answers_.clear();
    script_.one_statement = true;
    script_.failure = [&](const Keys& batch, const std::string&) {
      for (const std::string& key : batch) {
        if (key == "bad") return trouble;
      }
      return absl::OkStatus();
    };
    for (const char* key : {"a", "b", "c"}) Claim(key, {.key = key});
    Finalize("good", {.key = "good"});
    Finalize("bad", {.key = "bad"});
    lane().RunBatch();
    EXPECT_THAT(script_.batches,
                ElementsAre(SizeIs(5), ElementsAre("a", "b", "c"),
                            ElementsAre("bad", "good"), ElementsAre("bad"),
                            ElementsAre("good")));
    EXPECT_THAT(answers_, Contains(std::pair("good", "Recorded")));
    EXPECT_THAT(answers_,
                Contains(::testing::Pair(::testing::_, "Claimed")).Times(3));
  }
}

TEST_F(LaneTest, WhatFailedTogetherIsNotTriedAgainOnceItsTimeIsUp) {
  script_.one_statement = true;
  script_.failure = [this](const Keys& batch, const std::string&) {
    if (batch.size() < 3) return absl::OkStatus();
    clock_.Advance(milliseconds(400));
    return absl::AbortedError("SQLSTATE 55P03");
  };
  Claim("late", {.key = "a", .timeout = milliseconds(500)});
  Claim("1", {.key = "b"});
  Finalize("2", {.key = "c"});
  lane().RunBatch();
  EXPECT_THAT(script_.batches,
              ElementsAre(SizeIs(3), ElementsAre("b"), ElementsAre("c")));
  EXPECT_THAT(answers_, ElementsAre(std::pair("late", "STORE_UNAVAILABLE"),
                                    std::pair("1", "Claimed"),
                                    std::pair("2", "Recorded")));
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

TEST_F(LaneTest, ACallTriedAloneIsDroppedOnceItsDeadlineHasPassed) {
  script_.failure = [](const Keys& batch, const std::string&) {
    return batch.size() > 1 ? absl::AbortedError("SQLSTATE 55P03")
                            : absl::OkStatus();
  };
  script_.while_working = [this] { clock_.Advance(seconds(1)); };
  Claim("1", {.key = "a", .timeout = milliseconds(500)});
  Claim("2", {.key = "b"});
  lane().RunBatch();
  EXPECT_THAT(script_.batches,
              ElementsAre(ElementsAre("a", "b"), ElementsAre("b")));
  EXPECT_THAT(answers_, ElementsAre(std::pair("1", "STORE_UNAVAILABLE"),
                                    std::pair("2", "Claimed")));
}

TEST_F(LaneTest, AfterAFewLocksTheRestOfARoundIsSetAsideUnseen) {
  script_.failure = [](const Keys&, const std::string&) {
    return absl::AbortedError("SQLSTATE 55P03");
  };
  for (const char* key : {"a", "b", "c", "d"}) Claim(key, {.key = key});
  lane().RunBatch();
  EXPECT_THAT(script_.batches,
              ElementsAre(SizeIs(4), ElementsAre("a"), ElementsAre("b")));
  for (int i = 0; i < 4; ++i) aside_->RunBatch();
  EXPECT_THAT(answers_, SizeIs(4));
}

TEST_F(LaneTest, AFaultAfterALostAnswerDoesNotMakeItKnown) {
  script_.failure = [](const Keys&, const std::string&) {
    return absl::UnknownError("connection lost");
  };
  Claim("1", {.key = "a"});
  lane().RunBatch();
  script_.failure = [](const Keys&, const std::string&) {
    return absl::InternalError("SQLSTATE 42501");
  };
  clock_.Advance(options_.backoff_max);
  lane().RunBatch();
  EXPECT_THAT(answers_, ElementsAre(std::pair("1", "OUTCOME_UNKNOWN")));
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
    absl::StatusOr<std::vector<bool>> FindChanged(Batch<Watched>) override {
      return absl::UnavailableError("connection refused");
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
