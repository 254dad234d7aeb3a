// Input: the sidecar's file of routes.
#include <algorithm>
#include <string>

#include "client/proxy/rules.h"
#include "tests/fuzz/check.h"

namespace idempotency {
namespace {

using fuzz::Require;
using std::chrono::milliseconds;

void CheckScope(const std::string& scope) {
  Require(!scope.empty() && scope.size() <= 128,
          "a scope has 1 to 128 characters");
  Require(scope.front() != '/' && scope.back() != '/' &&
              scope.find("//") == std::string::npos,
          "the segments of a scope are not empty");
}

void CheckDuration(milliseconds duration, milliseconds least) {
  Require(duration >= least && duration <= std::chrono::hours(24),
          "a duration is at most a day");
}

template <typename Rule>
void CheckRule(const Rule& rule) {
  CheckScope(rule.scope);
  CheckDuration(rule.wait, milliseconds(0));
  CheckDuration(rule.lease.value_or(milliseconds(1)), milliseconds(1));
  CheckDuration(rule.claim_timeout, milliseconds(1));
}

void CheckHttpRoute(const HttpProxyRoute& route) {
  CheckRule(route.rule);
  CheckDuration(route.timeout, milliseconds(1));
  Require(route.rule.body_bytes_max <= std::size_t{3} << 20,
          "no longer body is recorded than the coordinator takes");
  for (const std::string& pointer : route.rule.fingerprint.json_left_out) {
    Require(pointer.starts_with('/'), "a JSON Pointer begins with a slash");
  }
  Require(!route.match.Fits("GET", "/payments"), "a GET is never guarded");
  const std::vector<HttpField> headers = {{"X-Tenant", "a"}, {"x-tenant", "b"}};
  const HttpRequest request{
      .method = "POST", .target = "/payments", .headers = headers};
  if (route.rule.caller) route.rule.caller(request);
}

void FuzzRules(std::string_view text) {
  const absl::StatusOr<ProxyRules> rules = ParseRules(text);
  if (!rules.ok()) {
    Require(absl::IsInvalidArgument(rules.status()) &&
                !rules.status().message().empty(),
            "a refusal is INVALID_ARGUMENT and says why");
    return;
  }
  Require(text.find('\0') == std::string_view::npos,
          "the whole file is read: no JSON has a NUL in it");
  for (const auto& route : rules->http) CheckHttpRoute(*route);
  for (const GrpcRoute& route : rules->grpc) {
    CheckRule(route.rule);
    CheckDuration(route.timeout, milliseconds(1));
  }
  const auto route = RouteOf(*rules, "POST", "/payments?currency=EUR");
  Require(route == nullptr || route->match.Fits("POST", "/payments"),
          "a route is found by method and path");
}

}  // namespace
}  // namespace idempotency

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  idempotency::FuzzRules(idempotency::fuzz::Text(data, size));
  return 0;
}
