// The reaper's steps and rests, over a sweeper whose statements take as long
// as the test says.
#include "server/core/reaper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/manual_clock.h"

namespace idempotency {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::IsEmpty;
using ::testing::Le;

// ---- The step by itself.

TEST(SweepStepTest, GrowsInABacklogOfQuickStatementsUpToItsBound) {
  SweepStep step(5000);
  EXPECT_EQ(step.rows(), 500);
  std::vector<int> rows;
  for (int i = 0; i < 5; ++i) {
    step.Note(step.rows(), milliseconds(12));
    rows.push_back(step.rows());
  }
  EXPECT_THAT(rows, ElementsAre(1000, 2000, 4000, 5000, 5000));
}

TEST(SweepStepTest, StaysWithoutABacklogAndNearTheTimeThatIsAimedAt) {
  SweepStep step(5000);
  step.Note(499, milliseconds(1));
  EXPECT_EQ(step.rows(), 500);
  step.Note(500, milliseconds(13));
  step.Note(500, milliseconds(25));
  EXPECT_EQ(step.rows(), 500);
}

TEST(SweepStepTest, ShrinksByAsMuchAsAStatementTookTooLong) {
  SweepStep step(5000);
  for (int i = 0; i < 4; ++i) step.Note(step.rows(), milliseconds(1));
  step.Note(5000, milliseconds(50));
  EXPECT_EQ(step.rows(), 2500);
  step.Note(2500, milliseconds(2000));
  EXPECT_EQ(step.rows(), 625);
  step.NoteFailure();
  EXPECT_EQ(step.rows(), 312);
  for (int i = 0; i < 9; ++i) step.Note(step.rows(), milliseconds(2000));
  EXPECT_EQ(step.rows(), 100);
}

TEST(SweepStepTest, AStatementThatFoundLittleWasNotSlowForItsSize) {
  SweepStep step(5000);
  step.Note(3, milliseconds(2000));
  EXPECT_EQ(step.rows(), 500);
}

TEST(SweepStepTest, IsNeverMoreThanItsBoundHoweverSmall) {
  SweepStep step(7);
  EXPECT_EQ(step.rows(), 7);
  step.Note(7, milliseconds(1));
  EXPECT_EQ(step.rows(), 7);
  step.Note(7, milliseconds(1000));
  step.NoteFailure();
  EXPECT_EQ(step.rows(), 7);
}

// ---- The reaper.

struct Database {
  std::int64_t records = 0;
  std::int64_t conflicts = 0;
  microseconds a_statement = milliseconds(2);
  microseconds a_row{5};
  absl::Status failure{};
  std::vector<SteadyTime::duration> statements{};  // how long each took
};

class TimedSweeper final : public Sweeper {
 public:
  TimedSweeper(Database& database, ManualClock& clock)
      : database_(database), clock_(clock) {}

  absl::StatusOr<SweepReport> SweepRecords(int limit) override {
    if (!database_.failure.ok()) return database_.failure;
    SweepReport report;
    report.deleted = Take(database_.records, limit);
    if (report.deleted > 0) report.unfinished["default"] = 1;
    return report;
  }
  absl::StatusOr<std::int64_t> SweepConflicts(int limit,
                                              absl::Duration) override {
    return Take(database_.conflicts, limit);
  }

 private:
  std::int64_t Take(std::int64_t& rows, int limit) {
    const std::int64_t taken = std::min<std::int64_t>(rows, limit);
    rows -= taken;
    const SteadyTime::duration took =
        database_.a_statement + taken * database_.a_row;
    clock_.Advance(took);
    database_.statements.push_back(took);
    return taken;
  }

  Database& database_;
  ManualClock& clock_;
};

class ReaperTest : public ::testing::Test {
 protected:
  // Sweeps until there is nothing more, resting as told.
  void SweepAll() {
    const SteadyTime began = clock_.Now();
    for (;;) {
      const SteadyTime step = clock_.Now();
      const absl::Duration rest = reaper_.SweepOnce();
      worked_ += clock_.Now() - step;
      if (rest == absl::Seconds(5)) break;
      rests_.push_back(rest);
      clock_.Advance(absl::ToChronoNanoseconds(rest));
    }
    took_ = clock_.Now() - began;
  }
  double Seconds(SteadyTime::duration duration) const {
    return std::chrono::duration<double>(duration).count();
  }

  ManualClock clock_;
  Metrics metrics_;
  Database database_;
  std::vector<absl::StatusOr<SweepReport>> log_;
  Reaper reaper_{{},
                 std::make_unique<TimedSweeper>(database_, clock_),
                 clock_,
                 metrics_,
                 [this](const absl::StatusOr<SweepReport>& report) {
                   log_.push_back(report);
                 }};
  SteadyTime::duration worked_{0};
  SteadyTime::duration took_{0};
  std::vector<absl::Duration> rests_;
};

TEST_F(ReaperTest, ABacklogIsWorkedOffInAThirdOfTheTime) {
  constexpr std::int64_t kRows = 1'000'000;
  database_.records = kRows;
  SweepAll();
  EXPECT_EQ(metrics_.reaped, static_cast<std::uint64_t>(kRows));
  EXPECT_GE(kRows / Seconds(took_), 20'000);
  EXPECT_LE(Seconds(worked_), Seconds(took_) / 2.9);
  EXPECT_THAT(rests_, Each(Ge(absl::Milliseconds(5))));
}

TEST_F(ReaperTest, OfASlowDatabaseItAsksLess) {
  database_.records = 20'000;
  database_.a_row = microseconds(200);
  SweepAll();
  EXPECT_EQ(database_.records, 0);
  EXPECT_LE(Seconds(worked_), Seconds(took_) / 2.9);
  // Once it knows.
  database_.statements.erase(database_.statements.begin(),
                             database_.statements.begin() + 4);
  EXPECT_THAT(database_.statements, Each(Le(milliseconds(26))));
}

TEST_F(ReaperTest, RestsWhenThereIsNothingMore) {
  EXPECT_EQ(reaper_.SweepOnce(), absl::Seconds(5));
  EXPECT_THAT(log_, IsEmpty());
  database_.records = 250;
  EXPECT_EQ(reaper_.SweepOnce(), absl::Seconds(5));
  database_.conflicts = 500;
  EXPECT_LT(reaper_.SweepOnce(), absl::Seconds(5));
  EXPECT_EQ(metrics_.conflicts_reaped, 500u);
}

TEST_F(ReaperTest, AFewRowsThatWereClaimedAgainAreNotTheEndOfABacklog) {
  database_.records = 499;
  EXPECT_LT(reaper_.SweepOnce(), absl::Seconds(5));
}

TEST_F(ReaperTest, TellsOfABacklogInSums) {
  database_.records = 1'000'000;
  SweepAll();
  std::int64_t told = 0;
  std::int64_t unfinished = 0;
  for (const auto& report : log_) {
    told += report->deleted;
    unfinished += report->unfinished.at("default");
  }
  EXPECT_EQ(told, 1'000'000);
  EXPECT_EQ(metrics_.policies.At("default").unfinished_reaped,
            static_cast<std::uint64_t>(unfinished));
  EXPECT_LE(log_.size(), 2 + static_cast<std::size_t>(Seconds(took_) / 5));
}

TEST_F(ReaperTest, AFailureIsToldAndFollowedByARest) {
  database_.records = 600;
  reaper_.SweepOnce();
  database_.failure = absl::AbortedError("a lock");
  EXPECT_EQ(reaper_.SweepOnce(), absl::Seconds(5));
  ASSERT_EQ(log_.size(), 2u);
  EXPECT_EQ(log_[0]->deleted, 500);
  EXPECT_EQ(log_[1].status(), database_.failure);
  EXPECT_EQ(metrics_.sweeps_failed, 1u);
}

}  // namespace
}  // namespace idempotency
