// The server as a program: its manual, its settings and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <chrono>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "server/core/limits.h"
#include "tests/integration/wire_fixture.h"
#include "tests/support/port.h"
#include "tests/support/server_process.h"

namespace idempotency {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kSomeDatabase[] =
    "--database=postgresql://nobody@127.0.0.1:1/none";

struct Ended {
  int code = -1;
  std::string output;
};

std::unique_ptr<ServerProcess> StartServer(
    std::vector<std::string> arguments,
    std::vector<std::string> environment = {}) {
  auto process = ServerProcess::Start({.program = IDEMPOTENCY_SERVER_PROGRAM,
                                       .arguments = std::move(arguments),
                                       .environment = std::move(environment),
                                       .output_file = {}});
  EXPECT_TRUE(process.ok()) << process.status();
  return process.ok() ? *std::move(process) : nullptr;
}

// Runs the server where it is expected to end by itself.
Ended RunToEnd(std::vector<std::string> arguments,
               std::vector<std::string> environment = {}) {
  const auto process =
      StartServer(std::move(arguments), std::move(environment));
  if (process == nullptr) return {};
  const auto exit = process->WaitForExit(seconds(20));
  EXPECT_TRUE(exit.ok()) << exit.status() << process->Output();
  return {.code = exit.ok() ? exit->code : -1, .output = process->Output()};
}

// Default and text of each flag in the manual.
struct FlagText {
  std::string default_value;
  std::string text;
};

std::map<std::string, FlagText> ReadManual(const std::string& manual) {
  std::map<std::string, FlagText> flags;
  std::istringstream lines(manual);
  FlagText* current = nullptr;
  const std::string marker = "  (default: ";
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find(marker);
    if (line.rfind("  --", 0) == 0 && at != std::string::npos) {
      current = &flags[line.substr(4, at - 4)];
      current->default_value =
          line.substr(at + marker.size(), line.size() - at - marker.size() - 1);
    } else if (current != nullptr) {
      current->text += line + "\n";
    }
  }
  return flags;
}

TEST(ManualTest, ExplainsEverySettingWithItsDefault) {
  const std::map<std::string, std::string> defaults = {
      {"listen", "127.0.0.1:50051"},
      {"admin_listen", "empty"},
      {"database", "empty"},
      {"data_dir", "empty"},
      {"migrate", "false"},
      {"sweep_only", "false"},
      {"database_pooled", "false"},
      {"database_citus", "false"},
      {"require_durability", "none"},
      {"lanes", "1"},
      {"queue_items_max", std::to_string(limits::kQueueItemsMax)},
      {"queue_wait_max", "1s"},
      {"body_bytes_max", "1048576"},
      {"replay_cache_bytes", "67108864"},
      {"reply_bytes_max", "268435456"},
      {"deadline_max", "30s"},
      {"store_patience", "2s"},
      {"downstream_namespace", "empty"},
      {"reaper_batch", "5000"},
      {"reaper_pause", "5s"},
      {"conflict_retention", "2160h"},
      {"tls_certificate", "empty"},
      {"tls_key", "empty"},
      {"tls_client_ca", "empty"},
      {"allow_plaintext", "false"},
      {"reflection", "true"},
      {"max_connection_age", "0"},
      {"drain_delay", "1s"},
      {"drain_timeout", "10s"},
  };
  const Ended help = RunToEnd({"--help"});
  EXPECT_EQ(help.code, 0);
  const std::map<std::string, FlagText> flags = ReadManual(help.output);
  for (const auto& [name, default_value] : defaults) {
    ASSERT_EQ(flags.count(name), 1u) << name;
    EXPECT_EQ(flags.at(name).default_value, default_value) << name;
    EXPECT_GT(flags.at(name).text.size(), 60u) << name;
  }
  EXPECT_EQ(flags.size(), defaults.size());
  EXPECT_THAT(flags.at("body_bytes_max").text, HasSubstr("bytes"));
  EXPECT_THAT(help.output,
              AllOf(HasSubstr("IDEMPOTENCY_"), HasSubstr("500ms, 30s, 10m"),
                    HasSubstr("SIGTERM")));
  std::istringstream lines(help.output);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80u) << line;
  }
}

TEST(ManualTest, IsShownWhateverElseIsWrong) {
  for (const std::string argument : {"--help", "-help", "-h"}) {
    const Ended help = RunToEnd({"--lanes=0", argument});
    EXPECT_EQ(help.code, 0) << argument;
    EXPECT_THAT(help.output, HasSubstr("--database"));
  }
}

TEST(BadSettingTest, IsRefusedByItsNameAsFlagAndInTheEnvironment) {
  const std::map<std::string, std::vector<std::string>> bad = {
      {"listen",
       {"", "nonsense", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999",
        "127.0.0.1:x", ":50051", "[::1]"}},
      {"migrate", {"perhaps"}},
      {"database_pooled", {"2"}},
      {"database_citus", {"maybe"}},
      {"lanes", {"0", "65", "-1", "many", "1.5", ""}},
      {"queue_items_max", {"0", "1000001", "9223372036854775808"}},
      {"queue_wait_max", {"-1ms", "601s", "late"}},
      {"body_bytes_max", {"-1", "3145729", "1MiB"}},
      {"replay_cache_bytes", {"-1", "68719476737", "64MiB"}},
      {"deadline_max", {"0", "99ms", "601s", "5", "-1s", "inf"}},
      {"store_patience", {"-1ms", "61s", "soon"}},
      {"downstream_namespace",
       {"payments", "00000000-0000-0000-0000-000000000000"}},
      {"reaper_batch", {"0", "100001"}},
      {"reaper_pause", {"9ms", "3601s"}},
      {"conflict_retention", {"0", "999ms"}},
      {"tls_certificate", {"/nowhere/server.crt"}},
      {"tls_key", {"/nowhere/server.key"}},
      {"tls_client_ca", {"/nowhere/ca.crt"}},
      {"allow_plaintext", {"sure"}},
      {"reflection", {"off course"}},
      {"max_connection_age", {"-1s"}},
      {"drain_delay", {"-1s", "601s"}},
      {"drain_timeout", {"-1s", "601s"}},
  };
  for (const auto& [name, values] : bad) {
    std::string variable = "IDEMPOTENCY_" + name;
    for (char& c : variable) c = static_cast<char>(std::toupper(c));
    for (const std::string& value : values) {
      const Ended flag = RunToEnd({kSomeDatabase, "--" + name + "=" + value});
      EXPECT_EQ(flag.code, 2) << name << "=" << value << ": " << flag.output;
      EXPECT_THAT(flag.output, HasSubstr("--" + name));
    }
    const Ended environment =
        RunToEnd({kSomeDatabase}, {variable + "=" + values.back()});
    EXPECT_EQ(environment.code, 2) << variable << environment.output;
    EXPECT_THAT(environment.output,
                testing::AnyOf(HasSubstr(variable), HasSubstr("--" + name)));
  }
}

TEST(BadSettingTest, WhatIsNoSettingIsRefused) {
  for (const std::string argument :
       {"--nope", "--nope=1", "-listen=127.0.0.1:1", "serve", "--", "",
        "--flagfile=/dev/null", "--lanesx=1", "--lanes"}) {
    const Ended ended = RunToEnd({kSomeDatabase, argument});
    EXPECT_EQ(ended.code, 2) << argument << ": " << ended.output;
    EXPECT_THAT(ended.output,
                HasSubstr(argument.substr(0, argument.find('='))));
  }
}

TEST(BadSettingTest, ADatabaseThatLibpqCannotReadEndsTheServer) {
  const Ended ended = RunToEnd({"--database=http://u:hush@host/db"});
  EXPECT_EQ(ended.code, 2) << ended.output;
  EXPECT_THAT(ended.output,
              AllOf(HasSubstr("libpq URI"), testing::Not(HasSubstr("hush"))));
}

TEST(ListenTest, PlaintextBeyondLoopbackNeedsAWord) {
  for (const std::string address :
       {"0.0.0.0:50051", "[::]:50051", "192.0.2.1:50051", "example.org:50051",
        "127.0.0.1.example.org:50051"}) {
    const Ended refused = RunToEnd({kSomeDatabase, "--listen=" + address});
    EXPECT_EQ(refused.code, 2) << address;
    EXPECT_THAT(refused.output,
                AllOf(HasSubstr("--listen"), HasSubstr("--tls_certificate"),
                      HasSubstr("--allow_plaintext")));
    // The private database is for one machine, whatever is said.
    const Ended private_database =
        RunToEnd({"--listen=" + address, "--allow_plaintext"});
    EXPECT_EQ(private_database.code, 2) << address;
    EXPECT_THAT(private_database.output,
                AllOf(HasSubstr("--listen"), HasSubstr("--database")));
  }
  const int port = FreePort();
  const auto allowed =
      StartServer({kSomeDatabase, "--listen=0.0.0.0:" + std::to_string(port),
                   "--allow_plaintext"});
  EXPECT_TRUE(allowed->WaitForPort(port, seconds(20)).ok());
}

TEST(ListenTest, LoopbackHasSeveralNames) {
  for (const std::string host : {"127.0.0.1", "localhost", "127.1.2.3"}) {
    const std::string port = std::to_string(FreePort());
    const auto process =
        StartServer({kSomeDatabase, "--listen=" + host + ":" + port});
    const auto line = process->WaitForLine("listening", seconds(20));
    ASSERT_TRUE(line.ok()) << line.status();
    EXPECT_THAT(*line, HasSubstr("\"port\":\"" + port + "\""));
  }
}

TEST(ListenTest, PortZeroIsAnyFreePortAndIsSaid) {
  const auto process = StartServer({kSomeDatabase, "--listen=127.0.0.1:0"});
  const auto line = process->WaitForLine("listening", seconds(20));
  ASSERT_TRUE(line.ok()) << line.status();
  const std::string marker = "\"port\":\"";
  const std::size_t at = line->find(marker);
  ASSERT_NE(at, std::string::npos) << *line;
  const int port = std::stoi(line->substr(at + marker.size()));
  EXPECT_GT(port, 0);
  EXPECT_TRUE(process->WaitForPort(port, seconds(5)).ok());
}

TEST(ListenTest, APortInUseEndsTheSecondServer) {
  const int port = FreePort();
  const std::string listen = "--listen=127.0.0.1:" + std::to_string(port);
  const auto first = StartServer({kSomeDatabase, listen});
  ASSERT_TRUE(first->WaitForPort(port, seconds(20)).ok());
  const Ended second = RunToEnd({kSomeDatabase, listen});
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.output,
              AllOf(HasSubstr("127.0.0.1:" + std::to_string(port)),
                    HasSubstr("in use"), HasSubstr("ERROR")));
  EXPECT_TRUE(first->running());
}

TEST(ListenTest, AnAdminPortInUseEndsTheSecondServer) {
  const int port = FreePort();
  const std::string address = "127.0.0.1:" + std::to_string(port);
  const auto first = StartServer(
      {kSomeDatabase, "--listen=127.0.0.1:0", "--admin_listen=" + address});
  ASSERT_TRUE(first->WaitForPort(port, seconds(20)).ok());
  const Ended second = RunToEnd(
      {kSomeDatabase, "--listen=127.0.0.1:0", "--admin_listen=" + address});
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.output, AllOf(HasSubstr("metrics on " + address),
                                   HasSubstr("in use"), HasSubstr("ERROR")));
  EXPECT_TRUE(first->running());
}

TEST(ListenTest, AnAdminAddressIsOneOfIpv4WithAPort) {
  for (const std::string address :
       {"9464", ":9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536",
        "127.0.0.1:80s", "127.0.0.1:9464,0.0.0.0:9465", "[::1]:9464",
        "unix:/tmp/admin"}) {
    const Ended ended = RunToEnd(
        {kSomeDatabase, "--listen=127.0.0.1:0", "--admin_listen=" + address});
    EXPECT_EQ(ended.code, 2) << address;
    EXPECT_THAT(ended.output, HasSubstr("--admin_listen"));
  }
}

// Counts and names of policies are no secrets.
TEST(ListenTest, MetricsMayBeServedBeyondLoopback) {
  const int port = FreePort();
  const auto process =
      StartServer({kSomeDatabase, "--listen=127.0.0.1:0",
                   "--admin_listen=0.0.0.0:" + std::to_string(port)});
  EXPECT_TRUE(process->WaitForPort(port, seconds(20)).ok());
}

TEST(SettingTest, AFlagGoesBeforeTheEnvironment) {
  const int by_environment = FreePort();
  const int by_flag = FreePort();
  const std::string variable =
      "IDEMPOTENCY_LISTEN=127.0.0.1:" + std::to_string(by_environment);
  {
    const auto process = StartServer({kSomeDatabase}, {variable});
    EXPECT_TRUE(process->WaitForPort(by_environment, seconds(20)).ok());
  }
  const auto process = StartServer(
      {kSomeDatabase, "--listen=127.0.0.1:" + std::to_string(by_flag)},
      {variable});
  EXPECT_TRUE(process->WaitForPort(by_flag, seconds(20)).ok());
  EXPECT_FALSE(process->WaitForPort(by_environment, seconds(0)).ok());
}

TEST(SettingTest, AFlagTakesItsValueAsTheNextWordToo) {
  const int port = FreePort();
  const auto process = StartServer(
      {"--database", "postgresql://nobody@127.0.0.1:1/none", "--listen",
       "127.0.0.1:" + std::to_string(port), "--migrate"});
  EXPECT_TRUE(process->WaitForPort(port, seconds(20)).ok());
}

// With real databases.
class DatabaseSettingTest : public WireTest {
 protected:
  static std::string NewDatabase() {
    const auto uri = TempPostgres::SharedDatabase();
    EXPECT_TRUE(uri.ok()) << uri.status();
    return uri.ok() ? *uri : "";
  }
  static std::unique_ptr<Replica> StartOn(Replica::Options options) {
    auto replica = Replica::Start(std::move(options));
    EXPECT_TRUE(replica.ok()) << replica.status();
    return replica.ok() ? *std::move(replica) : nullptr;
  }
};

TEST_F(DatabaseSettingTest, EverythingMayComeFromTheEnvironment) {
  Replica::Options options;
  options.migrate = false;
  options.environment = {"IDEMPOTENCY_DATABASE=" + NewDatabase(),
                         "IDEMPOTENCY_MIGRATE=true",
                         "IDEMPOTENCY_BODY_BYTES_MAX=4"};
  const auto replica = StartOn(std::move(options));
  ASSERT_NE(replica, nullptr);
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  EXPECT_TRUE(SendTo(*replica, claim)->has_claimed());
  EXPECT_EQ(SendTo(*replica, FinalizeOf(claim, 200, "12345"))->result(),
            v1::FinalizeResponse::RESULT_RECORDED_WITHOUT_BODY);
}

TEST_F(DatabaseSettingTest, TheNamespaceOfDownstreamKeysCanBeGiven) {
  Replica::Options options;
  options.database = database();
  options.flags = {
      "--downstream_namespace=6BA7B810-9dad-11d1-80b4-00c04fd430c8"};
  const auto replica = StartOn(std::move(options));
  ASSERT_NE(replica, nullptr);
  v1::ClaimRequest claim = ClaimFor("order-4711");
  claim.set_scope("payments");
  EXPECT_EQ(SendTo(*replica, claim)->claimed().downstream_key(),
            "e769267f-e6ea-50d8-9c16-f4af8cb09950");
  EXPECT_TRUE(
      SendTo(*replica,
             ReleaseOf(claim, v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED))
          ->released());
  EXPECT_EQ(SendTo(*replica, ByAnother(claim))->claimed().downstream_key(),
            "a79328de-6b68-5cfc-894d-8127e327936b");
}

TEST_F(DatabaseSettingTest, TheFirstLineNamesTheDatabase) {
  EXPECT_THAT(replica().LogLines().front(),
              AllOf(HasSubstr("127.0.0.1"), HasSubstr("database"),
                    Not(HasSubstr("postgresql://"))));
}

TEST_F(DatabaseSettingTest, WithoutItsSchemaItDoesNotServeAndNamesTheRemedy) {
  Replica::Options options;
  options.database = NewDatabase();
  options.migrate = false;
  options.flags = {"--store_patience=200ms"};
  options.wait_until_serving = false;
  const auto waiting = StartOn(options);
  ASSERT_NE(waiting, nullptr);
  const auto line = waiting->WaitForLogLine("--migrate", seconds(20));
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(*line, HasSubstr("not serving"));
  EXPECT_TRUE(waiting->WaitUntilNotServing().ok());
  EXPECT_TRUE(IsRefusal(SendTo(*waiting, ClaimFor(NewKey())),
                        grpc::StatusCode::UNAVAILABLE, "STORE_UNAVAILABLE"));

  // Once somebody migrates the database, it serves without a restart.
  options.migrate = true;
  options.wait_until_serving = true;
  const auto migrating = StartOn(options);
  ASSERT_NE(migrating, nullptr);
  EXPECT_TRUE(waiting->WaitUntilServing(seconds(20)).ok());
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  EXPECT_TRUE(SendTo(*migrating, claim)->has_claimed());
  EXPECT_TRUE(SendTo(*waiting, ByAnother(claim))->has_in_progress());
}

TEST_F(DatabaseSettingTest, ANewerMajorStepIsNotServed) {
  Replica::Options options;
  options.database = NewDatabase();
  ASSERT_NE(StartOn(options), nullptr);
  const auto newer = TempPostgres::RunAt(
      options.database,
      "INSERT INTO idempotency_schema (version, name, major) VALUES (999999, "
      "'of_tomorrow', true)");
  ASSERT_TRUE(newer.ok()) << newer.status();
  options.wait_until_serving = false;
  options.migrate = false;
  const auto replica = StartOn(options);
  ASSERT_NE(replica, nullptr);
  const auto line = replica->WaitForLogLine("not serving", seconds(20));
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(*line, HasSubstr("999999"));
  EXPECT_TRUE(replica->WaitUntilNotServing().ok());
}

}  // namespace
}  // namespace idempotency
