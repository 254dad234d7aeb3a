// EmbeddedCluster with the installed PostgreSQL: real clusters, real signals.

#include "server/store/postgres/embedded_cluster.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/store/postgres/child_process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

uid_t OwnerOfProcess(pid_t pid) {
  struct stat status {};
  EXPECT_EQ(stat(absl::StrCat("/proc/", pid).c_str(), &status), 0);
  return status.st_uid;
}

bool IsAlive(pid_t pid) {
  const std::string status = ReadFile(absl::StrCat("/proc/", pid, "/stat"));
  return !status.empty() && status.find(") Z ") == std::string::npos;
}

class EmbeddedClusterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<TempFolder>> folder = TempFolder::Make();
    ASSERT_TRUE(folder.ok()) << folder.status();
    folder_ = *std::move(folder);
  }

  // Gives the test a cluster that was made once for all of them.
  void UseMadeCluster() {
    static const std::unique_ptr<TempFolder> made = [] {
      auto folder = TempFolder::Make();
      EXPECT_TRUE(folder.ok()) << folder.status();
      EmbeddedCluster::Options options;
      options.data_dir = (*folder)->path() + "/data";
      options.initdb_arguments = {"--no-sync"};
      const auto cluster = EmbeddedCluster::Start(std::move(options));
      EXPECT_TRUE(cluster.ok()) << cluster.status();
      return *std::move(folder);
    }();
    const std::string copy =
        absl::StrCat("cp -a '", made->path(), "/data' '", DataDir(), "'");
    ASSERT_EQ(std::system(copy.c_str()), 0);
  }

  std::string DataDir() const { return folder_->path() + "/data"; }

  EmbeddedCluster::Options Options() {
    EmbeddedCluster::Options options;
    options.data_dir = DataDir();
    options.initdb_arguments = {"--no-sync"};
    options.progress = [this](std::string what) {
      progress_.push_back(std::move(what));
    };
    return options;
  }

  std::unique_ptr<EmbeddedCluster> StartOrFail() {
    absl::StatusOr<std::unique_ptr<EmbeddedCluster>> cluster =
        EmbeddedCluster::Start(Options());
    EXPECT_TRUE(cluster.ok()) << cluster.status();
    return cluster.ok() ? *std::move(cluster) : nullptr;
  }

  // Starts the cluster in a process of its own, in a process group of its own,
  // that does nothing else until it is killed.
  pid_t StartInHelper() {
    int ready[2];
    if (pipe(ready) != 0) return -1;
    const pid_t helper = fork();
    if (helper == 0) {
      setpgid(0, 0);
      signal(SIGINT, SIG_IGN);
      close(ready[0]);
      auto cluster = EmbeddedCluster::Start(Options());
      const char answer = cluster.ok() ? 'y' : 'n';
      if (write(ready[1], &answer, 1) != 1) _exit(1);
      while (true) pause();
    }
    close(ready[1]);
    char answer = 0;
    EXPECT_EQ(read(ready[0], &answer, 1), 1);
    EXPECT_EQ(answer, 'y');
    close(ready[0]);
    return helper;
  }

  static void KillHelper(pid_t helper) {
    ASSERT_EQ(kill(helper, SIGKILL), 0);
    ASSERT_EQ(waitpid(helper, nullptr, 0), helper);
  }

  std::unique_ptr<TempFolder> folder_;
  std::vector<std::string> progress_;
};

TEST_F(EmbeddedClusterTest, NewFolderBecomesADurableClusterOnASocketOnly) {
  std::unique_ptr<EmbeddedCluster> cluster = StartOrFail();
  ASSERT_NE(cluster, nullptr);
  EXPECT_FALSE(cluster->adopted());
  ASSERT_FALSE(progress_.empty());
  EXPECT_THAT(progress_[0], HasSubstr("making a new database cluster"));
  const absl::StatusOr<std::string> settings = TempPostgres::RunAt(
      cluster->uri(),
      "SELECT current_database(), current_setting('fsync'),"
      " current_setting('synchronous_commit'),"
      " current_setting('full_page_writes'),"
      " current_setting('listen_addresses'), datcollate,"
      " current_setting('server_encoding')"
      " FROM pg_database WHERE datname = current_database()");
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(*settings, "idempotency\ton\ton\ton\t\tC.UTF-8\tUTF8");
  struct stat status {};
  ASSERT_EQ(stat(cluster->socket_folder().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700U);
}

TEST_F(EmbeddedClusterTest, PostgresNeverRunsAsRoot) {
  UseMadeCluster();
  std::unique_ptr<EmbeddedCluster> cluster = StartOrFail();
  ASSERT_NE(cluster, nullptr);
  const uid_t owner = OwnerOfProcess(cluster->postmaster_pid());
  if (geteuid() == 0) {
    EXPECT_NE(owner, 0U);
  } else {
    EXPECT_EQ(owner, geteuid());
  }
}

TEST_F(EmbeddedClusterTest, DataOutlivesAStop) {
  UseMadeCluster();
  std::unique_ptr<EmbeddedCluster> cluster = StartOrFail();
  ASSERT_NE(cluster, nullptr);
  ASSERT_TRUE(TempPostgres::RunAt(cluster->uri(),
                                  "CREATE TABLE kept AS SELECT 42 AS answer")
                  .ok());
  const pid_t first = cluster->postmaster_pid();
  EXPECT_TRUE(cluster->Stop().ok());
  EXPECT_FALSE(IsAlive(first));
  cluster = StartOrFail();
  ASSERT_NE(cluster, nullptr);
  const auto answer =
      TempPostgres::RunAt(cluster->uri(), "SELECT answer FROM kept");
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(*answer, "42");
}

TEST_F(EmbeddedClusterTest, SecondStartOnARunningFolderIsRefused) {
  UseMadeCluster();
  std::unique_ptr<EmbeddedCluster> cluster = StartOrFail();
  ASSERT_NE(cluster, nullptr);
  const auto second = EmbeddedCluster::Start(Options());
  ASSERT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()),
              AllOf(HasSubstr("in use by another running server"),
                    HasSubstr(absl::StrCat("process ", getpid())),
                    HasSubstr("--data_dir"), HasSubstr("--database")));
  EXPECT_TRUE(TempPostgres::RunAt(cluster->uri(), "SELECT 1").ok());
  EXPECT_TRUE(cluster->Stop().ok());
  EXPECT_NE(StartOrFail(), nullptr);
}

TEST_F(EmbeddedClusterTest, PostmasterOfAKilledOwnerIsAdoptedAndStopped) {
  UseMadeCluster();
  const pid_t helper = StartInHelper();
  ASSERT_GT(helper, 0);
  EXPECT_FALSE(EmbeddedCluster::Start(Options()).ok());
  KillHelper(helper);
  std::unique_ptr<EmbeddedCluster> cluster = StartOrFail();
  ASSERT_NE(cluster, nullptr);
  EXPECT_TRUE(cluster->adopted());
  EXPECT_TRUE(TempPostgres::RunAt(cluster->uri(), "SELECT 1").ok());
  const pid_t postmaster = cluster->postmaster_pid();
  EXPECT_TRUE(IsAlive(postmaster));
  EXPECT_TRUE(cluster->Stop().ok());
  EXPECT_FALSE(IsAlive(postmaster));
  EXPECT_FALSE(fs::exists(DataDir() + "/cluster/postmaster.pid"));
}

TEST_F(EmbeddedClusterTest, StalePostmasterFileDoesNotHinderTheStart) {
  UseMadeCluster();
  std::unique_ptr<EmbeddedCluster> cluster = StartOrFail();
  ASSERT_NE(cluster, nullptr);
  ASSERT_EQ(kill(cluster->postmaster_pid(), SIGKILL), 0);
  EXPECT_TRUE(cluster->Stop().ok());
  ASSERT_TRUE(fs::exists(DataDir() + "/cluster/postmaster.pid"));
  cluster = StartOrFail();
  ASSERT_NE(cluster, nullptr);
  EXPECT_FALSE(cluster->adopted());
  EXPECT_TRUE(TempPostgres::RunAt(cluster->uri(), "SELECT 1").ok());
}

TEST_F(EmbeddedClusterTest, SigintToOurProcessGroupLeavesTheDatabaseAlone) {
  UseMadeCluster();
  const pid_t helper = StartInHelper();
  ASSERT_GT(helper, 0);
  const std::string pid_file = ReadFile(DataDir() + "/cluster/postmaster.pid");
  const pid_t postmaster = std::stoi(pid_file);
  EXPECT_NE(getpgid(postmaster), getpgid(helper));
  ASSERT_EQ(kill(-helper, SIGINT), 0);
  ASSERT_EQ(kill(-helper, SIGHUP), 0);
  int wait_status = 0;
  ASSERT_EQ(waitpid(helper, &wait_status, 0), helper);
  EXPECT_TRUE(WIFSIGNALED(wait_status));
  std::unique_ptr<EmbeddedCluster> cluster = StartOrFail();
  ASSERT_NE(cluster, nullptr);
  EXPECT_EQ(cluster->postmaster_pid(), postmaster);
  EXPECT_TRUE(TempPostgres::RunAt(cluster->uri(), "SELECT 1").ok());
}

TEST_F(EmbeddedClusterTest, OtherMajorVersionIsRefusedWithTheRemedy) {
  UseMadeCluster();
  std::unique_ptr<EmbeddedCluster> cluster = StartOrFail();
  ASSERT_NE(cluster, nullptr);
  const int major = cluster->major_version();
  EXPECT_TRUE(cluster->Stop().ok());
  const std::string version_file = DataDir() + "/cluster/PG_VERSION";
  std::ofstream(version_file) << 9 << "\n";
  const auto refused = EmbeddedCluster::Start(Options());
  ASSERT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("made by PostgreSQL 9"), HasSubstr("pg_upgrade"),
                    HasSubstr(absl::StrCat("version ", major)),
                    HasSubstr("postgresql-9"), HasSubstr("--data_dir")));
  std::ofstream(version_file) << major << "\n";
  EXPECT_NE(StartOrFail(), nullptr);
}

TEST_F(EmbeddedClusterTest, ForeignFolderIsRefusedAndLeftAsItWas) {
  fs::create_directory(DataDir());
  std::ofstream(DataDir() + "/letter.txt") << "dear reader";
  const auto refused = EmbeddedCluster::Start(Options());
  ASSERT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("not empty"), HasSubstr("letter.txt"),
                    HasSubstr("--data_dir")));
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(DataDir())) {
    left.push_back(entry.path().filename());
  }
  EXPECT_THAT(left, testing::ElementsAre("letter.txt"));
  struct stat status {};
  ASSERT_EQ(stat(DataDir().c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, geteuid());
}

TEST_F(EmbeddedClusterTest, SomebodyElsesPostgresFolderIsRefused) {
  fs::create_directory(DataDir());
  std::ofstream(DataDir() + "/PG_VERSION") << "15\n";
  const auto refused = EmbeddedCluster::Start(Options());
  ASSERT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("did not make"), HasSubstr("--database")));
}

TEST_F(EmbeddedClusterTest, InterruptedInitdbIsBegunAnew) {
  fs::create_directories(DataDir() + "/cluster.new/base");
  std::ofstream(DataDir() + "/cluster.new/PG_VERSION") << "15\n";
  EXPECT_NE(StartOrFail(), nullptr);
  EXPECT_FALSE(fs::exists(DataDir() + "/cluster.new"));
}

TEST_F(EmbeddedClusterTest, MissingProgramsAreNamed) {
  EmbeddedCluster::Options options = Options();
  options.binaries = folder_->path();
  const auto refused = EmbeddedCluster::Start(std::move(options));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr(folder_->path()), HasSubstr("initdb")));
}

TEST_F(EmbeddedClusterTest, FolderThatPostgresCannotEnterIsExplained) {
  const std::string closed = folder_->path() + "/closed";
  // Root enters it all the same, PostgreSQL's user does not.
  ASSERT_EQ(mkdir(closed.c_str(), 0000), 0);
  EmbeddedCluster::Options options = Options();
  options.data_dir = closed + "/data";
  const auto refused = EmbeddedCluster::Start(std::move(options));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("ermission denied"), HasSubstr(closed)));
  if (geteuid() == 0) {
    EXPECT_THAT(
        std::string(refused.status().message()),
        AllOf(HasSubstr("must be able to enter"), HasSubstr("--data_dir")));
  }
  ASSERT_EQ(chmod(closed.c_str(), 0700), 0);
}

TEST_F(EmbeddedClusterTest, LongFolderGetsItsSocketElsewhere) {
  EmbeddedCluster::Options options = Options();
  options.data_dir = absl::StrCat(DataDir(), "/", std::string(120, 'x'));
  auto cluster = EmbeddedCluster::Start(std::move(options));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const std::string socket_folder = (*cluster)->socket_folder();
  EXPECT_THAT(socket_folder, testing::StartsWith("/tmp/idempotency-"));
  struct stat status {};
  ASSERT_EQ(stat(socket_folder.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700U);
  EXPECT_TRUE(TempPostgres::RunAt((*cluster)->uri(), "SELECT 1").ok());
  EXPECT_TRUE((*cluster)->Stop().ok());
  EXPECT_FALSE(fs::exists(socket_folder));
}

TEST_F(EmbeddedClusterTest, FolderNameMayHoldBlanksQuotesAndCommas) {
  EmbeddedCluster::Options options = Options();
  options.data_dir = folder_->path() + "/a b,\"c\" %41'd/";
  auto cluster = EmbeddedCluster::Start(std::move(options));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_TRUE(TempPostgres::RunAt((*cluster)->uri(), "SELECT 1").ok());
}

TEST_F(EmbeddedClusterTest, ServerThatCannotStartTellsWhatItsLogSays) {
  UseMadeCluster();
  EmbeddedCluster::Options options = Options();
  options.settings = {{"shared_buffers", "no number"}};
  const auto refused = EmbeddedCluster::Start(std::move(options));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("shared_buffers"));
  // Nothing is left that hinders the next start.
  EXPECT_NE(StartOrFail(), nullptr);
}

TEST_F(EmbeddedClusterTest, LogHoldsNoValueOfAFailedStatement) {
  UseMadeCluster();
  std::unique_ptr<EmbeddedCluster> cluster = StartOrFail();
  ASSERT_NE(cluster, nullptr);
  const std::string uri = cluster->uri();
  ASSERT_TRUE(TempPostgres::RunAt(uri,
                                  "CREATE TABLE t(k text PRIMARY KEY,"
                                  " n int CHECK (n > 0))")
                  .ok());
  const std::string insert = "INSERT INTO t VALUES ('canary-key', 1)";
  ASSERT_TRUE(TempPostgres::RunAt(uri, insert).ok());
  EXPECT_FALSE(TempPostgres::RunAt(uri, insert).ok());
  EXPECT_FALSE(
      TempPostgres::RunAt(uri, "INSERT INTO t VALUES ('canary-row', 0)").ok());
  EXPECT_FALSE(TempPostgres::RunAt(
                   uri,
                   "DO $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid());"
                   " PERFORM 'canary-block'; END $$")
                   .ok());
  EXPECT_TRUE(cluster->Stop().ok());
  const std::string log = ReadFile(cluster->log_file());
  EXPECT_THAT(log, HasSubstr("violates unique constraint"));
  EXPECT_THAT(log, Not(HasSubstr("canary")));
}

TEST_F(EmbeddedClusterTest, OpenSessionsDoNotDelayTheStop) {
  UseMadeCluster();
  std::unique_ptr<EmbeddedCluster> cluster = StartOrFail();
  ASSERT_NE(cluster, nullptr);
  const auto begin = std::chrono::steady_clock::now();
  const pid_t session = fork();
  if (session == 0) {
    TempPostgres::RunAt(cluster->uri(), "SELECT pg_sleep(600)").IgnoreError();
    _exit(0);
  }
  absl::StatusOr<std::string> sleeping = "0";
  while (sleeping.ok() && *sleeping == "0") {
    sleeping = TempPostgres::RunAt(
        cluster->uri(),
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'");
  }
  EXPECT_TRUE(cluster->Stop().ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  ASSERT_EQ(waitpid(session, nullptr, 0), session);
}

TEST_F(EmbeddedClusterTest, StoppedPostmasterIsStoppedByForceInTime) {
  UseMadeCluster();
  EmbeddedCluster::Options options = Options();
  options.stop_timeout = std::chrono::milliseconds(100);
  auto cluster = EmbeddedCluster::Start(std::move(options));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const pid_t postmaster = (*cluster)->postmaster_pid();
  ASSERT_EQ(kill(postmaster, SIGSTOP), 0);
  EXPECT_TRUE((*cluster)->Stop().ok());
  EXPECT_FALSE(IsAlive(postmaster));
  // Recovers, and frees the shared memory that the killed one left.
  EXPECT_NE(StartOrFail(), nullptr);
}

TEST_F(EmbeddedClusterTest, TemporaryServerIsGoneWithItsKilledTest) {
  int report[2];
  ASSERT_EQ(pipe(report), 0);
  const pid_t helper = fork();
  if (helper == 0) {
    auto postgres = TempPostgres::Make();
    const pid_t postmaster = postgres.ok() ? (*postgres)->postmaster_pid() : 0;
    if (write(report[1], &postmaster, sizeof(postmaster)) < 0) _exit(1);
    while (true) pause();
  }
  pid_t postmaster = 0;
  ASSERT_EQ(read(report[0], &postmaster, sizeof(postmaster)),
            static_cast<ssize_t>(sizeof(postmaster)));
  ASSERT_GT(postmaster, 0);
  const std::string folder =
      fs::read_symlink(absl::StrCat("/proc/", postmaster, "/cwd"));
  KillHelper(helper);
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while ((IsAlive(postmaster) || fs::exists(folder)) &&
         std::chrono::steady_clock::now() < deadline) {
    usleep(10000);
  }
  EXPECT_FALSE(IsAlive(postmaster));
  EXPECT_FALSE(fs::exists(folder));
  close(report[0]);
  close(report[1]);
}

SpawnOptions Program(std::vector<std::string> command) {
  SpawnOptions options;
  options.command = std::move(command);
  options.environment = {"PATH=/usr/bin:/bin"};
  return options;
}

TEST(ChildProcessTest, ProgramInheritsNoSignalStateOfItsStarter) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &all, &before), 0);
  const auto handler = signal(SIGPIPE, SIG_IGN);
  const auto result = RunProgram(
      Program({"/bin/grep", "-E", "SigBlk|SigIgn", "/proc/self/status"}),
      std::chrono::seconds(20));
  signal(SIGPIPE, handler);
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->output,
            "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

TEST(ChildProcessTest, ProgramInheritsNoOpenFileOfItsStarter) {
  const int open_file = open("/dev/null", O_RDONLY);
  ASSERT_GE(open_file, 0);
  ASSERT_EQ(dup2(open_file, 77), 77);
  const auto result = RunProgram(Program({"/bin/ls", "/proc/self/fd"}),
                                 std::chrono::seconds(20));
  close(open_file);
  close(77);
  ASSERT_TRUE(result.ok()) << result.status();
  // The fourth is the folder that is listed.
  EXPECT_EQ(result->output, "0\n1\n2\n3\n");
}

TEST(ChildProcessTest, ProgramThatTakesTooLongIsKilled) {
  const auto result =
      RunProgram(Program({"/bin/sleep", "600"}), std::chrono::milliseconds(50));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace idempotency
