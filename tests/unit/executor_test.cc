#include "client/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

namespace idempotency {
namespace {

TEST(ThreadPoolTest, RunsWhatItHasBeforeItEnds) {
  std::atomic<int> ran{0};
  {
    const std::unique_ptr<Executor> pool = NewThreadPool(2);
    for (int i = 0; i < 100; ++i) pool->Run([&] { ++ran; });
    pool->Run([&] { pool->Run([&] { ++ran; }); });
  }
  EXPECT_EQ(ran, 101);
}

}  // namespace
}  // namespace idempotency
