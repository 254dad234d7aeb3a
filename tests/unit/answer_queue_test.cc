// Answers that another thread gives: order, bound, end, and a lane's use of it.
#include "server/core/answer_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/lane_fixture.h"

namespace idempotency {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class AnswerQueueTest : public ::testing::Test {
 protected:
  bool Offer(int number) {
    GiveAnswers give = [this, number] { given_.push_back(number); };
    const bool taken = queue_.Offer(give);
    // What was not taken is still the caller's.
    EXPECT_EQ(give == nullptr, taken);
    return taken;
  }

  AnswerQueue queue_;
  std::vector<int> given_;
};

TEST_F(AnswerQueueTest, AnswersAreGivenInTheOrderOfTheirOffer) {
  EXPECT_TRUE(queue_.idle());
  ASSERT_TRUE(Offer(1));
  ASSERT_TRUE(Offer(2));
  EXPECT_FALSE(queue_.idle());
  EXPECT_TRUE(queue_.Run());
  EXPECT_TRUE(queue_.Run());
  EXPECT_THAT(given_, ElementsAre(1, 2));
  EXPECT_TRUE(queue_.idle());
}

TEST_F(AnswerQueueTest, ALaneThatIsFarAheadGivesItsAnswersItself) {
  int taken = 0;
  while (taken < 100 && Offer(taken)) ++taken;
  EXPECT_GT(taken, 0);
  EXPECT_LT(taken, 100);
  EXPECT_TRUE(queue_.Run());
  EXPECT_TRUE(Offer(taken));
}

TEST_F(AnswerQueueTest, TheEndComesAfterWhatIsLeft) {
  ASSERT_TRUE(Offer(1));
  queue_.Stop();
  EXPECT_FALSE(Offer(2));
  EXPECT_TRUE(queue_.Run());
  EXPECT_THAT(given_, ElementsAre(1));
  EXPECT_FALSE(queue_.Run());
}

TEST_F(AnswerQueueTest, AThreadThatWaitsIsWokenByAnOfferAndByTheEnd) {
  std::thread thread([this] {
    while (queue_.Run()) {
    }
  });
  int offered = 0;
  while (offered < 1000) offered += Offer(offered) ? 1 : 0;
  queue_.Stop();
  thread.join();
  EXPECT_THAT(given_, SizeIs(1000));
}

class LaneWithAnswerQueueTest : public LaneTest {
 protected:
  LaneWithAnswerQueueTest() { options_.answers = &queue_; }

  void ClaimKeys(int count) {
    for (int i = 0; i < count; ++i) {
      const std::string key(1, static_cast<char>('a' + i));
      Claim(key, {.key = key});
    }
  }

  AnswerQueue queue_;
};

TEST_F(LaneWithAnswerQueueTest, AFewAnswersAreGivenAtOnce) {
  ClaimKeys(2);
  lane().RunBatch();
  EXPECT_THAT(answers_, SizeIs(2));
  EXPECT_TRUE(queue_.idle());
}

TEST_F(LaneWithAnswerQueueTest, ManyAreLeftToTheQueue) {
  ClaimKeys(20);
  lane().RunBatch();
  EXPECT_THAT(answers_, IsEmpty());
  EXPECT_TRUE(queue_.Run());
  EXPECT_THAT(answers_, SizeIs(20));
  EXPECT_EQ(answers_.front(),
            (std::pair<std::string, std::string>("a", "Claimed")));
}

TEST_F(LaneWithAnswerQueueTest, NoneIsLostWhenTheQueueIsFull) {
  for (int i = 0; i < 10; ++i) {
    ClaimKeys(20);
    lane().RunBatch();
    clock_.Advance(limits::kCrowdPause);
  }
  queue_.Stop();
  while (queue_.Run()) {
  }
  EXPECT_THAT(answers_, SizeIs(200));
}

}  // namespace
}  // namespace idempotency
