// Where on the monotonic axis the database's times are placed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/functional/function_ref.h"
#include "tests/fault/checker/story.h"

namespace idempotency::fault {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kEpochNs = 1'800'000'000'000'000'000;

// A reading at so many ms, of a clock that is so many ms ahead.
ClockEvent Reading(std::int64_t at_ms, std::int64_t ahead_ms) {
  return {.t = at_ms * kMs,
          .database_us = (kEpochNs + (at_ms + ahead_ms) * kMs) / 1000,
          .error_ns = 1000};
}

absl::Time At(std::int64_t ms) {
  return absl::FromUnixNanos(kEpochNs + ms * kMs);
}

std::int64_t Ms(absl::Duration duration) {
  return absl::ToInt64Milliseconds(duration);
}

// Readings every 100 ms, and a step of the clock between 1900 and 2000 ms.
DatabaseClock SteppedBy(std::int64_t step_ms) {
  std::vector<ClockEvent> readings;
  for (std::int64_t at = 0; at <= 4000; at += 100) {
    readings.push_back(Reading(at, at < 2000 ? 0 : step_ms));
  }
  return *DatabaseClock::Make(std::move(readings));
}

TEST(DatabaseClockTest, WithoutReadingsThereIsNone) {
  EXPECT_FALSE(DatabaseClock::Make({}).ok());
}

TEST(DatabaseClockTest, OneReadingPlacesAllTimes) {
  const DatabaseClock clock = *DatabaseClock::Make({Reading(500, 70)});
  EXPECT_LE(clock.At(900 * kMs).earliest, At(970));
  EXPECT_GE(clock.At(900 * kMs).earliest, At(968));
  EXPECT_GE(clock.At(900 * kMs).latest, At(970));
  EXPECT_LE(clock.FirstAt(At(970)), 900 * kMs);
  EXPECT_GE(clock.FirstAt(At(970)), 898 * kMs);
  EXPECT_GE(clock.LastAt(At(970)), 900 * kMs);
}

TEST(DatabaseClockTest, AStepBlursOnlyTheTimeAroundIt) {
  for (const std::int64_t step : {500, -500}) {
    const DatabaseClock clock = SteppedBy(step);
    EXPECT_LT(Ms(clock.error()), 5);
    EXPECT_GT(Ms(clock.greatest_error()), 200);
    EXPECT_LT(clock.At(1000 * kMs).latest - clock.At(1000 * kMs).earliest,
              absl::Milliseconds(5));
    EXPECT_LE(clock.At(1950 * kMs).earliest, At(1950 + std::min(step, 0L)));
    EXPECT_GE(clock.At(1950 * kMs).latest, At(1950 + std::max(step, 0L)));
    EXPECT_LE(clock.At(3000 * kMs).earliest, At(3000 + step));
    EXPECT_GE(clock.At(3000 * kMs).earliest, At(2998 + step));
  }
}

TEST(DatabaseClockTest, ATimeShownTwiceIsPlacedTwice) {
  const DatabaseClock clock = SteppedBy(-500);
  EXPECT_LE(clock.FirstAt(At(1700)), 1700 * kMs);
  EXPECT_GE(clock.FirstAt(At(1700)), 1690 * kMs);
  EXPECT_GE(clock.LastAt(At(1700)), 2200 * kMs);
  EXPECT_LE(clock.LastAt(At(1700)), 2210 * kMs);
  // Only before, only after.
  EXPECT_LE(clock.LastAt(At(1000)), 1010 * kMs);
  EXPECT_GE(clock.FirstAt(At(2500)), 2990 * kMs);
}

TEST(DatabaseClockTest, ATimeThatWasSteppedOverIsPlacedAtTheStep) {
  const DatabaseClock clock = SteppedBy(500);
  EXPECT_LE(clock.FirstAt(At(2200)), 2000 * kMs);
  EXPECT_GE(clock.FirstAt(At(2200)), 1890 * kMs);
  EXPECT_GE(clock.LastAt(At(2200)), 1900 * kMs);
  EXPECT_LE(clock.LastAt(At(2200)), 2010 * kMs);
}

TEST(DatabaseClockTest, WhatItShowedBetween) {
  const DatabaseClock clock = SteppedBy(-500);
  const auto [earliest, latest] = clock.Between(1800 * kMs, 2100 * kMs);
  EXPECT_LE(earliest, At(1500));
  EXPECT_GE(latest, At(1999));
  EXPECT_GE(Ms(clock.VariationBetween(1800 * kMs, 2100 * kMs)), 500);
  EXPECT_LT(Ms(clock.VariationBetween(1000 * kMs, 1800 * kMs)), 5);
}

TEST(DatabaseClockTest, ASlowReadingIsLeftOut) {
  std::vector<ClockEvent> readings = {Reading(0, 0), Reading(100, 0),
                                      Reading(200, 0), Reading(300, 40)};
  readings.back().error_ns = 50 * kMs;
  const DatabaseClock clock = *DatabaseClock::Make(std::move(readings));
  EXPECT_LT(Ms(clock.greatest_error()), 5);
}

// What is wrong far from the step is still found.
TEST(DatabaseClockTest, AStepHidesNothingElsewhere) {
  Story story;
  const CallEvent call = story.ClaimCall("c1-1", kAnn);
  story.Send(call);
  story.Advance(absl::Milliseconds(1));
  const std::int64_t early = story.t();
  story.Advance(absl::Milliseconds(500));
  AnswerEvent& answer = story.Answer(story.Decide(call));
  const ClockEvent first = story.clocks.front();
  for (const std::int64_t seconds : {10, 20, 30}) {
    ClockEvent reading = first;
    reading.t += seconds * 1000 * kMs;
    reading.database_us += (seconds + (seconds > 10 ? 60 : 0)) * 1'000'000;
    story.clocks.push_back(reading);
  }
  EXPECT_THAT(story.Broken(), IsEmpty());
  answer.t = early;
  EXPECT_THAT(story.Broken(), Contains(StartsWith("S1:")));
}

// ---- A clock that is set back.

void Read(Story& story, absl::Duration later = absl::ZeroDuration()) {
  story.clocks.push_back({.t = story.t() + absl::ToInt64Nanoseconds(later),
                          .database_us = absl::ToUnixMicros(story.now()),
                          .error_ns = 1000});
}

// Does the `rest` of the story when the clock has been set back.
void SetBack(Story& story, absl::Duration by, absl::FunctionRef<void()> rest) {
  const std::size_t calls = story.calls.size();
  const std::size_t answers = story.answers.size();
  Read(story);
  story.Advance(absl::Microseconds(1) - by);
  Read(story, by);
  rest();
  Read(story, by);
  const std::int64_t later = absl::ToInt64Nanoseconds(by);
  for (auto i = calls; i < story.calls.size(); ++i) story.calls[i].t += later;
  for (auto i = answers; i < story.answers.size(); ++i) {
    story.answers[i].t += later;
  }
}

TEST(ClockSetBackTest, S3ALeaseThatBeganLaterRunsAllTheSame) {
  Story story;
  AnswerEvent* claimed = nullptr;
  SetBack(story, absl::Hours(1), [&] {
    story.Advance(absl::Milliseconds(10));
    claimed = &story.Claim("c1-1", kAnn);
    story.Advance(absl::Milliseconds(1100));
    story.Claim("c2-1", kBob);
  });
  EXPECT_THAT(story.Broken(), IsEmpty());
  claimed->lease_us *= 3;
  EXPECT_THAT(story.Broken(), Contains(HasSubstr("was given the key while")));
}

TEST(ClockSetBackTest, S3ALeaseThatTheClockPassedBeforeIsOver) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Advance(absl::Milliseconds(1100));
  const CallEvent takes = story.ClaimCall("c2-1", kBob);
  story.Send(takes);
  const AnswerEvent told = story.Decide(takes);
  // It is logged when the clock has been set back.
  story.changes.back().row.at -= absl::Seconds(5);
  SetBack(story, absl::Seconds(5), [&] { story.Answer(told); });
  EXPECT_THAT(story.Broken(), IsEmpty());
  story.clocks.resize(1);
  story.answer("c2-1").t = story.call("c2-1").t + kMs;
  EXPECT_THAT(story.Broken(), Contains(StartsWith("S3:")));
}

TEST(ClockSetBackTest, S2ANewLifeBeginsWithTheClock) {
  Story story;
  story.Claim("c1-1", kAnn);
  story.Release("c1-2", kAnn, SaidDisposition::kOutcomeUnknown);
  AnswerEvent* last = nullptr;
  SetBack(story, absl::Seconds(8), [&] {
    // One more than the first, though the clock is behind.
    story.Claim("c2-1", kBob);
    story.Finalize("c2-2", kBob);
    story.Advance(absl::Seconds(4));
    story.Sweep();
    story.Claim("c3-1", kCat);
    story.Release("c3-2", kCat, SaidDisposition::kOutcomeUnknown);
    last = &story.Claim("c4-1", kDan);
  });
  ASSERT_LT(last->fencing, story.answer("c1-1").fencing);
  EXPECT_THAT(story.Broken(), IsEmpty());
  last->fencing = story.answer("c3-1").fencing - 1;
  story.last().fencing_token = last->fencing;
  EXPECT_THAT(story.Broken(), Contains(StartsWith("S2:")));
}

}  // namespace
}  // namespace idempotency::fault
