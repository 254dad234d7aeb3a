#include "server/store/postgres/statement_watch.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>

namespace idempotency {
namespace {

using std::chrono::seconds;

const SteadyTime kNow = SteadyTime(std::chrono::hours(1));

class StatementWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends_.data()), 0);
  }
  void TearDown() override {
    for (const int end : ends_) close(end);
  }

  // What somebody who waits for an answer on the socket sees.
  bool IsCut() const {
    char byte = 0;
    return recv(ends_[0], &byte, 1, MSG_DONTWAIT) == 0;
  }

  StatementWatch watch_;
  std::array<int, 2> ends_{};
};

TEST_F(StatementWatchTest, AStatementIsCutOnceItIsOverdue) {
  const StatementWatch::Guard guard(&watch_, ends_[0], kNow + seconds(7));
  EXPECT_EQ(watch_.CutOverdue(kNow), 0);
  EXPECT_FALSE(IsCut());
  EXPECT_EQ(watch_.CutOverdue(kNow + seconds(7)), 1);
  EXPECT_TRUE(IsCut());
  EXPECT_EQ(watch_.CutOverdue(kNow + seconds(8)), 0) << "once is enough";
}

TEST_F(StatementWatchTest, AStatementThatEndedIsLeftAlone) {
  { const StatementWatch::Guard guard(&watch_, ends_[0], kNow); }
  EXPECT_EQ(watch_.CutOverdue(kNow + seconds(1)), 0);
  watch_.CutAll();
  EXPECT_FALSE(IsCut());
}

TEST_F(StatementWatchTest, AtTheEndWhateverBeginsIsCutToo) {
  watch_.CutAll();
  const StatementWatch::Guard guard(&watch_, ends_[0], kNow + seconds(7));
  EXPECT_TRUE(IsCut());
}

TEST_F(StatementWatchTest, WithoutAWatchNothingIsCut) {
  const StatementWatch::Guard guard(nullptr, ends_[0], kNow);
  EXPECT_FALSE(IsCut());
}

}  // namespace
}  // namespace idempotency
