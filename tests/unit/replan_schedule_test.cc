// When a connection has its plans made anew.
#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "server/store/postgres/connection.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(ReplanSchedule, FollowsTheTableAsItGrows) {
  ReplanSchedule schedule;
  const SteadyTime now{};
  std::vector<int> due;
  for (int execution = 1; execution <= 30'000; ++execution) {
    if (schedule.Due(now)) due.push_back(execution);
  }
  EXPECT_EQ(due, (std::vector<int>{21, 201, 2'001, 20'001}));
}

TEST(ReplanSchedule, NoticesATableThatOthersFilled) {
  ReplanSchedule schedule;
  const SteadyTime start{};
  EXPECT_FALSE(schedule.Due(start));
  EXPECT_FALSE(schedule.Due(start + seconds(59)));
  EXPECT_TRUE(schedule.Due(start + seconds(60)));
  EXPECT_FALSE(schedule.Due(start + seconds(61)));
  EXPECT_TRUE(schedule.Due(start + seconds(120)));
}

TEST(ReplanSchedule, SuspectsThePlanOfASlowExecutionButNotEveryTime) {
  ReplanSchedule schedule;
  const SteadyTime start{};
  EXPECT_FALSE(schedule.Due(start));
  schedule.Took(milliseconds(5));
  EXPECT_FALSE(schedule.Due(start + seconds(2)));
  schedule.Took(milliseconds(500));
  schedule.Took(milliseconds(5));
  EXPECT_TRUE(schedule.Due(start + seconds(2)));
  schedule.Took(milliseconds(500));
  EXPECT_FALSE(schedule.Due(start + milliseconds(2'900)));
  EXPECT_TRUE(schedule.Due(start + seconds(3)));
  EXPECT_FALSE(schedule.Due(start + seconds(5)));
}

}  // namespace
}  // namespace idempotency
