// What the model of PostgreSQL does where two statements meet, or trouble.
#include "tests/simulation/database.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tests/simulation/backend.h"
#include "tests/simulation/process.h"
#include "tests/simulation/simulated_table.h"

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
  // From one version to another; 0: deletes it.
  Sent Update(int from, int to, Microseconds hold = Microseconds(0)) {
    return Send(
        [this, from, to](Backend& backend) {
          return backend.Update(
              id_, backend.See(id_),
              [&](const Record& stored) -> std::optional<RecordPtr> {
                if (stored.version != from) return std::nullopt;
                return to == 0 ? RecordPtr() : To(to);
              });
        },
        hold);
  }
  // To a version, whatever there is, by its place; the snapshot is that much
  // older.
  Sent UpdateInPlace(int to, Microseconds before) {
    return Send(
        [this, to, before](Backend& backend) {
          const Version seen = backend.See(id_);
          scheduler_.Sleep(before);
          return backend.Update(
              id_, seen,
              [&](const Record&) -> std::optional<RecordPtr> { return To(to); },
              Backend::By::kPlace);
        },
        Microseconds(0));
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
  void RowChanged(const RecordId&, const Version&) override {}
  void RowFellBack(const RecordId&, const Version&) override {}
  void FailedOver() override {}
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

TEST_F(DatabaseTest, ADeletionIsWaitedForAndLeavesNothingToUpdate) {
  database_.Put(id_, By(1));
  Update(1, 0, Milliseconds(30));
  Run(Milliseconds(5));
  const Sent second = Update(1, 3, Milliseconds(60));
  Run(Milliseconds(10));
  EXPECT_FALSE(second.reply->ending.has_value());
  // Of a row that is not there nothing is locked.
  Run(Milliseconds(30));
  const Sent third = Insert(4);
  Run(Milliseconds(20));
  EXPECT_EQ(third.reply->ending, Ending::kAnswered);
  Run(Milliseconds(100));
  EXPECT_EQ(*second.touch, Touch::kSkipped);
  EXPECT_EQ(version(), 4);
}

TEST_F(DatabaseTest, ARowThatWasFoundChangedStaysLocked) {
  database_.Put(id_, By(1));
  Update(1, 2, Milliseconds(20));
  Run(Milliseconds(5));
  const Sent second = Update(1, 3, Milliseconds(60));
  Run(Milliseconds(40));
  const Sent third = Update(2, 4);
  Run(Milliseconds(10));
  EXPECT_FALSE(third.reply->ending.has_value());
  Run(Milliseconds(100));
  EXPECT_EQ(*second.touch, Touch::kSkipped);
  EXPECT_EQ(version(), 4);
}

TEST_F(DatabaseTest, ARowThatMovedIsNotFoundByItsPlace) {
  database_.Put(id_, By(1));
  const Sent first = UpdateInPlace(3, Milliseconds(50));
  Run(Milliseconds(5));
  Update(1, 2);
  Run(Milliseconds(100));
  EXPECT_EQ(*first.touch, Touch::kSkipped);
  EXPECT_EQ(version(), 2);
}

TEST_F(DatabaseTest, AnOldReleaseFindsARowThatMoved) {
  database_.finds_moved_rows = true;
  database_.Put(id_, By(1));
  const Sent first = UpdateInPlace(3, Milliseconds(50));
  Run(Milliseconds(5));
  Update(1, 2);
  Run(Milliseconds(100));
  EXPECT_EQ(*first.touch, Touch::kDone);
  EXPECT_EQ(version(), 3);
}

TEST_F(DatabaseTest, ASweepPastLockedRowsTakesAsManyFreeOnes) {
  database_.Put(id_, By(1));
  for (const char* key : {"other", "third", "last"}) {
    database_.Put({"scope", key}, By(1));
  }
  Update(1, 2, Milliseconds(500));
  Run(Milliseconds(5));
  Process process(scheduler_);
  SimulatedSweeper sweeper(database_, process, weather_);
  absl::StatusOr<SweepReport> swept = SweepReport();
  scheduler_.Spawn(Microseconds(0), [&] { swept = sweeper.SweepRecords(3); });
  Run(Milliseconds(1000));
  ASSERT_TRUE(swept.ok()) << swept.status();
  EXPECT_EQ(swept->deleted, 3);
  EXPECT_EQ(version(), 2);
}

TEST_F(DatabaseTest, TheClockOfTheStandbyGoesOnAfterAFailover) {
  const absl::Time before = database_.Now();
  ASSERT_TRUE(database_.SetStandbyClock(Milliseconds(3000)));
  EXPECT_EQ(database_.Now(), before);
  ASSERT_TRUE(database_.FailOver(Milliseconds(5)));
  EXPECT_EQ(database_.Now(), before + absl::Seconds(3));
  ASSERT_TRUE(database_.SetClock(Milliseconds(0)));
  EXPECT_EQ(database_.Now(), before);
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
