// The sidecar as a process: its file, its signals, its admin page.
#include <signal.h>

#include <atomic>
#include <thread>

#include "tests/integration/grpc_shop.h"
#include "tests/integration/metrics_page.h"
#include "tests/integration/proxy_fixture.h"
#include "tests/support/port.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class ProxyProcessTest : public ProxyTest {
 protected:
  // What a sidecar with these flags ends with, and says.
  static std::pair<int, std::string> Run(
      std::vector<std::string> flags,
      std::vector<std::string> environment = {}) {
    const auto process =
        ServerProcess::Start({.program = SIDECAR_PROGRAM,
                              .arguments = std::move(flags),
                              .environment = std::move(environment),
                              .output_file = {}});
    EXPECT_TRUE(process.ok()) << process.status();
    const auto exit = (*process)->WaitForExit();
    EXPECT_TRUE(exit.ok()) << exit.status();
    return {exit.ok() ? exit->code : -1, (*process)->Output()};
  }
  std::pair<int, std::string> RunWith(const std::string& rules) const {
    WriteRules(rules);
    return Run({"--listen=127.0.0.1:0", "--upstream=127.0.0.1:1",
                "--config=" + config_file()});
  }
  int ExitCode() const {
    const auto exit = sidecar().process().WaitForExit();
    EXPECT_TRUE(exit.ok()) << exit.status();
    return exit.ok() ? exit->code : -1;
  }
  MetricsPage Metrics() const {
    const auto page = MetricsPage::Get(sidecar().admin_port());
    EXPECT_TRUE(page.ok()) << page.status();
    return *page;
  }
  HttpAnswer Health() const {
    return Ask(sidecar().admin_port(),
               {.method = "GET", .target = "/healthz", .body = ""});
  }
};

TEST_F(ProxyProcessTest, ABadFileAtTheStartIsStatus2AndSaysWhere) {
  const auto [code, output] = RunWith(RuleOf({{"wait", "soon"}}).dump());

  EXPECT_EQ(code, 2);
  EXPECT_THAT(output, AllOf(HasSubstr(config_file()),
                            HasSubstr("http.routes[0].wait")));
}

TEST_F(ProxyProcessTest, RulesOfAHalfThatDoesNotListenAreStatus2) {
  const auto [code, output] =
      RunWith(R"({"grpc": {"routes": [{"methods": "/*", "scope": "shop"}]}})");

  EXPECT_EQ(code, 2);
  EXPECT_THAT(output, HasSubstr("--grpc_listen"));
}

TEST_F(ProxyProcessTest, BadFlagsAreStatus2AndNamed) {
  const auto says = [](std::vector<std::string> flags, const char* what) {
    const auto [code, output] = Run(std::move(flags));
    EXPECT_EQ(code, 2);
    EXPECT_THAT(output, HasSubstr(what));
  };

  says({}, "--listen");
  says({"--listen=127.0.0.1:0", "--config=x"}, "--upstream");
  says({"--speed=1"}, "--speed");
  says({"--connections_max", "0"}, "--connections_max");
  says({"--listen=8080", "--upstream=127.0.0.1:1", "--config=none"}, "none");
  const auto [code, output] = Run({}, {"IDEMPOTENCY_PROXY_IDLE_TIMEOUT=never"});
  EXPECT_EQ(code, 2);
  EXPECT_THAT(output, HasSubstr("IDEMPOTENCY_PROXY_IDLE_TIMEOUT"));
}

TEST_F(ProxyProcessTest, ABadCaOfTheCoordinatorIsStatus2) {
  WriteRules("{}");
  const auto [code, output] =
      Run({"--listen=127.0.0.1:0", "--upstream=127.0.0.1:1",
           "--config=" + config_file(), "--coordinator_ca=/no/such.pem"});

  EXPECT_EQ(code, 2);
  EXPECT_THAT(output, HasSubstr("/no/such.pem"));
}

TEST_F(ProxyProcessTest, AnAddressThatIsTakenIsStatus1) {
  WriteRules("{}");
  const auto [code, output] =
      Run({"--listen=127.0.0.1:" + std::to_string(service().port()),
           "--upstream=127.0.0.1:1", "--config=" + config_file()});

  EXPECT_EQ(code, 1);
  EXPECT_THAT(output, HasSubstr("cannot be listened on"));
}

TEST_F(ProxyProcessTest, AChangedFileCountsWithoutRestart) {
  StartProxy();
  EXPECT_EQ(Ask(port(), {}).status, 201);

  WriteRules(RuleOf({{"required", true}}).dump());

  WaitUntil([&] { return Ask(port(), {}).status == 400; });
  EXPECT_EQ(Metrics().Value("idempotency_proxy_rules_total{result=\"used\"}"),
            2);
}

TEST_F(ProxyProcessTest, AFileThatTurnsBadLeavesTheRulesAsTheyWere) {
  StartProxy({{"required", true}});

  WriteRules(R"({"http": {"routes": [{"match": "POST /payments"}]}})");
  sidecar().process().Signal(SIGHUP);

  const auto line = sidecar().process().WaitForLine("bad rules");
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(*line, HasSubstr("http.routes[0].scope"));
  EXPECT_THAT(Ask(port(), {}), IsProblem(400, "key-missing"));
  EXPECT_EQ(
      Metrics().Value("idempotency_proxy_rules_total{result=\"refused\"}"), 1);
}

TEST_F(ProxyProcessTest, HealthAndMetricsAreOnTheAdminPage) {
  StartProxy();
  const std::string key = NewKey();
  Pay(key);
  Pay(key);
  Pay(key, "other");
  Ask(port(), {});

  EXPECT_THAT(Health(), IsAnswer(200, "ok\n"));
  const MetricsPage page = Metrics();
  const auto answers = [&](const std::string& answer,
                           const std::string& scope) {
    return page.Value("idempotency_proxy_http_requests_total{answer=\"" +
                      answer + "\",scope=\"" + scope + "\"}");
  };
  EXPECT_EQ(answers("executed", kScope), 1);
  EXPECT_EQ(answers("replayed", kScope), 1);
  EXPECT_EQ(answers("refused", kScope), 1);
  EXPECT_EQ(answers("passed", ""), 1);
  EXPECT_EQ(
      Ask(sidecar().admin_port(), {.method = "GET", .target = "/", .body = ""})
          .status,
      404);
}

TEST_F(ProxyProcessTest, SigtermLetsRequestsInHandEndAndTakesNoMore) {
  StartProxy();
  const std::string key = NewKey();
  const TestConnection idle(port());
  idle.Send("GET /idle HTTP/1.1\r\nHost: a\r\n\r\n");
  idle.Read("}");
  service().Seen();
  service().Next({{{"do", "hold"}}});
  HttpAnswer answer;

  std::thread caller([&] { answer = Pay(key); });
  WaitUntil([&] { return !service().Seen().empty(); });
  sidecar().process().Terminate();
  // Idle connections end, and new ones are refused.
  idle.Read();
  WaitUntil([&] { return Ask(port(), {}).status == 0; });
  service().Release();
  caller.join();

  EXPECT_THAT(answer, IsAnswer(200, "firstlast"));
  EXPECT_EQ(answer.header("connection"), "close");
  EXPECT_EQ(ExitCode(), 0);
  EXPECT_EQ(RecordAt(key).state(), v1::Record::STATE_FINALIZED);
}

TEST_F(ProxyProcessTest, WhatIsCutByTheDrainIsSettledAsUnknown) {
  StartProxy({}, {"--drain_timeout=100ms"});
  service().Next({{{"do", "hold"}}});
  const std::string key = NewKey();

  std::thread caller([&] { Pay(key); });
  WaitUntil([&] { return !service().Seen().empty(); });
  sidecar().process().Terminate();
  caller.join();
  EXPECT_EQ(ExitCode(), 0);
  service().Release();

  EXPECT_EQ(RecordAt(key).state(), v1::Record::STATE_IN_DOUBT);
}

TEST_F(ProxyProcessTest, AfterASidecarThatWasKilledTheNextAttemptIsTold) {
  StartProxy({{"lease", "500ms"}});
  service().Next({{{"do", "hold"}}});
  const std::string key = NewKey();

  std::thread caller([&] { Pay(key); });
  WaitUntil([&] { return !service().Seen().empty(); });
  sidecar().process().Kill();
  caller.join();
  service().Release();
  StartProxy();

  WaitUntil([&] { return Pay(key).status == 201; });
  const std::vector<Json> seen = service().Seen();
  ASSERT_THAT(seen, SizeIs(1));
  EXPECT_THAT(HeaderOf(seen[0], "Idempotency-Abandoned"),
              HasSubstr("reason=lease-lapsed"));
}

TEST_F(ProxyProcessTest, WhileItDelaysTheDrainOnlyItsHealthSaysSo) {
  StartProxy({}, {"--drain_delay=24h"});

  sidecar().process().Terminate();

  WaitUntil([&] { return Health().status == 503; });
  EXPECT_EQ(Ask(port(), {}).status, 201);
}

TEST_F(ProxyProcessTest, AnOutageIsLoggedAndCounted) {
  StartProxy({{"claim_timeout", "300ms"}}, {"--coordinator=127.0.0.1:1"});

  EXPECT_THAT(Pay(NewKey()), IsProblem(503, "unavailable"));

  const auto line = sidecar().process().WaitForLine("notice: unavailable");
  EXPECT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(
      Metrics().Value("idempotency_proxy_notices_total{kind=\"unavailable\"}"),
      1);
}

// ------------------------------------------------------------------- gRPC

TEST_F(ProxyProcessTest, AGrpcServiceThatKnowsNothingExecutesOnce) {
  std::atomic<int> charges{0};
  const PlainShop shop([&](const Attempt& attempt, const auto&) {
    if (attempt.number > 0) ++charges;  // before the rules there are others
    return Charged{};
  });
  const int grpc_port = FreePort();
  StartProxy({}, {"--grpc_listen=127.0.0.1:" + std::to_string(grpc_port),
                  "--grpc_upstream=127.0.0.1:" + std::to_string(shop.port())});
  WriteRules(Json{{"grpc",
                   {{"routes", Json::array({{{"methods", kChargePath},
                                             {"scope", kScope},
                                             {"required", true}}})}}}}
                 .dump());
  WaitUntil([&] { return ChargeAt(grpc_port, {}).reason() == "KEY_MISSING"; });
  const std::string key = NewKey();

  const ChargeAnswer first = ChargeOnce(grpc_port, key);
  const ChargeAnswer second = ChargeOnce(grpc_port, key);

  EXPECT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_FALSE(first.replayed());
  EXPECT_TRUE(second.replayed());
  EXPECT_EQ(second.reply.payment(), first.reply.payment());
  EXPECT_EQ(charges, 1);
}

}  // namespace
}  // namespace idempotency
