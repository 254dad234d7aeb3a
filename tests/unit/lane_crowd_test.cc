// Keys that very many ask for at once: their crowd goes to the store together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <utility>

#include "server/core/recorded_bytes.h"
#include "tests/unit/lane_fixture.h"
#include "tests/unit/waiting_fixture.h"

namespace idempotency {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::SizeIs;

class CrowdTest : public LaneTest {
 protected:
  void LetCrowdAsk(const std::string& key) {
    for (std::size_t i = 0; i <= limits::kCrowd; ++i) {
      Claim("crowd", {.key = key});
    }
  }
};

TEST_F(CrowdTest, GoesIntoTheNextRoundAfterAPause) {
  LetCrowdAsk("a");
  lane().RunBatch();
  Claim("late", {.key = "a"});
  Claim("other", {.key = "b"});
  lane().RunBatch();
  EXPECT_THAT(script_.batches, ElementsAre(ElementsAre("a"), ElementsAre("b")))
      << "nobody else is held up";
  EXPECT_EQ(lane().queued(), 1u);
  EXPECT_EQ(lane().next_work(), clock_.Now() + limits::kCrowdPause);
  clock_.Advance(limits::kCrowdPause);
  lane().RunBatch();
  EXPECT_EQ(answers_.back().first, "late");
  EXPECT_TRUE(lane().idle());
}

TEST_F(CrowdTest, DoesNotHoldTheOwnersEndUp) {
  LetCrowdAsk("a");
  lane().RunBatch();
  Finalize("end", {.key = "a"});
  lane().RunBatch();
  EXPECT_THAT(answers_.back(), ::testing::Pair("end", "Recorded"));
  LetCrowdAsk("a");
  lane().RunBatch();
  Claim("late", {.key = "a"});
  Finalize("end", {.key = "a"});
  for (int i = 0; i < 2; ++i) lane().RunBatch();
  EXPECT_THAT(answers_.back(), ::testing::Pair("end", "Recorded"));
}

TEST_F(CrowdTest, FewDoNotMakeAPause) {
  for (std::size_t i = 0; i < limits::kCrowd; ++i) Claim("few", {.key = "a"});
  lane().RunBatch();
  Claim("late", {.key = "a"});
  lane().RunBatch();
  EXPECT_THAT(script_.batches, SizeIs(2));
}

TEST_F(CrowdTest, ThatComesOneByOneMakesAPauseToo) {
  for (int i = 0; i < limits::kCrowdRounds; ++i) {
    Claim("one by one", {.key = "a"});
    lane().RunBatch();
  }
  EXPECT_THAT(script_.batches, SizeIs(limits::kCrowdRounds));
  Claim("late", {.key = "a"});
  lane().RunBatch();
  EXPECT_THAT(script_.batches, SizeIs(limits::kCrowdRounds));
  EXPECT_EQ(lane().next_work(), clock_.Now() + limits::kCrowdPause);
}

TEST_F(CrowdTest, IsNotMadeOfClaimsThatAreFarApart) {
  for (int i = 0; i < 3 * limits::kCrowdRounds; ++i) {
    Claim("now and then", {.key = "a"});
    lane().RunBatch();
    clock_.Advance(limits::kCrowdPause / (limits::kCrowdRounds - 2));
  }
  EXPECT_THAT(script_.batches, SizeIs(3 * limits::kCrowdRounds));
}

TEST_F(CrowdTest, IsNotMadeOfRenewalsAndHoldsNoneUp) {
  for (int i = 0; i < 3 * limits::kCrowdRounds; ++i) {
    Claim("renewal", {.key = "a", .renew_fencing_token = 7});
    lane().RunBatch();
  }
  EXPECT_THAT(script_.batches, SizeIs(3 * limits::kCrowdRounds));
  LetCrowdAsk("a");
  lane().RunBatch();
  Claim("late", {.key = "a"});
  Claim("renewal", {.key = "a", .renew_fencing_token = 7});
  lane().RunBatch();
  EXPECT_EQ(answers_.back().first, "renewal");
}

TEST_F(CrowdTest, IsForgottenAfterThePause) {
  LetCrowdAsk("a");
  lane().RunBatch();
  clock_.Advance(limits::kCrowdPause);
  Claim("late", {.key = "a"});
  lane().RunBatch();
  Claim("later", {.key = "a"});
  lane().RunBatch();
  EXPECT_THAT(script_.batches, SizeIs(3));
}

TEST_F(CrowdTest, KeepsItsPauseUnderAStop) {
  LetCrowdAsk("a");
  lane().RunBatch();
  Claim("late", {.key = "a"});
  lane().Stop();
  lane().RunBatch();
  EXPECT_THAT(answers_.back(), ::testing::Pair("late", "DRAINING"));
}

TEST_F(CrowdTest, OfARecordThatCantBeReadIsToldSoTogether) {
  script_.failure = [](const Keys&, const std::string&) {
    return MakeError(Reason::kRecordCorrupt, "the record can't be read");
  };
  LetCrowdAsk("a");
  lane().RunBatch();
  EXPECT_TRUE(lane().idle());
  EXPECT_THAT(script_.batches, SizeIs(1));
  EXPECT_THAT(answers_, SizeIs(limits::kCrowd + 1));
  EXPECT_THAT(answers_, Each(::testing::Pair("crowd", "RECORD_CORRUPT")));
}

using CrowdStatementsTest = WaitingTest;

// Ten thousand within a third of a second, as fast as a server takes them in.
TEST_F(CrowdStatementsTest, TenThousandClaimsOfAKeyCostFewStatements) {
  constexpr int kClaims = 10'000;
  for (int i = 0; i < kClaims; ++i) {
    Claim(0, std::to_string(i), {.token = i + 1});
    if (i % 33 == 0) Pass(milliseconds(1));
  }
  Pass(milliseconds(20));
  EXPECT_EQ(OutcomeOf("0"), "Claimed");
  for (int i = 1; i < kClaims; ++i) {
    ASSERT_EQ(OutcomeOf(std::to_string(i)), "InProgress") << i;
  }
  EXPECT_LE(Sent(MemoryStatement::kInsertNew), 3) << "the rest reads at once";
  EXPECT_LE(Sent(MemoryStatement::kRead), 40);
}

TEST_F(CrowdStatementsTest, WaitersThatComeOneByOneBecomeACrowdToo) {
  constexpr int kWaiters = 1'000;
  Claim(0, "owner", {});
  RunLanes();
  for (int i = 0; i < kWaiters; ++i) {
    Claim(0, std::to_string(i), {.token = i + 2, .wait = seconds(60)});
    Pass(milliseconds(1));
  }
  Pass(limits::kCrowdPause);
  EXPECT_EQ(waiting(), static_cast<std::size_t>(kWaiters));
  EXPECT_LE(Sent(MemoryStatement::kRead), 150);
  Finalize(0);
  RunLanes();
  EXPECT_EQ(OutcomeOf("0"), "Replay") << "woken without a pause";
}

TEST_F(CrowdStatementsTest, LookupsThatAreQueuedTogetherShareOneRead) {
  Claim(0, "owner", {});
  RunLanes();
  const int reads = Sent(MemoryStatement::kRead);
  for (int i = 0; i < 1'000; ++i) Lookup(0, std::to_string(i));
  Claim(0, "other", {.token = 2});
  Lookup(0, "behind a claim");
  RunLanes();
  for (int i = 0; i < 1'000; ++i) {
    ASSERT_EQ(OutcomeOf(std::to_string(i)), "found");
  }
  EXPECT_EQ(OutcomeOf("behind a claim"), "found");
  EXPECT_EQ(Sent(MemoryStatement::kRead), reads + 3);
}

TEST_F(CrowdStatementsTest, ACrowdOfAKeyThatHasGoneIsGrantedToOne) {
  for (int i = 0; i < 40; ++i) {
    Claim(0, std::to_string(i), {.token = i + 1, .lease = absl::Seconds(1)});
  }
  RunLanes();
  // Expired and swept before the next of them.
  PassOnly(std::chrono::hours(48));
  EXPECT_TRUE(MemorySweeper(database_).SweepRecords(10).ok());
  for (int i = 100; i < 140; ++i) Claim(0, std::to_string(i), {.token = i});
  RunLanes();
  EXPECT_EQ(OutcomeOf("100"), "Claimed");
  EXPECT_EQ(OutcomeOf("139"), "InProgress");
}

// Every caller's answer is a copy of the response. Nobody takes any from the
// queue here, so that it fills up.
class CrowdAnswersTest : public WaitingTest {
 protected:
  static constexpr std::size_t kCallers = 400;
  static constexpr std::size_t kBodyBytes = 100 * limits::kKiB;
  // As many answers may lie in the queue, in four batches.
  static constexpr std::size_t kKeptMax =
      4 * (limits::kAnswersBytesMax / kBodyBytes + 1);
  static_assert(2 * kKeptMax < kCallers);

  CrowdAnswersTest() { options_.answers = &queue_; }

  template <typename Command>
  void Ask(Command command, bool waits = false) {
    CallContext context;
    if (waits) context.wait_until = clock_.Now() + seconds(60);
    At(0).engine->Submit(std::move(command), std::move(context),
                         [this](auto outcome) {
                           EXPECT_TRUE(outcome.ok());
                           if (outcome.ok()) bytes_ += RecordedBytes(*outcome);
                         });
  }
  void Finalize() {
    FinalizeCommand end{.id = {"scope", "key"}, .claim_token = Token(1)};
    end.response = {.status_code = 200, .body = std::string(kBodyBytes, 'b')};
    end.response_digest = "digest";
    Ask(std::move(end));
    RunLanes();
  }
  void ExpectAlmostAllIsGivenAtOnce() {
    EXPECT_GE(bytes_, (kCallers - kKeptMax) * kBodyBytes);
    queue_.Stop();
    while (queue_.Run()) {
    }
    EXPECT_EQ(bytes_, kCallers * kBodyBytes);
  }

  AnswerQueue queue_;
  std::size_t bytes_ = 0;  // of the responses that were given
};

TEST_F(CrowdAnswersTest, OfALongResponseAreNotAllMadeBeforeTheFirstIsGiven) {
  Claim(0, "owner", {});
  RunLanes();
  for (std::size_t i = 0; i < kCallers; ++i) {
    Ask(ClaimCommand{.id = {"scope", "key"},
                     .request_hash = "the request",
                     .claim_token = Token(static_cast<int>(i) + 2)},
        true);
  }
  RunLanes();
  ASSERT_EQ(waiting(), kCallers);
  Finalize();
  ExpectAlmostAllIsGivenAtOnce();
}

TEST_F(CrowdAnswersTest, OfLookupsAreNotAllMadeBeforeTheFirstIsGiven) {
  Claim(0, "owner", {});
  RunLanes();
  Finalize();
  for (std::size_t i = 0; i < kCallers; ++i) {
    Ask(LookupCommand{.id = {"scope", "key"}});
  }
  RunLanes();
  ExpectAlmostAllIsGivenAtOnce();
}

}  // namespace
}  // namespace idempotency
