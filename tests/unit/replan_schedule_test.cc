// When a connection has its plans made anew.
#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "server/store/postgres/connection.h"

namespace idempotency {
namespace {

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

}  // namespace
}  // namespace idempotency
