// Behind a real PgBouncer in transaction mode, where each statement may come
// to another session of PostgreSQL.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <pqxx/pqxx>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/status.h"
#include "client/transaction/once_in_transaction.h"
#include "tests/integration/fault_calls.h"
#include "tests/integration/load.h"
#include "tests/support/port.h"
#include "tests/support/replica.h"
#include "tests/support/server_process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr seconds kLong{20};

// A PgBouncer in front of the PostgreSQL at that port, fewer sessions than the
// servers have connections.
class PgBouncer {
 public:
  explicit PgBouncer(int postgres_port)
      : folder_(Require(TempFolder::Make())), port_(FreePort()) {
    std::ofstream(folder_->path() + "/users.txt") << "\"idempotency\" \"\"\n";
    std::ofstream(folder_->path() + "/pgbouncer.ini")
        << "[databases]\n* = host=127.0.0.1 port=" << postgres_port
        << " user=idempotency\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        << "listen_port = " << port_ << "\nunix_socket_dir =\n"
        << "auth_type = any\nauth_file = " << folder_->path()
        << "/users.txt\npool_mode = transaction\ndefault_pool_size = 2\n";
    Start();
  }

  int port() const { return port_; }

  // All its connections are gone at once.
  void Restart() {
    process_.reset();
    Start();
  }

 private:
  void Start() {
    ServerProcess::Options options;
    options.program = PGBOUNCER_PROGRAM;
    options.arguments = {folder_->path() + "/pgbouncer.ini"};
    if (geteuid() == 0) {
      options.arguments.insert(options.arguments.begin(), {"-u", "nobody"});
    }
    process_ = Require(ServerProcess::Start(std::move(options)));
    RequireOk(process_->WaitForPort(port_));
  }

  const std::unique_ptr<TempFolder> folder_;
  const int port_;
  std::unique_ptr<ServerProcess> process_;
};

class PooledTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    database_ = new std::string(Require(TempPostgres::SharedDatabase()));
    bouncer_ =
        std::make_unique<PgBouncer>(Require(TempPostgres::Shared())->port())
            .release();
  }
  static void TearDownTestSuite() {
    delete bouncer_;
    delete database_;
  }

  static std::string PooledUri() {
    return ThroughPort(*database_, bouncer_->port());
  }

  // A replica behind the pooler. The first one finds a role without the
  // settings, and is given them by the commands that it logs itself.
  static std::unique_ptr<Replica> StartPooled() {
    Replica::Options options;
    options.database = PooledUri();
    options.flags = {"--database_pooled"};
    options.wait_until_serving = role_has_settings_;
    auto replica = Require(Replica::Start(options));
    if (!role_has_settings_) {
      GiveSettings(Require(replica->WaitForLogLine("ALTER ROLE")));
      role_has_settings_ = true;
      RequireOk(replica->WaitUntilServing());
    }
    return replica;
  }

  static inline std::string* database_ = nullptr;
  static inline PgBouncer* bouncer_ = nullptr;

 private:
  static void GiveSettings(const std::string& line) {
    const std::size_t begin = line.find("ALTER ROLE");
    std::string commands = line.substr(begin, line.find("\"}") - begin);
    for (std::size_t at; (at = commands.find("\\\"")) != std::string::npos;) {
      commands.erase(at, 1);
    }
    Require(TempPostgres::RunAt(*database_, commands));
    // The pooler's sessions are older than the settings.
    bouncer_->Restart();
  }

  static inline bool role_has_settings_ = false;
};

TEST_F(PooledTest, OneOfManyIsGrantedInEveryRound) {
  const auto first = StartPooled();
  const auto second = StartPooled();
  for (int round = 0; round < 20; ++round) {
    const v1::ClaimRequest claim = ClaimOf(RandomKey());
    std::atomic<int> granted{0};
    std::atomic<int> in_progress{0};
    std::vector<std::thread> callers;
    for (int i = 0; i < 16; ++i) {
      Stub& stub = i % 2 == 0 ? first->stub() : second->stub();
      callers.emplace_back([&, request = ByAnother(claim)] {
        const std::string decided = Decided(Send(stub, request));
        granted += decided == "Claimed" ? 1 : 0;
        in_progress += decided == "InProgress" ? 1 : 0;
      });
    }
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(granted, 1);
    EXPECT_EQ(in_progress, 15);
  }
}

TEST_F(PooledTest, ARestartOfThePoolerLosesNothing) {
  const auto first = StartPooled();
  const auto second = StartPooled();
  Load load({first->channel(), second->channel()}, {.threads = 8});
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(load.WaitForAcknowledged(100, kLong));
    bouncer_->Restart();
  }
  ASSERT_TRUE(load.WaitForAcknowledged(100, kLong));
  load.Stop();
  EXPECT_THAT(load.wrong(), IsEmpty());
  EXPECT_THAT(MissingReplays(second->stub(), load.acknowledged()), IsEmpty());
}

TEST_F(PooledTest, AServicesOwnTransactionRecordsWithItsRows) {
  const auto replica = StartPooled();
  const std::string key = RandomKey();
  const v1::ClaimRequest claim = ClaimOf(key);
  const Operation operation = {.scope = claim.scope(),
                               .key = claim.key(),
                               .request_hash = claim.request_hash()};
  OnceInTransaction once({.pooled = true});
  pqxx::connection connection(PooledUri());
  int executed = 0;
  // Each transaction may run in another session.
  for (int i = 0; i < 10; ++i) {
    pqxx::work work(connection);
    const auto result = once.Run(work, operation, [&](const v1::Claimed&) {
      ++executed;
      return MakeResponse(201, "order");
    });
    ASSERT_TRUE(result.has_response()) << result.status;
    work.commit();
  }
  EXPECT_EQ(executed, 1);
  EXPECT_EQ(Decided(Send(replica->stub(), claim)), "Replay");
}

}  // namespace
}  // namespace idempotency
