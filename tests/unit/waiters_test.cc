// The keeper of those who wait: when each key is looked at, and who leaves.
#include "server/core/waiters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/manual_clock.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Le;

class WaitersTest : public ::testing::Test {
 protected:
  static std::list<Call> WaiterOf(const std::string& key, SteadyTime now,
                                  milliseconds wait = seconds(60),
                                  milliseconds lease = seconds(600)) {
    std::list<Call> call;
    call.push_back({.request = ClaimCall{{.id = {"scope", key}}, nullptr},
                    .context = {.wait_until = now + wait},
                    .submitted = now,
                    .bytes = 10,
                    .seen = std::make_shared<Seen>(
                        Seen{.version = 5, .lapses_at = now + lease})});
    return call;
  }

  ManualClock clock_;
  Waiters waiters_;
};

TEST_F(WaitersTest, LooksGrowRarerWithTheTimeWaited) {
  waiters_.Add(WaiterOf("a", clock_.Now()), clock_.Now());
  const SteadyTime start = clock_.Now();
  SteadyTime last = start;
  int looks = 0;
  for (; clock_.Now() < start + seconds(59); ++looks) {
    const SteadyTime next = waiters_.next_look();
    EXPECT_THAT(next - last, AllOf(Ge(kLookIntervalMin), Le(kLookIntervalMax)));
    clock_.Advance(next - clock_.Now());
    const std::vector<Watched> due = waiters_.KeysToLookAt(next, 10);
    ASSERT_EQ(due.size(), 1u);
    EXPECT_EQ(due.front().version, 5);
    last = next;
  }
  EXPECT_EQ(waiters_.next_look() - last, kLookIntervalMax);
  EXPECT_LE(looks, 90);
}

TEST_F(WaitersTest, NewcomersDoNotPutALookOff) {
  waiters_.Add(WaiterOf("a", clock_.Now()), clock_.Now());
  const SteadyTime look = waiters_.next_look();
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(milliseconds(20));
    waiters_.Add(WaiterOf("a", clock_.Now()), clock_.Now());
    EXPECT_EQ(waiters_.next_look(), look);
  }
  EXPECT_EQ(waiters_.KeysToLookAt(clock_.Now(), 10).size(), 1u);
}

TEST_F(WaitersTest, LeaseThatLapsesIsLookedForThen) {
  waiters_.Add(WaiterOf("a", clock_.Now(), seconds(60), milliseconds(20)),
               clock_.Now());
  EXPECT_EQ(waiters_.next_look(), clock_.Now() + milliseconds(20));
  clock_.Advance(milliseconds(20));
  EXPECT_EQ(waiters_.KeysToLookAt(clock_.Now(), 10).size(), 1u);
  EXPECT_EQ(waiters_.next_look(), clock_.Now() + kLookIntervalMin)
      << "once, if the database thinks otherwise";
}

TEST_F(WaitersTest, LooksAreBoundedAndSorted) {
  for (const char* key : {"c", "a", "d", "b"}) {
    waiters_.Add(WaiterOf(key, clock_.Now()), clock_.Now());
  }
  clock_.Advance(seconds(1));
  const std::vector<Watched> due = waiters_.KeysToLookAt(clock_.Now(), 3);
  ASSERT_EQ(due.size(), 3u);
  EXPECT_EQ(due[0].id.key + due[1].id.key + due[2].id.key, "acd");
  EXPECT_EQ(waiters_.KeysToLookAt(clock_.Now(), 3).front().id.key, "b");
}

TEST_F(WaitersTest, EveryWayOutIsCounted) {
  const SteadyTime now = clock_.Now();
  for (int i = 1; i <= 4; ++i) {
    waiters_.Add(WaiterOf("a", now, seconds(i)), now);
    waiters_.Add(WaiterOf("b", now, seconds(10 + i)), now);
  }
  EXPECT_EQ(waiters_.items(), 8u);
  EXPECT_EQ(waiters_.bytes(), 80u);
  EXPECT_EQ(waiters_.next_end(), now + seconds(1));
  EXPECT_EQ(waiters_.TakeEnded(now + seconds(2)).size(), 2u);
  EXPECT_EQ(waiters_
                .TakeIf([&](const Call& call) {
                  return call.context.wait_until == now + seconds(12);
                })
                .size(),
            1u);
  EXPECT_EQ(waiters_.Take({"scope", "a"}).size(), 2u);
  EXPECT_EQ(waiters_.Take({"scope", "a"}).size(), 0u);
  EXPECT_EQ(waiters_.items(), 3u);
  EXPECT_EQ(waiters_.bytes(), 30u);
  EXPECT_EQ(waiters_.TakeEnded(SteadyTime::max()).size(), 3u);
  EXPECT_TRUE(waiters_.empty());
  EXPECT_EQ(waiters_.next_end(), SteadyTime::max());
  EXPECT_EQ(waiters_.next_look(), SteadyTime::max());
}

}  // namespace
}  // namespace idempotency
