// TcpGate, TempPostgres and ServerProcess, which the fault tests rest on.

#include "tests/support/tcp_gate.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <libpq-fe.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/support/port.h"
#include "tests/support/server_process.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

constexpr seconds kLong{20};

struct Finish {
  void operator()(PGconn* connection) const { PQfinish(connection); }
};
using Session = std::unique_ptr<PGconn, Finish>;

struct Clear {
  void operator()(PGresult* result) const { PQclear(result); }
};

bool Succeeds(const Session& session, const std::string& sql) {
  const std::unique_ptr<PGresult, Clear> result(
      PQexec(session.get(), sql.c_str()));
  const ExecStatusType status = PQresultStatus(result.get());
  return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
}

// Whether anything, an end too, arrives for the session within `timeout`.
bool Hears(const Session& session, milliseconds timeout) {
  pollfd fd{PQsocket(session.get()), POLLIN, 0};
  return poll(&fd, 1, static_cast<int>(timeout.count())) > 0;
}

class TcpGateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<TempPostgres*> postgres = TempPostgres::Shared();
    ASSERT_TRUE(postgres.ok()) << postgres.status();
    postgres_ = *postgres;
    absl::StatusOr<std::string> database = TempPostgres::SharedDatabase();
    ASSERT_TRUE(database.ok()) << database.status();
    direct_uri_ = *database;
    database_ = database->substr(database->rfind('/') + 1);
    absl::StatusOr<std::unique_ptr<TcpGate>> gate =
        TcpGate::Make(postgres_->port());
    ASSERT_TRUE(gate.ok()) << gate.status();
    gate_ = *std::move(gate);
    Direct("CREATE TABLE t(k text PRIMARY KEY)");
  }

  Session Connect() const {
    return Session(PQconnectdb(
        absl::StrCat("postgresql://idempotency@127.0.0.1:", gate_->port(), "/",
                     database_, "?connect_timeout=2")
            .c_str()));
  }

  std::string Direct(const std::string& sql) const {
    const auto answer = TempPostgres::RunAt(direct_uri_, sql);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.value_or("");
  }

  TempPostgres* postgres_ = nullptr;
  std::string direct_uri_;
  std::string database_;
  std::unique_ptr<TcpGate> gate_;
};

TEST_F(TcpGateTest, OpenGateForwardsAndCounts) {
  const Session session = Connect();
  ASSERT_EQ(PQstatus(session.get()), CONNECTION_OK)
      << PQerrorMessage(session.get());
  EXPECT_TRUE(Succeeds(session, "INSERT INTO t VALUES ('a')"));
  EXPECT_EQ(Direct("SELECT count(*) FROM t"), "1");
  const std::string text(3000000, 'x');
  EXPECT_TRUE(Succeeds(session, "SELECT '" + text + "'"));
  // Bytes arrive before they are counted.
  EXPECT_TRUE(gate_->WaitUntil(
      [](const TcpGate::Counters& c) { return c.reply_bytes > 3000000; },
      kLong));
  const TcpGate::Counters counters = gate_->counters();
  EXPECT_EQ(counters.connections_accepted, 1);
  EXPECT_EQ(counters.connections_open, 1);
  EXPECT_GT(counters.request_bytes, 3000000);
  EXPECT_EQ(counters.swallowed_bytes, 0);
}

TEST_F(TcpGateTest, ClosedSessionIsClosedBehindTheGateToo) {
  { const Session session = Connect(); }
  EXPECT_TRUE(gate_->WaitUntil(
      [](const TcpGate::Counters& c) {
        return c.connections_accepted == 1 && c.connections_open == 0;
      },
      kLong));
}

TEST_F(TcpGateTest, RefusingGateEndsSessionsUntilItIsOpenedAgain) {
  const Session session = Connect();
  gate_->Refuse();
  EXPECT_FALSE(Succeeds(session, "SELECT 1"));
  const Session refused = Connect();
  EXPECT_NE(PQstatus(refused.get()), CONNECTION_OK);
  EXPECT_THAT(PQerrorMessage(refused.get()), HasSubstr("refused"));
  gate_->Open();
  EXPECT_EQ(PQstatus(Connect().get()), CONNECTION_OK);
}

TEST_F(TcpGateTest, CutEndsSessionsAtOnceAndLetsNewOnesIn) {
  const Session session = Connect();
  gate_->CutAll();
  EXPECT_EQ(gate_->counters().connections_open, 0);
  EXPECT_TRUE(Hears(session, kLong));
  EXPECT_FALSE(Succeeds(session, "SELECT 1"));
  EXPECT_TRUE(Succeeds(Connect(), "SELECT 1"));
}

TEST_F(TcpGateTest, BlackHoleHoldsBytesBackUntilItIsOpened) {
  const Session session = Connect();
  gate_->BlackHole();
  const TcpGate::Counters before = gate_->counters();
  ASSERT_EQ(PQsendQuery(session.get(), "INSERT INTO t VALUES ('held')"), 1);
  EXPECT_FALSE(Hears(session, milliseconds(100)));
  EXPECT_EQ(gate_->counters(), before);
  EXPECT_EQ(Direct("SELECT count(*) FROM t"), "0");
  EXPECT_NE(PQstatus(Connect().get()), CONNECTION_OK);
  gate_->Open();
  EXPECT_TRUE(Hears(session, kLong));
  EXPECT_TRUE(Succeeds(session, "SELECT 1"));
  EXPECT_EQ(Direct("SELECT count(*) FROM t"), "1");
}

TEST_F(TcpGateTest, SwallowedReplyLeavesTheServersWorkDone) {
  const Session session = Connect();
  gate_->SwallowReplies(true);
  ASSERT_EQ(PQsendQuery(session.get(), "INSERT INTO t VALUES ('lost')"), 1);
  EXPECT_TRUE(gate_->WaitUntil(
      [](const TcpGate::Counters& c) { return c.swallowed_bytes > 0; }, kLong));
  EXPECT_EQ(Direct("SELECT k FROM t"), "lost");
  EXPECT_FALSE(Hears(session, milliseconds(50)));
  gate_->CutAll();
  EXPECT_TRUE(Hears(session, kLong));
  EXPECT_FALSE(Succeeds(session, "SELECT 1"));
}

TEST_F(TcpGateTest, RequestIsCommittedAndItsReplyCutOff) {
  const Session session = Connect();
  gate_->CutAfterNextRequest();
  EXPECT_FALSE(Succeeds(session, "INSERT INTO t VALUES ('committed')"));
  EXPECT_EQ(PQstatus(session.get()), CONNECTION_BAD);
  EXPECT_TRUE(gate_->WaitForCuts(1, kLong));
  EXPECT_EQ(Direct("SELECT k FROM t"), "committed");
  const Session next = Connect();
  EXPECT_TRUE(Succeeds(next, "SELECT 1"));
  EXPECT_EQ(gate_->counters().cuts, 1);
}

TEST_F(TcpGateTest, CutWaitsForAllOfALongAnswer) {
  const Session session = Connect();
  gate_->CutAfterNextRequest();
  EXPECT_FALSE(Succeeds(session,
                        "SELECT repeat('x', 3000000);"
                        "INSERT INTO t VALUES ('after')"));
  EXPECT_EQ(Direct("SELECT k FROM t"), "after");
  // The gate counts when it has cut.
  EXPECT_TRUE(gate_->WaitUntil(
      [](const TcpGate::Counters& c) { return c.swallowed_bytes > 3'000'000; },
      kLong));
}

TEST_F(TcpGateTest, CutPicksTheRequestThatHoldsTheBytes) {
  const Session first = Connect();
  const Session second = Connect();
  TcpGate::Cut cut;
  cut.request_contains = "needle";
  gate_->CutAfterNextRequest(cut);
  EXPECT_TRUE(Succeeds(first, "INSERT INTO t VALUES ('hay')"));
  EXPECT_FALSE(Succeeds(second, "INSERT INTO t VALUES ('needle')"));
  EXPECT_TRUE(Succeeds(first, "INSERT INTO t VALUES ('needle2')"));
  EXPECT_EQ(Direct("SELECT k FROM t ORDER BY k"), "hay\nneedle\nneedle2");
  EXPECT_EQ(gate_->counters().cuts, 1);
}

TEST_F(TcpGateTest, CutAsksTheGivenPredicateAboutTheReply) {
  const Session session = Connect();
  std::string seen;
  TcpGate::Cut cut;
  cut.answered = [&seen](std::string_view reply) {
    seen = std::string(reply);
    return true;
  };
  gate_->CutAfterNextRequest(cut);
  EXPECT_FALSE(Succeeds(session, "INSERT INTO t VALUES ('x')"));
  ASSERT_TRUE(gate_->WaitForCuts(1, kLong));
  EXPECT_THAT(seen, HasSubstr("INSERT 0 1"));
}

TEST_F(TcpGateTest, DelayHoldsBothDirectionsInOrder) {
  const Session session = Connect();
  gate_->Delay(milliseconds(60), milliseconds(40));
  const auto begin = steady_clock::now();
  EXPECT_TRUE(Succeeds(session, "SELECT 1"));
  EXPECT_GE(steady_clock::now() - begin, milliseconds(100));
  EXPECT_TRUE(Succeeds(session, "INSERT INTO t VALUES ('a')"));
  gate_->Open();
  EXPECT_TRUE(Succeeds(session, "SELECT 1"));
  EXPECT_EQ(Direct("SELECT k FROM t"), "a");
}

TEST_F(TcpGateTest, ConnectionIsCutRightBehindAByteOfTheReply) {
  const Session session = Connect();
  constexpr std::int64_t kByte = 1'234'567;
  gate_->EndAtByte(TcpGate::Way::kReplies, kByte, TcpGate::End::kReset);
  const std::int64_t before = gate_->counters().reply_bytes;
  EXPECT_FALSE(Succeeds(session, "SELECT repeat('x', 3000000)"));
  EXPECT_EQ(PQstatus(session.get()), CONNECTION_BAD);
  EXPECT_TRUE(gate_->WaitForCuts(1, kLong));
  EXPECT_EQ(gate_->counters().reply_bytes, before + kByte);
  EXPECT_TRUE(Succeeds(Connect(), "SELECT 1"));
}

TEST_F(TcpGateTest, RequestThatIsCutBeforeItsLastByteIsNotCarriedOut) {
  const Session session = Connect();
  const std::string request = "INSERT INTO t VALUES ('half')";
  // A query has a type, a length and a closing zero around it.
  const auto last = static_cast<std::int64_t>(1 + 4 + request.size() + 1);
  gate_->EndAtByte(TcpGate::Way::kRequests, last - 1, TcpGate::End::kReset);
  const std::int64_t before = gate_->counters().request_bytes;
  EXPECT_FALSE(Succeeds(session, request));
  EXPECT_TRUE(gate_->WaitForCuts(1, kLong));
  EXPECT_EQ(gate_->counters().request_bytes, before + last - 1);
  EXPECT_EQ(Direct("SELECT count(*) FROM t"), "0");
}

TEST_F(TcpGateTest, HalfClosedReplyEndsWhileRequestsAreStillCarriedOut) {
  const Session session = Connect();
  gate_->HalfClose(TcpGate::Way::kReplies);
  EXPECT_TRUE(Hears(session, kLong));
  // libpq takes such a session for over: the message is made by hand.
  const std::string sql = "INSERT INTO t VALUES ('late')";
  std::string query("Q\0\0\0", 4);
  query += static_cast<char>(4 + sql.size() + 1);
  query += sql + '\0';
  const ssize_t sent =
      send(PQsocket(session.get()), query.data(), query.size(), MSG_NOSIGNAL);
  ASSERT_EQ(sent, static_cast<ssize_t>(query.size()));
  EXPECT_TRUE(gate_->WaitUntil(
      [](const TcpGate::Counters& c) { return c.swallowed_bytes > 0; }, kLong));
  EXPECT_EQ(Direct("SELECT k FROM t"), "late");
  EXPECT_EQ(gate_->counters().connections_open, 1);
}

TEST_F(TcpGateTest, HalfClosedRequestsLetTheServerEndTheSession) {
  const Session session = Connect();
  gate_->HalfClose(TcpGate::Way::kRequests);
  EXPECT_TRUE(Hears(session, kLong));
  EXPECT_FALSE(Succeeds(session, "INSERT INTO t VALUES ('a')"));
  EXPECT_EQ(Direct("SELECT count(*) FROM t"), "0");
}

TEST_F(TcpGateTest, HalfCloseAtAByteLetsThatMuchThrough) {
  const Session session = Connect();
  constexpr std::int64_t kByte = 100'000;
  gate_->EndAtByte(TcpGate::Way::kReplies, kByte, TcpGate::End::kHalfClose);
  const std::int64_t before = gate_->counters().reply_bytes;
  EXPECT_FALSE(Succeeds(session, "SELECT repeat('x', 3000000)"));
  EXPECT_TRUE(gate_->WaitForCuts(1, kLong));
  EXPECT_EQ(gate_->counters().reply_bytes, before + kByte);
}

TEST_F(TcpGateTest, StalledGateGoesOnByItself) {
  const Session session = Connect();
  const auto begin = steady_clock::now();
  gate_->Stall(milliseconds(300));
  EXPECT_TRUE(Succeeds(session, "INSERT INTO t VALUES ('a')"));
  EXPECT_GE(steady_clock::now() - begin, milliseconds(300));
  EXPECT_EQ(Direct("SELECT k FROM t"), "a");
  gate_->Stall(seconds(600));
  gate_->Open();
  EXPECT_TRUE(Succeeds(Connect(), "SELECT 1"));
}

TEST_F(TcpGateTest, ThrottledGateTakesItsTimeAndLosesNothing) {
  const Session session = Connect();
  gate_->Throttle(200'000);
  const auto begin = steady_clock::now();
  EXPECT_TRUE(Succeeds(session, "SELECT repeat('x', 100000)"));
  EXPECT_GE(steady_clock::now() - begin, milliseconds(500));
  gate_->Open();
  EXPECT_TRUE(Succeeds(session, "SELECT repeat('x', 3000000)"));
}

TEST_F(TcpGateTest, ServerThatDoesNotListenResetsTheClient) {
  absl::StatusOr<std::unique_ptr<TcpGate>> gate = TcpGate::Make(FreePort());
  ASSERT_TRUE(gate.ok()) << gate.status();
  const Session session(PQconnectdb(
      absl::StrCat("postgresql://x@127.0.0.1:", (*gate)->port(), "/x")
          .c_str()));
  EXPECT_EQ(PQstatus(session.get()), CONNECTION_BAD);
}

TEST_F(TcpGateTest, ManySessionsAndCutsAtOnceLeaveTheGateWorking) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 20;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this] {
      for (int round = 0; round < kRounds; ++round) {
        const Session session = Connect();
        Succeeds(session, "SELECT 1");
      }
    });
  }
  for (int i = 0; i < 50; ++i) {
    gate_->CutAll();
    gate_->Refuse();
    gate_->Open();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Succeeds(Connect(), "SELECT 1"));
}

TEST(TempPostgresTest, ServerIsRestartedWithItsDataAtTheSamePort) {
  auto postgres = TempPostgres::Make();
  ASSERT_TRUE(postgres.ok()) << postgres.status();
  TempPostgres& server = **postgres;
  const auto uri = server.CreateDatabase("mine");
  ASSERT_TRUE(uri.ok()) << uri.status();
  ASSERT_TRUE(
      TempPostgres::RunAt(*uri, "CREATE TABLE t AS SELECT 7 AS n").ok());
  for (const auto mode :
       {TempPostgres::StopMode::kFast, TempPostgres::StopMode::kImmediate}) {
    ASSERT_TRUE(server.Stop(mode).ok());
    EXPECT_FALSE(TempPostgres::RunAt(*uri, "SELECT 1").ok());
    const absl::Status started = server.Start();
    ASSERT_TRUE(started.ok()) << started;
    EXPECT_EQ(TempPostgres::RunAt(*uri, "SELECT n FROM t").value_or(""), "7");
  }
}

TEST(TempPostgresTest, PausedServerAnswersOnlyWhenResumed) {
  auto postgres = TempPostgres::Make({.fsync = false, .settings = {}});
  ASSERT_TRUE(postgres.ok()) << postgres.status();
  const Session session(PQconnectdb((*postgres)->Uri("postgres").c_str()));
  ASSERT_EQ(PQstatus(session.get()), CONNECTION_OK);
  const absl::Status paused = (*postgres)->Pause();
  ASSERT_TRUE(paused.ok()) << paused;
  ASSERT_EQ(PQsendQuery(session.get(), "SELECT 1"), 1);
  EXPECT_FALSE(Hears(session, milliseconds(100)));
  (*postgres)->Resume();
  EXPECT_TRUE(Hears(session, kLong));
}

TEST(TempPostgresTest, SharedDatabasesAreApart) {
  const auto first = TempPostgres::SharedDatabase();
  const auto second = TempPostgres::SharedDatabase();
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE(TempPostgres::RunAt(*first, "CREATE TABLE t()").ok());
  EXPECT_TRUE(TempPostgres::RunAt(*second, "CREATE TABLE t()").ok());
  const auto error = TempPostgres::RunAt(*second, "SELECT * FROM absent");
  EXPECT_THAT(std::string(error.status().message()), HasSubstr("42P01"));
  EXPECT_EQ(TempPostgres::RunAt(*second,
                                "SELECT 1, NULL UNION SELECT 2, 'b'"
                                " ORDER BY 1")
                .value_or(""),
            "1\t\n2\tb");
}

TEST(ServerProcessTest, OutputIsKeptAndTheExitIsTold) {
  auto process = ServerProcess::Start(
      {.program = "/bin/sh",
       .arguments = {"-c", "echo \"hello $NAME\"; echo oops >&2; exit 3"},
       .environment = {"NAME=world"},
       .output_file = ""});
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_EQ((*process)->WaitForLine("hello").value_or(""), "hello world");
  EXPECT_EQ((*process)->WaitForExit(kLong).value_or(ServerProcess::Exit{}),
            (ServerProcess::Exit{.code = 3, .signal = 0}));
  EXPECT_EQ((*process)->Output(), "hello world\noops\n");
  EXPECT_EQ((*process)->WaitForLine("absent").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(ServerProcessTest, SignalsReachTheProgram) {
  auto process = ServerProcess::Start(
      {.program = "/bin/sh",
       .arguments = {"-c",
                     "trap 'echo caught; exit 0' TERM; echo ready;"
                     "while :; do sleep 0.05; done"},
       .environment = {},
       .output_file = ""});
  ASSERT_TRUE(process.ok()) << process.status();
  ASSERT_TRUE((*process)->WaitForLine("ready").ok());
  (*process)->Pause();
  (*process)->Terminate();
  EXPECT_EQ((*process)->WaitForExit(milliseconds(100)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  (*process)->Resume();
  EXPECT_TRUE((*process)->WaitForLine("caught").ok());
  EXPECT_EQ((*process)->WaitForExit(kLong).value_or(ServerProcess::Exit{}),
            (ServerProcess::Exit{.code = 0, .signal = 0}));
}

TEST(ServerProcessTest, ProgramAndItsGroupAreKilledWithTheObject) {
  std::string child;
  pid_t shell = 0;
  {
    auto process = ServerProcess::Start(
        {.program = "/bin/sh",
         .arguments = {"-c", "sleep 600 & echo pid $!; wait"},
         .environment = {},
         .output_file = ""});
    ASSERT_TRUE(process.ok()) << process.status();
    const auto line = (*process)->WaitForLine("pid ");
    ASSERT_TRUE(line.ok()) << line.status();
    child = line->substr(4);
    shell = (*process)->pid();
    EXPECT_TRUE((*process)->running());
  }
  EXPECT_EQ(kill(shell, 0), -1);
  const auto deadline = steady_clock::now() + kLong;
  const pid_t orphan = std::stoi(child);
  const auto command = absl::StrCat("/proc/", orphan, "/cmdline");
  while (steady_clock::now() < deadline) {
    FILE* file = fopen(command.c_str(), "r");
    if (file == nullptr) break;
    const bool ended = fgetc(file) == EOF;
    fclose(file);
    if (ended) break;
  }
  EXPECT_LT(steady_clock::now(), deadline);
}

TEST(ServerProcessTest, MissingProgramIsAnError) {
  const auto process = ServerProcess::Start({.program = "/no/such/program",
                                             .arguments = {},
                                             .environment = {},
                                             .output_file = ""});
  ASSERT_FALSE(process.ok());
  EXPECT_THAT(std::string(process.status().message()),
              HasSubstr("/no/such/program"));
}

TEST(FreePortTest, PortsDiffer) {
  std::set<int> ports;
  for (int i = 0; i < 200; ++i) ports.insert(FreePort());
  EXPECT_EQ(ports.size(), 200U);
}

}  // namespace
}  // namespace idempotency
