// Servers that are told to end, and servers that are killed: with their own
// database and with one that others share.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/integration/fault_calls.h"
#include "tests/integration/load.h"
#include "tests/support/replica.h"
#include "tests/support/tcp_gate.h"
#include "tests/support/temp_folder.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// What a busy machine may add to a bound.
constexpr seconds kSlack{5};

milliseconds Since(steady_clock::time_point begin) {
  return std::chrono::duration_cast<milliseconds>(steady_clock::now() - begin);
}

class DrainTest : public ::testing::Test {
 protected:
  void SetUp() override {
    database_ = Require(TempPostgres::SharedDatabase());
    witness_ = StartReplica(database_);
  }

  std::string database_;
  // Another replica, which says what is recorded.
  std::unique_ptr<Replica> witness_;
};

TEST_F(DrainTest, DrainUnderLoadLosesNothingAndEndsWithinItsBound) {
  const std::unique_ptr<Replica> replica = StartReplica(
      database_, {"--drain_delay=1s", "--drain_timeout=5s", "--lanes=2"});
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < 4; ++i) channels.push_back(replica->NewChannel());
  Load::Options options;
  options.leaves_a_draining_server = true;
  Load load(channels, options);
  ASSERT_TRUE(load.WaitForAcknowledged(200, seconds(30)));

  const steady_clock::time_point begin = steady_clock::now();
  replica->Terminate();
  RequireOk(replica->WaitUntilNotServing(seconds(1)));
  // It goes on until load balancers had the time to notice.
  EXPECT_EQ(load.unserved(), 0);
  EXPECT_TRUE(load.WaitForAcknowledged(1, seconds(1)));
  const auto exit = Require(replica->WaitForExit());
  EXPECT_EQ(exit.code, 0) << replica->Log();
  EXPECT_GE(Since(begin), seconds(1));
  EXPECT_LE(Since(begin), seconds(1 + 5) + kSlack);
  const auto late = Send(replica->stub(), ClaimOf(RandomKey()));
  EXPECT_TRUE(absl::IsUnavailable(late.status())) << late.status();

  load.Stop();
  std::cout << load.acknowledged().size() << " responses acknowledged\n";
  EXPECT_THAT(load.wrong(), IsEmpty());
  // Every call was finished or refused; none ended in between.
  EXPECT_EQ(load.unserved(), 0);
  EXPECT_THAT(MissingReplays(witness_->stub(), load.acknowledged()), IsEmpty());
}

TEST_F(DrainTest, CallInHandIsFinishedWhileNewOnesAreRefused) {
  const std::unique_ptr<TcpGate> gate =
      Require(TcpGate::Make(Require(TempPostgres::Shared())->port()));
  const std::unique_ptr<Replica> replica =
      StartReplica(ThroughPort(database_, gate->port()),
                   {"--drain_delay=0s", "--drain_timeout=20s"});
  const v1::ClaimRequest claim = ClaimOf(RandomKey());
  ASSERT_EQ(Decided(Send(replica->stub(), claim)), "Claimed");
  gate->BlackHole();
  const v1::FinalizeRequest finalize = FinalizeOf(claim, 201, "in hand");
  std::string decided;
  std::thread caller(
      [&] { decided = Decided(Send(replica->stub(), finalize, seconds(30))); });
  // Held back before the database: the call is in hand.
  ASSERT_TRUE(replica->process().running());
  while (Decided(Send(replica->stub(), LookupOf(claim), milliseconds(300))) !=
         "DEADLINE_EXCEEDED") {
  }
  replica->Terminate();
  ASSERT_TRUE(replica->WaitForLogLine("draining").ok());
  // Whoever comes now is turned away, over an old or a new connection.
  std::string refused;
  do {
    refused = Decided(Send(replica->stub(), ClaimOf(RandomKey()), seconds(1)));
  } while (refused == "DEADLINE_EXCEEDED");
  EXPECT_THAT(refused, testing::AnyOf("DRAINING", HasSubstr("UNAVAILABLE")));
  gate->Open();
  caller.join();
  EXPECT_EQ(decided, "RESULT_RECORDED");
  EXPECT_EQ(Require(replica->WaitForExit()).code, 0) << replica->Log();
  EXPECT_THAT(MissingReplays(witness_->stub(), {{claim, finalize.response()}}),
              IsEmpty());
}

TEST_F(DrainTest, CallThatCannotBeFinishedDoesNotHoldTheDrainUp) {
  Require(TempPostgres::RunAt(
      database_,
      "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
      "PERFORM pg_sleep(2); RETURN NEW; END $$; CREATE TRIGGER slow BEFORE "
      "INSERT ON idempotency_records FOR EACH ROW WHEN (NEW.scope = 'slow') "
      "EXECUTE FUNCTION slow()"));
  const std::unique_ptr<Replica> replica =
      StartReplica(database_, {"--drain_delay=0s", "--drain_timeout=500ms"});
  v1::ClaimRequest claim = ClaimOf(RandomKey());
  claim.set_scope("slow");
  std::string decided;
  std::thread caller(
      [&] { decided = Decided(Send(replica->stub(), claim, seconds(30))); });
  while (
      Require(TempPostgres::RunAt(database_,
                                  "SELECT count(*) FROM pg_stat_activity WHERE "
                                  "wait_event = 'PgSleep'")) == "0") {
    std::this_thread::sleep_for(milliseconds(10));
  }
  const steady_clock::time_point begin = steady_clock::now();
  replica->Terminate();
  const auto exit = Require(replica->WaitForExit());
  EXPECT_EQ(exit.code, 0) << replica->Log();
  // The statement under way is never cancelled, only waited for.
  EXPECT_LE(Since(begin), seconds(2) + kSlack);
  caller.join();
  EXPECT_THAT(decided, Not("Claimed"));
}

TEST_F(DrainTest, KilledServerNeedsNothingToGoOn) {
  const std::unique_ptr<Replica> replica =
      StartReplica(database_, {"--lanes=2"});
  std::vector<Recorded> acknowledged;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<grpc::Channel>> channels;
    for (int i = 0; i < 4; ++i) channels.push_back(replica->NewChannel());
    Load load(channels, {});
    ASSERT_TRUE(load.WaitForAcknowledged(50, seconds(30)));
    replica->Kill();
    RequireOk(replica->Restart());
    // The callers go on with what they had begun.
    EXPECT_TRUE(load.WaitForAcknowledged(50, seconds(30)));
    load.Stop();
    EXPECT_THAT(load.wrong(), IsEmpty());
    const std::vector<Recorded> more = load.acknowledged();
    acknowledged.insert(acknowledged.end(), more.begin(), more.end());
  }
  std::cout << acknowledged.size() << " responses acknowledged\n";
  EXPECT_THAT(MissingReplays(replica->stub(), acknowledged), IsEmpty());
  EXPECT_THAT(MissingReplays(witness_->stub(), acknowledged), IsEmpty());
}

TEST_F(DrainTest, ServerOutOfFileDescriptorsEndsToBeStartedAgain) {
  const std::unique_ptr<Replica> replica =
      StartReplica(database_, {"--drain_delay=0s"});
  const v1::ClaimRequest claim = ClaimOf(RandomKey());
  ASSERT_EQ(Decided(Send(replica->stub(), claim)), "Claimed");
  rlimit before{};
  ASSERT_EQ(prlimit(replica->process().pid(), RLIMIT_NOFILE, nullptr, &before),
            0);
  EXPECT_EQ(before.rlim_cur, std::min<rlim_t>(before.rlim_max, 1'048'576));
  const rlimit few{.rlim_cur = 3, .rlim_max = before.rlim_max};
  ASSERT_EQ(prlimit(replica->process().pid(), RLIMIT_NOFILE, &few, nullptr), 0);

  // gRPC would never accept again, however many there were later.
  const auto stub = v1::IdempotencyService::NewStub(replica->NewChannel());
  Send(*stub, claim, seconds(1)).status().IgnoreError();
  EXPECT_EQ(Require(replica->WaitForExit()).code, 1) << replica->Log();
  EXPECT_THAT(replica->Log(), HasSubstr("no connection is accepted any more"));

  RequireOk(replica->Restart());
  EXPECT_EQ(Decided(Send(replica->stub(), claim)), "Claimed");
}

// Making a database takes long: the tests share one, and each leaves its server
// running.
class PrivateDatabaseTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = Require(TempFolder::Make()).release();
    replica_ = Require(Replica::Start(Options())).release();
  }

  static void TearDownTestSuite() {
    delete replica_;
    delete folder_;
  }

  static Replica::Options Options() {
    Replica::Options options;
    options.migrate = false;
    options.flags = {"--data_dir=" + folder_->path() + "/data",
                     "--drain_delay=0s"};
    return options;
  }

  static Recorded RecordOne() {
    const v1::ClaimRequest claim = ClaimOf(RandomKey());
    EXPECT_EQ(Decided(Send(replica_->stub(), claim)), "Claimed");
    const v1::FinalizeRequest finalize = FinalizeOf(claim, 201, "kept");
    EXPECT_EQ(Decided(Send(replica_->stub(), finalize)), "RESULT_RECORDED");
    return {claim, finalize.response()};
  }

  static inline TempFolder* folder_ = nullptr;
  static inline Replica* replica_ = nullptr;
};

TEST_F(PrivateDatabaseTest, RecordsOutliveARestart) {
  const Recorded recorded = RecordOne();
  replica_->Terminate();
  ASSERT_EQ(Require(replica_->WaitForExit()).code, 0) << replica_->Log();
  RequireOk(replica_->Restart());
  EXPECT_THAT(replica_->Log(), HasSubstr(R"("adopted":"no")"));
  EXPECT_THAT(MissingReplays(replica_->stub(), {recorded}), IsEmpty());
}

TEST_F(PrivateDatabaseTest, SecondServerOnTheFolderIsRefusedWithTheRemedy) {
  Replica::Options options = Options();
  options.wait_until_serving = false;
  const std::unique_ptr<Replica> second = Require(Replica::Start(options));
  const auto exit = Require(second->WaitForExit());
  EXPECT_EQ(exit.code, 1);
  EXPECT_THAT(second->Log(), HasSubstr("in use"));
  EXPECT_THAT(second->Log(), HasSubstr("--data_dir"));
  // The first one is none the worse.
  EXPECT_THAT(MissingReplays(replica_->stub(), {RecordOne()}), IsEmpty());
}

TEST_F(PrivateDatabaseTest, DatabaseOfAKilledServerIsAdopted) {
  const Recorded recorded = RecordOne();
  const v1::ClaimRequest running = ClaimOf(RandomKey());
  ASSERT_EQ(Decided(Send(replica_->stub(), running)), "Claimed");
  replica_->Kill();
  RequireOk(replica_->Restart());
  EXPECT_THAT(replica_->Log(), HasSubstr(R"("adopted":"yes")"));
  EXPECT_THAT(MissingReplays(replica_->stub(), {recorded}), IsEmpty());
  EXPECT_EQ(Decided(Send(replica_->stub(), ByAnother(running))), "InProgress");
  // An adopted database is stopped like one's own.
  replica_->Terminate();
  EXPECT_EQ(Require(replica_->WaitForExit()).code, 0) << replica_->Log();
  EXPECT_FALSE(std::filesystem::exists(folder_->path() +
                                       "/data/cluster/postmaster.pid"));
  RequireOk(replica_->Restart());
}

}  // namespace
}  // namespace idempotency
