// The sidecar's file and flags: what they mean, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

#include "client/proxy/rules.h"
#include "client/proxy/settings.h"
#include "tests/support/temp_folder.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

// ------------------------------------------------------------------ matches

bool Fits(const std::string& match, std::string_view method,
          std::string_view target) {
  const auto parsed = RequestMatch::Parse(match);
  EXPECT_TRUE(parsed.ok()) << match << ": " << parsed.status();
  return parsed.ok() && parsed->Fits(method, target);
}

TEST(RequestMatchTest, APathIsComparedBySegmentsWithoutItsQuery) {
  EXPECT_TRUE(Fits("POST /payments", "POST", "/payments"));
  EXPECT_TRUE(Fits("POST /payments", "POST", "/payments?amount=1/2"));
  EXPECT_TRUE(Fits("POST /payments", "POST", "/p%61yments"));
  EXPECT_TRUE(Fits("POST /", "POST", "/"));
  EXPECT_FALSE(Fits("POST /payments", "POST", "/payments/"));
  EXPECT_FALSE(Fits("POST /payments", "POST", "/payments/1"));
  EXPECT_FALSE(Fits("POST /payments", "POST", "/Payments"));
  EXPECT_FALSE(Fits("POST /a/b", "POST", "/a%2Fb"));
  EXPECT_FALSE(Fits("POST /payments", "POST", "*"));
  EXPECT_FALSE(Fits("POST /payments", "POST", ""));
}

TEST(RequestMatchTest, AStarIsOneSegmentAndTwoAreAnyRest) {
  EXPECT_TRUE(Fits("POST /orders/*/pay", "POST", "/orders/1/pay"));
  EXPECT_FALSE(Fits("POST /orders/*/pay", "POST", "/orders//pay"));
  EXPECT_FALSE(Fits("POST /orders/*/pay", "POST", "/orders/1/2/pay"));
  EXPECT_TRUE(Fits("POST /orders/**", "POST", "/orders/1/pay"));
  EXPECT_TRUE(Fits("POST /orders/**", "POST", "/orders/"));
  EXPECT_TRUE(Fits("POST /orders/**", "POST", "/orders"));
  EXPECT_FALSE(Fits("POST /orders/**", "POST", "/order"));
  EXPECT_TRUE(Fits("POST /**", "POST", "/"));
}

TEST(RequestMatchTest, MethodsAreThoseNamedOrAllThatChangeSomething) {
  EXPECT_TRUE(Fits("POST,PUT /a", "PUT", "/a"));
  EXPECT_FALSE(Fits("POST,PUT /a", "DELETE", "/a"));
  EXPECT_TRUE(Fits("* /a", "M-SEARCH", "/a"));
  for (const char* safe : {"GET", "HEAD", "OPTIONS", "TRACE"}) {
    EXPECT_FALSE(Fits("* /a", safe, "/a"));
    EXPECT_FALSE(RequestMatch::Parse(std::string(safe) + " /a").ok());
  }
}

TEST(RequestMatchTest, WhatIsNoMatchIsRefused) {
  for (const char* text :
       {"", "POST", "/payments", "POST payments", " /payments", "post /a",
        "POST, /a", "POST /a*", "POST /**/a", "POST /a?b", "POST  /a"}) {
    EXPECT_FALSE(RequestMatch::Parse(text).ok()) << text;
  }
}

// --------------------------------------------------------------------- file

TEST(ProxyRulesTest, TheManualsExampleIsAFile) {
  const auto rules = ParseRules(kRulesExample);

  ASSERT_TRUE(rules.ok()) << rules.status();
  const auto route = RouteOf(*rules, "POST", "/payments");
  ASSERT_NE(route, nullptr);
  EXPECT_EQ(route->rule.scope, "payments");
  EXPECT_EQ(route->rule.policy, "payment");
  EXPECT_TRUE(route->rule.required);
  EXPECT_TRUE(route->resolves);
  EXPECT_EQ(route->rule.wait, seconds(5));
  EXPECT_EQ(route->timeout, seconds(60));
  EXPECT_EQ(RouteOf(*rules, "PUT", "/orders/1")->rule.scope, "orders");
  EXPECT_EQ(RouteOf(*rules, "PUT", "/other"), nullptr);
  ASSERT_THAT(rules->grpc, SizeIs(1));
  EXPECT_EQ(rules->grpc[0].methods, "/shop.Payments/*");
  EXPECT_FALSE(rules->grpc[0].rule.required);
}

std::string WithRoute(const std::string& fields) {
  return R"({"http": {"routes": [{"match": "POST /a", "scope": "a", )" +
         fields + "}]}}";
}

TEST(ProxyRulesTest, EveryFieldOfAnHttpRouteArrives) {
  const auto rules = ParseRules(WithRoute(R"(
      "owner": "me", "fail_open": true, "lease": "10s", "claim_timeout": "1s",
      "key_header": "X-Key", "replayed_header": "X-Again",
      "caller_header": "X-Tenant",
      "leave_out_json_fields": ["sent_at", "/meta/at", "a/b~c"],
      "leave_out_query": ["t"], "count_headers": ["Accept-Language"],
      "count_content_type": false, "record_headers": ["Set-Cookie"],
      "leave_out_headers": ["X-Trace"], "record_bytes_max": 5)"));

  ASSERT_TRUE(rules.ok()) << rules.status();
  const HttpProxyRoute& route = *rules->http.at(0);
  const HttpRoute& rule = route.rule;
  EXPECT_EQ(rule.owner, "me");
  EXPECT_TRUE(rule.fail_open);
  EXPECT_FALSE(rule.required);
  EXPECT_FALSE(route.resolves);
  EXPECT_EQ(rule.wait, milliseconds(0));
  EXPECT_EQ(rule.lease, seconds(10));
  EXPECT_EQ(rule.claim_timeout, seconds(1));
  EXPECT_EQ(rule.key_header, "X-Key");
  EXPECT_EQ(rule.replayed_header, "X-Again");
  EXPECT_THAT(rule.fingerprint.json_left_out,
              ElementsAre("/sent_at", "/meta/at", "/a~1b~0c"));
  EXPECT_THAT(rule.fingerprint.query_left_out, ElementsAre("t"));
  EXPECT_THAT(rule.fingerprint.headers_added, ElementsAre("Accept-Language"));
  EXPECT_FALSE(rule.fingerprint.content_type);
  EXPECT_THAT(rule.headers_recorded, ElementsAre("Set-Cookie"));
  EXPECT_THAT(rule.headers_left_out, ElementsAre("X-Trace"));
  EXPECT_EQ(rule.body_bytes_max, 5u);
  const HttpRequest request{
      .method = "POST", .target = "/a", .headers = {{"x-tenant", "one"}}};
  EXPECT_EQ(rule.caller(request), "one");
}

TEST(ProxyRulesTest, EveryFieldOfAGrpcRouteArrives) {
  const auto rules = ParseRules(
      R"({"grpc": {"routes": [{"methods": "/*", "scope": "a/b", "policy": "p",
          "owner": "me", "required": true, "fail_open": true, "resolves": true,
          "wait": "1s", "lease": "2s", "timeout": "3s"}]}})");

  ASSERT_TRUE(rules.ok()) << rules.status();
  const GrpcRoute& route = rules->grpc.at(0);
  EXPECT_EQ(route.rule.scope, "a/b");
  EXPECT_EQ(route.rule.policy, "p");
  EXPECT_EQ(route.rule.owner, "me");
  EXPECT_TRUE(route.rule.required);
  EXPECT_TRUE(route.rule.fail_open);
  EXPECT_TRUE(route.resolves);
  EXPECT_EQ(route.rule.wait, seconds(1));
  EXPECT_EQ(route.rule.lease, seconds(2));
  EXPECT_EQ(route.timeout, seconds(3));
}

TEST(ProxyRulesTest, WhatIsWrongIsNamed) {
  const auto says = [](const std::string& text, const std::string& what) {
    const auto rules = ParseRules(text);
    EXPECT_EQ(rules.status().code(), absl::StatusCode::kInvalidArgument)
        << text;
    EXPECT_THAT(std::string(rules.status().message()), HasSubstr(what));
  };

  says("", "not JSON");
  says("{", "not JSON");
  says("[]", "object");
  says(R"({"https": {}})", "https: is not known");
  says(R"({"http": []})", "http: is not an object");
  says(R"({"http": {}})", "http.routes: is not a list");
  says(R"({"http": {"routes": [1]}})", "http.routes[0]: is not an object");
  says(R"({"http": {"routes": []}, "http": {"routes": []}})",
       "\"http\" is there twice");
  says(WithRoute(R"("scop": "a")"), "http.routes[0].scop: is not known");
  says(WithRoute(R"("required": 1)"), "http.routes[0].required");
  says(WithRoute(R"("wait": 5)"), "http.routes[0].wait");
  says(WithRoute(R"("wait": "-1s")"), "http.routes[0].wait");
  says(WithRoute(R"("lease": "0s")"), "http.routes[0].lease");
  says(WithRoute(R"("timeout": "25h")"), "http.routes[0].timeout");
  says(WithRoute(R"("record_bytes_max": -1)"),
       "http.routes[0].record_bytes_max");
  says(WithRoute(R"("leave_out_query": "t")"), "leave_out_query: is not a");
  says(WithRoute(R"("leave_out_query": [1])"), "leave_out_query: holds");
  says(R"({"http": {"routes": [{"match": "POST /a"}]}})",
       "http.routes[0].scope");
  says(R"({"http": {"routes": [{"scope": "a"}]}})", "http.routes[0].match");
  says(R"({"http": {"routes": [{"match": "POST /a", "scope": "a//b"}]}})",
       "http.routes[0].scope");
  says(R"({"http": {"routes": [{"match": "POST /a", "scope": ")" +
           std::string(57, 'a') + R"(", "caller_header": "X"}]}})",
       "http.routes[0].scope");
  says(R"({"grpc": {"routes": [{"methods": "/*", "scope": "a",
          "match": "POST /a"}]}})",
       "grpc.routes[0].match: is not known");
}

TEST(ProxyRulesTest, AFileIsReadAgainOnlyWhenItIsAnother) {
  const auto folder = TempFolder::Make();
  ASSERT_TRUE(folder.ok()) << folder.status();
  const std::string path = (*folder)->path() + "/rules.json";
  RulesFile file(path);
  const auto write = [&](const std::string& text) {
    std::ofstream(path) << text;
  };

  EXPECT_FALSE(file.ReadIfChanged().ok());
  write(kRulesExample);
  EXPECT_TRUE(file.ReadIfChanged()->has_value());
  EXPECT_FALSE(file.ReadIfChanged()->has_value());
  write("{");
  EXPECT_FALSE(file.ReadIfChanged().ok());
  EXPECT_FALSE(file.ReadIfChanged()->has_value());
  write("{}");
  EXPECT_TRUE(file.ReadIfChanged()->has_value());
}

// -------------------------------------------------------------------- flags

absl::StatusOr<ProxySettings> Read(
    std::vector<std::string> arguments,
    std::map<std::string, std::string> environment = {}) {
  return ReadSettings(arguments, [&](const std::string& variable) {
    const auto found = environment.find(variable);
    return found == environment.end() ? std::nullopt
                                      : std::optional(found->second);
  });
}

TEST(ProxySettingsTest, AFlagGoesBeforeTheEnvironmentAndThatBeforeTheDefault) {
  const auto settings = Read({"--config=a", "--listen", "127.0.0.1:1",
                              "--idle_timeout=2s", "--coordinator_tls"},
                             {{"IDEMPOTENCY_PROXY_UPSTREAM", "127.0.0.1:2"},
                              {"IDEMPOTENCY_PROXY_CONFIG", "b"}});

  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->config, "a");
  EXPECT_EQ(settings->listen, "127.0.0.1:1");
  EXPECT_EQ(settings->upstream, "127.0.0.1:2");
  EXPECT_EQ(settings->coordinator, "127.0.0.1:50051");
  EXPECT_TRUE(settings->coordinator_tls);
  EXPECT_EQ(settings->idle_timeout, seconds(2));
  EXPECT_EQ(settings->stream_timeout, seconds(300));
  EXPECT_EQ(settings->connections_max, 512u);
  EXPECT_EQ(settings->drain_delay, milliseconds(0));
}

TEST(ProxySettingsTest, WhatDoesNotGoTogetherIsRefused) {
  EXPECT_FALSE(Read({}).ok());
  EXPECT_FALSE(Read({"--listen=a:1", "--config=a"}).ok());
  EXPECT_FALSE(Read({"--listen=a:1", "--upstream=a:1"}).ok());
  EXPECT_FALSE(Read({"--grpc_listen=a:1", "--config=a"}).ok());
  EXPECT_TRUE(
      Read({"--grpc_listen=a:1", "--grpc_upstream=a:2", "--config=a"}).ok());
  EXPECT_FALSE(Read({"--grpc_listen=a:1", "--grpc_upstream=a:2", "--config=a",
                     "--coordinator_key=k"})
                   .ok());
}

TEST(ProxySettingsTest, TheManualNamesEveryFlagAndShowsTheFile) {
  const std::string manual = ProxyManual();

  for (const char* flag : {"--listen", "--grpc_upstream", "--coordinator_key",
                           "--admin_listen", "--drain_timeout"}) {
    EXPECT_THAT(manual, HasSubstr(std::string("  ") + flag + "  (default: "));
  }
  EXPECT_THAT(manual, HasSubstr(kRulesExample));
}

}  // namespace
}  // namespace idempotency
