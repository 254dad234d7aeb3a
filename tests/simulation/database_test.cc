// What the model of PostgreSQL does where two statements meet, or trouble.
#include "tests/simulation/database.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tests/simulation/backend.h"

namespace idempotency {
namespace {

using Touch = Backend::Touch;

class DatabaseTest : public ::testing::Test, private DatabaseObserver {
 protected:
  DatabaseTest() {
    weather_.calm = true;
    database_.Observe(this);
  }
  ~DatabaseTest() override {
    database_.Restart(Microseconds(0));
    while (scheduler_.fibers() > 0) scheduler_.RunNext();
  }

  static Record By(int version) {
    Record record;
    record.version = version;
    return record;
  }
  static std::optional<RecordPtr> To(int version) {
    return std::make_shared<const Record>(By(version));
  }

  // Sends a statement; `settled` is what it did to its one row.
  struct Sent {
    std::shared_ptr<Reply> reply;
    std::shared_ptr<Touch> touch = std::make_shared<Touch>(Touch::kGivenUp);
  };
  Sent Insert(int version, Microseconds hold = Microseconds(0)) {
    return Send(
        [this, version](Backend& backend) {
          return backend.Insert(id_, By(version));
        },
        hold);
  }
  // From one version to another.
  Sent Update(int from, int to, Microseconds hold = Microseconds(0)) {
    return Send(
        [this, from, to](Backend& backend) {
          return backend.Update(
              id_, backend.See(id_),
              [&](const Record& stored) -> std::optional<RecordPtr> {
                if (stored.version != from) return std::nullopt;
                return To(to);
              });
        },
        hold);
  }

  // Until then nothing more happens to what was sent.
  void Run(Microseconds duration) {
    const SteadyTime end = scheduler_.Now() + duration;
    scheduler_.After(duration, [] {});
    while (scheduler_.Now() < end) scheduler_.RunNext();
  }
  std::int64_t version() const {
    const RecordPtr record = database_.Find(id_);
    return record == nullptr ? 0 : record->version;
  }

  Scheduler scheduler_{1};
  Weather weather_;
  Database database_{scheduler_, weather_, PlantedBug::kNone, true};
  const RecordId id_{"scope", "key"};

 private:
  template <typename Do>
  Sent Send(Do change, Microseconds hold) {
    Sent sent{.reply = std::make_shared<Reply>(scheduler_)};
    database_.Start(
        Microseconds(0), database_.epoch(), true,
        [change, hold, touch = sent.touch, this](Backend& backend) {
          *touch = change(backend);
          if (*touch == Touch::kGivenUp) return backend.failure();
          if (hold > Microseconds(0)) scheduler_.Sleep(hold);
          return Ending::kAnswered;
        },
        sent.reply);
    return sent;
  }
  void RowChanged(const RecordId&, const RecordPtr&) override {}
  void RowFellBack(const RecordId&, const RecordPtr&) override {}
};

TEST_F(DatabaseTest, AnInsertWaitsForAnotherOneAndFindsItsRow) {
  const Sent first = Insert(1, Milliseconds(30));
  Run(Milliseconds(5));
  const Sent second = Insert(2);
  Run(Milliseconds(10));
  EXPECT_FALSE(second.reply->ending.has_value());
  Run(Milliseconds(100));
  EXPECT_EQ(*first.touch, Touch::kDone);
  EXPECT_EQ(*second.touch, Touch::kSkipped);
  EXPECT_EQ(second.reply->ending, Ending::kAnswered);
  EXPECT_EQ(version(), 1);
}

TEST_F(DatabaseTest, AGuardIsReadAgainAfterTheWait) {
  database_.Put(id_, By(1));
  const Sent first = Update(1, 2, Milliseconds(30));
  Run(Milliseconds(5));
  const Sent second = Update(1, 3);
  Run(Milliseconds(100));
  EXPECT_EQ(*first.touch, Touch::kDone);
  EXPECT_EQ(*second.touch, Touch::kSkipped);
  EXPECT_EQ(version(), 2);
}

TEST_F(DatabaseTest, ALockThatIsNotHadInTimeEndsTheStatement) {
  database_.Put(id_, By(1));
  Update(1, 2, Milliseconds(300));
  Run(Milliseconds(5));
  const Sent second = Update(1, 3);
  Run(Milliseconds(150));
  EXPECT_EQ(second.reply->ending, Ending::kLockTimeout);
}

TEST_F(DatabaseTest, ACrashLosesWhatWasNotCommitted) {
  database_.Put(id_, By(1));
  const Sent sent = Update(1, 2, Milliseconds(30));
  Run(Milliseconds(10));
  ASSERT_TRUE(database_.Restart(Milliseconds(5)));
  EXPECT_EQ(sent.reply->ending, Ending::kCut);
  EXPECT_FALSE(database_.accepts());
  Run(Milliseconds(100));
  EXPECT_TRUE(database_.accepts());
  EXPECT_EQ(version(), 1);
}

TEST_F(DatabaseTest, WhatWaitsForTheStandbyIsThereAfterACrash) {
  database_.Put(id_, By(1));
  database_.StallStandby(Milliseconds(500));
  const Sent sent = Update(1, 2);
  Run(Milliseconds(50));
  EXPECT_FALSE(sent.reply->ending.has_value());
  EXPECT_EQ(version(), 1);
  ASSERT_TRUE(database_.Restart(Milliseconds(5)));
  EXPECT_EQ(version(), 2);
}

TEST_F(DatabaseTest, ACancelledWaitIsSeenByOthersAndLostInAFailover) {
  database_.Put(id_, By(1));
  database_.StallStandby(Milliseconds(500));
  const Sent sent = Update(1, 2);
  Run(Milliseconds(50));
  // Some are spared each time.
  while (!sent.reply->ending.has_value()) {
    database_.CancelWaits();
    Run(Milliseconds(10));
  }
  EXPECT_NE(sent.reply->ending, Ending::kAnswered);
  EXPECT_EQ(version(), 2);
  ASSERT_TRUE(database_.FailOver(Milliseconds(5)));
  EXPECT_EQ(version(), 1);
}

TEST_F(DatabaseTest, AFailoverKeepsWhatWasAnswered) {
  database_.Put(id_, By(1));
  const Sent sent = Update(1, 2);
  Run(Milliseconds(50));
  ASSERT_EQ(sent.reply->ending, Ending::kAnswered);
  ASSERT_TRUE(database_.FailOver(Milliseconds(5)));
  EXPECT_EQ(version(), 2);
}

TEST_F(DatabaseTest, AStatementGoesOnWhenNobodyWaitsForItsAnswer) {
  database_.Put(id_, By(1));
  Update(1, 2, Milliseconds(30));
  Run(Milliseconds(100));
  EXPECT_EQ(version(), 2);
}

}  // namespace
}  // namespace idempotency
