// The metrics as a page: well formed, documented, without secrets, and there
// when they are needed most.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/integration/fault_calls.h"
#include "tests/integration/metrics_page.h"
#include "tests/integration/wire_fixture.h"
#include "tests/support/tcp_gate.h"
#include "tests/support/temp_folder.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// What promtool says to `text`, on both outputs, and its exit status.
struct Verdict {
  int status = -1;
  std::string output;
};
Verdict Promtool(const std::string& command, const std::string& text) {
  const auto folder = Require(TempFolder::Make());
  const std::string input = folder->path() + "/input";
  const std::string output = folder->path() + "/output";
  std::ofstream(input) << text;
  // Installed, or where tests/run.sh has put it.
  const std::string line = "PATH=\"$PATH:" IDEMPOTENCY_PROMTOOL_FOLDER
                           "\" promtool " +
                           command + " <" + input + " >" + output + " 2>&1";
  const int status = std::system(line.c_str());
  return {.status = status, .output = ReadFile(output)};
}

class MetricsServerTest : public WireTest {
 protected:
  static void SetUpTestSuite() {
    const auto database = TempPostgres::SharedDatabase();
    ASSERT_TRUE(database.ok()) << database.status();
    StartReplica(*database, {"--admin_listen=127.0.0.1:0"});
  }
  static MetricsPage Scrape(const Replica& replica) {
    return Require(MetricsPage::Get(AdminPortOf(replica)));
  }
};

TEST_F(MetricsServerTest, PromtoolFindsNothingToComplainAbout) {
  AddPolicy("odd \"name\\", "'1 s', '1 s', '1 s', 'hold', 'hold'");
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  Granted(claim);
  RecordOf(claim);
  Finalized(FinalizeOf(claim, 200));
  const MetricsPage page = Scrape(replica());
  EXPECT_THAT(page.text(), HasSubstr("policy=\"odd \\\"name\\\\\""));
  const Verdict verdict = Promtool("check metrics", page.text());
  EXPECT_EQ(verdict.status, 0);
  EXPECT_THAT(verdict.output, IsEmpty());
  // It would complain.
  EXPECT_NE(Promtool("check metrics", page.text() + "no_help 1\n").status, 0);
}

TEST_F(MetricsServerTest, TheReadmeNamesEveryFamilyAndNoOther) {
  const std::string readme = ReadFile(IDEMPOTENCY_README);
  const std::size_t begin = readme.find("\n## Metrics\n");
  ASSERT_NE(begin, std::string::npos);
  const std::string section =
      readme.substr(begin, readme.find("\n## ", begin + 1) - begin);
  std::set<std::string> documented;
  const std::regex name("`((grpc_server|idempotency|process|exposer)_\\w+)`");
  for (std::sregex_iterator it(section.begin(), section.end(), name), end;
       it != end; ++it) {
    documented.insert((*it)[1]);
  }
  const std::vector<std::string> served = Scrape(replica()).Families();
  // The table of evidence is no metric.
  documented.erase("idempotency_conflicts");
  EXPECT_EQ(documented, std::set<std::string>(served.begin(), served.end()));
}

TEST_F(MetricsServerTest, TheReadmesAlertRulesAreValid) {
  const std::string readme = ReadFile(IDEMPOTENCY_README);
  const std::string fence = "```yaml\n";
  const std::size_t begin = readme.find(fence + "groups:");
  ASSERT_NE(begin, std::string::npos);
  const std::size_t rules = begin + fence.size();
  const std::string text =
      readme.substr(rules, readme.find("```", rules) - rules);
  const Verdict verdict = Promtool("check rules /dev/stdin", text);
  EXPECT_EQ(verdict.status, 0) << verdict.output;
  EXPECT_THAT(verdict.output, HasSubstr("4 rules found"));
  // What they look at is there.
  const MetricsPage page = Scrape(replica());
  const std::regex name("idempotency_[a-z_]+(?=[{ ])");
  int found = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), name), end; it != end;
       ++it, ++found) {
    const std::string family = it->str();
    EXPECT_THAT(page.text(), HasSubstr("\n" + family)) << family;
  }
  EXPECT_GE(found, 5);
}

TEST_F(MetricsServerTest, NothingThatCallersSendIsShown) {
  Replica::Options options;
  options.database = database() +
                     (database().find('?') == std::string::npos ? "?" : "&") +
                     "password=canary-password";
  options.environment = {"IDEMPOTENCY_ADMIN_LISTEN=127.0.0.1:0"};
  const auto replica = Require(Replica::Start(std::move(options)));
  v1::ClaimRequest claim = ClaimFor("canary-key");
  claim.set_scope("canary-scope");
  claim.set_request_hash("canary-request-hash");
  claim.set_owner("canary-owner");
  claim.set_checkpoint("canary-checkpoint");
  EXPECT_TRUE(SendTo(*replica, claim)->has_claimed());
  EXPECT_TRUE(SendTo(*replica, ByAnother(claim))->has_in_progress());
  EXPECT_TRUE(
      SendTo(*replica, FinalizeOf(claim, 200, "canary-body")).status.ok());
  EXPECT_FALSE(
      SendTo(*replica, FinalizeOf(claim, 200, "canary-2")).status.ok());
  claim.set_policy("canary-policy");
  claim.set_key("canary-key-2");
  EXPECT_TRUE(IsRefusal(SendTo(*replica, claim),
                        grpc::StatusCode::INVALID_ARGUMENT, "UNKNOWN_POLICY",
                        "policy"));
  const std::string text = Scrape(*replica).text();
  EXPECT_THAT(text, Not(HasSubstr("canary")));
  EXPECT_THAT(text, Not(HasSubstr(claim.claim_token())));
  EXPECT_THAT(text, HasSubstr("idempotency_conflicts_total{status=\"below_500"
                              "\"} 1\n"));
}

TEST_F(MetricsServerTest, ADatabaseThatIsAwayHoldsNoScrapeUp) {
  TempPostgres& postgres = *Require(TempPostgres::Shared());
  const auto gate = Require(TcpGate::Make(postgres.port()));
  Replica::Options options;
  options.database = ThroughPort(database(), gate->port());
  options.flags = {"--admin_listen=127.0.0.1:0"};
  const auto replica = Require(Replica::Start(std::move(options)));
  const auto errors = [&](const MetricsPage& page) {
    return page.Sum("idempotency_errors_total{call=\"Claim\",reason=\"STORE_") +
           page.Sum("idempotency_errors_total{call=\"Claim\",reason=\"OUTC");
  };
  gate->BlackHole();
  const ClaimReply reply =
      SendTo(*replica, ClaimFor(NewKey()), milliseconds(500));
  EXPECT_FALSE(reply.status.ok());
  const steady_clock::time_point begin = steady_clock::now();
  EXPECT_EQ(Scrape(*replica).Sum("grpc_server_started_total"), 1);
  EXPECT_LT(steady_clock::now() - begin, seconds(2));

  gate->Refuse();
  ASSERT_TRUE(replica->WaitUntilNotServing().ok());
  EXPECT_FALSE(SendTo(*replica, ClaimFor(NewKey())).status.ok());
  const MetricsPage page = Scrape(*replica);
  EXPECT_EQ(page.Value("idempotency_serving"), 0);
  EXPECT_GE(errors(page), 1);
  EXPECT_GE(page.Value("idempotency_setbacks_total{class=\"unavailable\"}"), 1);
  EXPECT_GE(page.Sum("idempotency_statement_errors_total"), 1);

  gate->Open();
  ASSERT_TRUE(replica->WaitUntilServing().ok());
  EXPECT_EQ(Scrape(*replica).Value("idempotency_serving"), 1);
}

TEST_F(MetricsServerTest, ADrainingServerIsScrapedToTheEnd) {
  Replica::Options options;
  options.database = database();
  options.flags = {"--admin_listen=127.0.0.1:0", "--drain_delay=2s"};
  const auto replica = Require(Replica::Start(std::move(options)));
  const int port = AdminPortOf(*replica);
  replica->Terminate();
  ASSERT_TRUE(replica->WaitForLogLine("draining").ok());
  WaitUntil([&] {
    return Require(MetricsPage::Get(port)).Value("idempotency_serving") == 0;
  });
  const auto exit = replica->WaitForExit();
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(*exit, (ServerProcess::Exit{.code = 0, .signal = 0}));
  EXPECT_FALSE(MetricsPage::Get(port).ok());
}

TEST_F(MetricsServerTest, ManyScrapesAtOnceAreAllAnswered) {
  const int port = AdminPortOf(replica());
  std::atomic<int> answered{0};
  std::vector<std::thread> scrapers;
  for (int i = 0; i < 10; ++i) {
    scrapers.emplace_back([&] {
      for (int round = 0; round < 10; ++round) {
        answered += MetricsPage::Get(port).ok() ? 1 : 0;
      }
    });
  }
  for (int i = 0; i < 50; ++i) Granted(ClaimFor(NewKey()));
  for (std::thread& scraper : scrapers) scraper.join();
  EXPECT_EQ(answered, 100);
}

TEST_F(MetricsServerTest, NothingElseIsServed) {
  const int port = AdminPortOf(replica());
  for (const char* path : {"/", "/../etc/passwd", "/debug"}) {
    EXPECT_FALSE(MetricsPage::Get(port, path).ok()) << path;
  }
}

}  // namespace
}  // namespace idempotency
