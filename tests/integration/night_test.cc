// The demo of the quickstart: that it holds, that it can fail, and that it
// leaves nothing behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/fault_calls.h"
#include "tests/support/replica.h"
#include "tests/support/server_process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class NightTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string database = Require(TempPostgres::SharedDatabase());
    first_ = StartReplica(database).release();
    second_ = StartReplica(database).release();
  }

  static void TearDownTestSuite() {
    delete second_;
    delete first_;
  }

  void StartNight(std::vector<std::string> flags = {}) {
    flags.insert(flags.end(), {absl::StrCat("--program=", NIGHT_PROGRAM),
                               absl::StrCat("--coordinator=", first_->target(),
                                            ",", second_->target())});
    night_ = Require(ServerProcess::Start(
        {.program = NIGHT_SCRIPT,
         .arguments = std::move(flags),
         .environment = {absl::StrCat("TMPDIR=", folder_->path())},
         .output_file = {}}));
  }

  // Those of this night: each is told of a file in the folder.
  std::vector<std::string> Processes() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      std::ifstream file(entry.path() / "cmdline");
      const std::string command((std::istreambuf_iterator<char>(file)), {});
      if (command.find(folder_->path() + "/") != std::string::npos) {
        found.push_back(command);
      }
    }
    return found;
  }

  bool FolderIsEmpty() const {
    return std::filesystem::is_empty(folder_->path());
  }

  static inline Replica* first_ = nullptr;
  static inline Replica* second_ = nullptr;
  const std::unique_ptr<TempFolder> folder_ = Require(TempFolder::Make());
  std::unique_ptr<ServerProcess> night_;
};

TEST_F(NightTest, CustomerPaysThreeTimesWithoutTheCoordinatorAndOnceWithIt) {
  StartNight();
  EXPECT_EQ(Require(night_->WaitForExit()).code, 0);
  const std::string output = night_->Output();
  EXPECT_THAT(output, ContainsRegex("without coordinator +3 +3 +"
                                    "2 x none, 201 charge-3\n"));
  EXPECT_THAT(output, ContainsRegex("with coordinator +3 \\+ 2 later +1 +"
                                    "none, 409, 3 x 201 charge-1\n"));
  EXPECT_THAT(output, ContainsRegex("paid +600\n"));
  EXPECT_THAT(output, ContainsRegex("paid +200\n"));
  EXPECT_THAT(output, HasSubstr("RunOnce says: Resolved"));
  EXPECT_THAT(output, Not(HasSubstr("WRONG")));
  EXPECT_THAT(Processes(), IsEmpty());
  EXPECT_TRUE(FolderIsEmpty());
}

TEST_F(NightTest, FailsWithAWalletThatForgetsAndSaysWhichFigureIsWrong) {
  StartNight({"--forgetful_wallet"});
  EXPECT_EQ(Require(night_->WaitForExit()).code, 1);
  EXPECT_THAT(night_->Output(),
              HasSubstr("WRONG  with coordinator, charges: 2 instead of 1\n"));
  EXPECT_THAT(night_->Output(), Not(HasSubstr("WRONG  without coordinator")));
  EXPECT_THAT(Processes(), IsEmpty());
}

TEST_F(NightTest, LeavesNothingWhenItIsInterrupted) {
  StartNight();
  EXPECT_TRUE(night_->WaitForLine("gets lost").ok());
  // The wallet, both pods and the app.
  EXPECT_THAT(Processes(), SizeIs(4));
  night_->Terminate();
  EXPECT_EQ(Require(night_->WaitForExit()).code, 128 + SIGTERM);
  EXPECT_THAT(Processes(), IsEmpty());
  EXPECT_TRUE(FolderIsEmpty());
}

TEST_F(NightTest, LeavesNoProcessWhenItIsKilled) {
  StartNight();
  EXPECT_TRUE(night_->WaitForLine("gets lost").ok());
  night_->Kill();
  EXPECT_EQ(Require(night_->WaitForExit()).signal, SIGKILL);
  const auto until = std::chrono::steady_clock::now() + seconds(20);
  while (!Processes().empty() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_THAT(Processes(), IsEmpty());
}

}  // namespace
}  // namespace idempotency
