// What goes into the next message of a stream, and what is overdue.
#include "client/bulk_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

namespace idempotency::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr std::size_t kSmall = 100;

class Command final : public BulkCommand {
 public:
  explicit Command(bool urgent = false) : urgent_(urgent) {}

  bool urgent() const override { return urgent_; }
  void Lend(v1::Command&) override {}
  void OnResult(v1::Result&) override {}
  void OnFailure(const absl::Status&, bool) override {}
  void OnSendAgain(const absl::Status&, bool) override {}

 private:
  const bool urgent_;
};

class BulkQueueTest : public testing::Test {
 protected:
  std::shared_ptr<BulkCommand> Add(std::size_t bytes = kSmall,
                                   milliseconds timeout = seconds(10)) {
    auto command = std::make_shared<Command>();
    queue_.Add(command, bytes, now_ + timeout);
    return command;
  }
  std::shared_ptr<BulkCommand> AddUrgent(std::size_t bytes = kSmall) {
    auto command = std::make_shared<Command>(true);
    queue_.Add(command, bytes, now_ + seconds(10));
    return command;
  }
  void AddMany(std::size_t count, std::size_t bytes = kSmall) {
    for (std::size_t i = 0; i < count; ++i) Add(bytes);
  }
  std::vector<std::size_t> MessageSizes() {
    std::vector<std::size_t> sizes;
    for (;;) {
      const std::size_t size = queue_.TakeMessage(now_).size();
      if (size == 0) return sizes;
      sizes.push_back(size);
    }
  }

  BulkQueue queue_;
  BulkQueue::TimePoint now_{seconds(1000)};
};

TEST_F(BulkQueueTest, AMessageHoldsWhatWaitsInOrderAndWhatIsLeftOfItsTime) {
  const auto first = Add(kSmall, seconds(5));
  const auto second = Add(kSmall, seconds(3));
  now_ += seconds(1);
  const auto message = queue_.TakeMessage(now_);
  ASSERT_THAT(message, SizeIs(2));
  EXPECT_EQ(message[0].command, first);
  EXPECT_EQ(message[1].command, second);
  EXPECT_NE(message[0].id, message[1].id);
  EXPECT_EQ(message[0].timeout, seconds(4));
  EXPECT_EQ(message[1].timeout, seconds(2));
  EXPECT_THAT(queue_.TakeMessage(now_), IsEmpty());
}

TEST_F(BulkQueueTest, WhatIsUrgentGoesFirstAndTheRestFollowsInOrder) {
  const auto first = Add();
  const auto second = Add();
  const auto urgent = AddUrgent();
  const auto also_urgent = AddUrgent();
  EXPECT_EQ(queue_.waiting(), 4u);
  const auto message = queue_.TakeMessage(now_);
  ASSERT_THAT(message, SizeIs(4));
  EXPECT_EQ(message[0].command, urgent);
  EXPECT_EQ(message[1].command, also_urgent);
  EXPECT_EQ(message[2].command, first);
  EXPECT_EQ(message[3].command, second);
}

TEST_F(BulkQueueTest, WhatIsUrgentOvertakesNewWorkThatFillsMessages) {
  AddMany(3 * kBulkCommandsMax);
  queue_.TakeMessage(now_);
  const auto urgent = AddUrgent();
  const auto message = queue_.TakeMessage(now_);
  ASSERT_THAT(message, SizeIs(kBulkCommandsMax));
  EXPECT_EQ(message.front().command, urgent);
}

TEST_F(BulkQueueTest, NothingOvertakesUrgentWorkThatFillsAMessage) {
  for (int i = 0; i < 5; ++i) AddUrgent(kBulkRequestBytesMax);
  const auto small = Add();
  EXPECT_THAT(queue_.TakeMessage(now_), SizeIs(3));
  const auto message = queue_.TakeMessage(now_);
  ASSERT_THAT(message, SizeIs(3));
  EXPECT_EQ(message.back().command, small);
}

TEST_F(BulkQueueTest, AMessageHoldsAtMostWhatTheContractAllows) {
  AddMany(2 * kBulkCommandsMax + 1);
  EXPECT_THAT(MessageSizes(),
              ElementsAre(kBulkCommandsMax, kBulkCommandsMax, 1));
}

TEST_F(BulkQueueTest, LongRequestsFillAMessageBeforeTheCountDoes) {
  AddMany(9, kBulkRequestBytesMax);
  // Four of them are a mebibyte, without what is around them.
  EXPECT_THAT(MessageSizes(), ElementsAre(3, 3, 3));
}

TEST_F(BulkQueueTest, ARequestAboveTheBoundIsAMessageOfItsOwn) {
  Add();
  Add(2 * kBulkBytesMax);
  Add();
  EXPECT_THAT(MessageSizes(), ElementsAre(1, 1, 1));
}

TEST_F(BulkQueueTest, ItIsFullAtItsBoundUntilOneEnds) {
  AddMany(kBulkInFlightMax - 1);
  EXPECT_FALSE(queue_.full());
  Add();
  EXPECT_TRUE(queue_.full());
  const auto id = queue_.TakeMessage(now_).front().id;
  EXPECT_TRUE(queue_.full());
  EXPECT_NE(queue_.TakeAnswered(id), nullptr);
  EXPECT_FALSE(queue_.full());
}

TEST_F(BulkQueueTest, ACommandIsAnsweredOnceAndAnUnknownIdIsNobodys) {
  const auto command = Add();
  const auto id = queue_.TakeMessage(now_).front().id;
  EXPECT_EQ(queue_.TakeAnswered(id + 1), nullptr);
  EXPECT_EQ(queue_.TakeAnswered(id), command);
  EXPECT_EQ(queue_.TakeAnswered(id), nullptr);
  EXPECT_TRUE(queue_.empty());
}

TEST_F(BulkQueueTest, WhatIsOverdueIsTakenAndNeverSentLater) {
  EXPECT_FALSE(queue_.due_at().has_value());
  const auto sent = Add(kSmall, seconds(5));
  queue_.TakeMessage(now_);
  const auto unsent = Add(kSmall, seconds(3));
  const auto later = Add(kSmall, seconds(20));
  EXPECT_EQ(queue_.due_at(), now_ + seconds(3));

  now_ += seconds(5);
  // Its time is over, though nobody has looked yet.
  ASSERT_THAT(queue_.TakeMessage(now_), SizeIs(1));
  const auto due = queue_.TakeDue(now_);

  ASSERT_THAT(due, SizeIs(2));
  for (const auto& each : due) {
    EXPECT_TRUE(each.command == sent || each.command == unsent);
    EXPECT_EQ(each.sent, each.command == sent);
    EXPECT_FALSE(each.cancelled);
  }
  EXPECT_FALSE(queue_.empty());
  EXPECT_THAT(queue_.TakeDue(now_ + seconds(15)), SizeIs(1));
  EXPECT_TRUE(queue_.empty());
}

TEST_F(BulkQueueTest, CancellingMakesAllDueAtOnceAndWritesNoMore) {
  Add();
  queue_.TakeMessage(now_);
  Add();
  queue_.CancelAll();
  ASSERT_TRUE(queue_.due_at().has_value());
  EXPECT_LE(*queue_.due_at(), now_);
  EXPECT_THAT(queue_.TakeMessage(now_), IsEmpty());
  const auto due = queue_.TakeDue(now_);
  ASSERT_THAT(due, SizeIs(2));
  for (const auto& each : due) EXPECT_TRUE(each.cancelled);
  EXPECT_FALSE(queue_.stands_still());
}

TEST_F(BulkQueueTest, ItStandsStillWhenNothingComesForASecondAfterADeadline) {
  Add(kSmall, seconds(2));
  queue_.TakeMessage(now_);
  now_ += seconds(2);
  EXPECT_THAT(queue_.TakeDue(now_), SizeIs(1));
  EXPECT_FALSE(queue_.stands_still());
  EXPECT_EQ(queue_.due_at(), now_ + kBulkSilence);
  queue_.TakeDue(now_ + kBulkSilence);
  EXPECT_TRUE(queue_.stands_still());
  EXPECT_FALSE(queue_.due_at().has_value());
  EXPECT_FALSE(queue_.ever_answered());
}

TEST_F(BulkQueueTest, ALateAnswerShowsThatItDoesNotStandStill) {
  Add(kSmall, seconds(2));
  const auto id = queue_.TakeMessage(now_).front().id;
  now_ += seconds(2);
  EXPECT_THAT(queue_.TakeDue(now_), SizeIs(1));
  EXPECT_EQ(queue_.TakeAnswered(id), nullptr);
  queue_.TakeDue(now_ + kBulkSilence);
  EXPECT_FALSE(queue_.stands_still());
  EXPECT_TRUE(queue_.ever_answered());
}

TEST_F(BulkQueueTest, WhatWasNeverSentSaysNothingAboutTheStream) {
  Add(kSmall, seconds(2));
  EXPECT_THAT(queue_.TakeDue(now_ + seconds(2)), SizeIs(1));
  EXPECT_FALSE(queue_.due_at().has_value());
  queue_.TakeDue(now_ + seconds(2) + kBulkSilence);
  EXPECT_FALSE(queue_.stands_still());
}

TEST_F(BulkQueueTest, AtTheEndAllThatIsLeftIsHandedOver) {
  Add();
  queue_.TakeMessage(now_);
  Add();
  const auto all = queue_.TakeAll();
  ASSERT_THAT(all, SizeIs(2));
  EXPECT_NE(all[0].sent, all[1].sent);
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(queue_.waiting(), 0u);
  EXPECT_FALSE(queue_.due_at().has_value());
}

}  // namespace
}  // namespace idempotency::internal
