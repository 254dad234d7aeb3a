// The sidecar's file: which requests it guards, and how.
#ifndef IDEMPOTENCY_CLIENT_PROXY_RULES_H_
#define IDEMPOTENCY_CLIENT_PROXY_RULES_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/http/route.h"
#include "client/proxy/grpc_proxy.h"
#include "client/proxy/request_match.h"

namespace idempotency {

// The longest body that a route may ask to be recorded: no coordinator keeps
// more.
inline constexpr std::size_t kRecordBytesMax = std::size_t{3} << 20;

struct HttpProxyRoute {
  RequestMatch match;
  HttpRoute rule;
  // As in GrpcRoute, with the header Idempotency-Abandoned.
  bool resolves = false;
  // How long the service may take for its whole answer, up to a day.
  std::chrono::milliseconds timeout{60'000};
};

struct ProxyRules {
  // Of several that fit, the first counts.
  std::vector<std::shared_ptr<const HttpProxyRoute>> http;
  // As GrpcProxy orders them, which also looks at their names.
  std::vector<GrpcRoute> grpc;
};

// Null: no route.
std::shared_ptr<const HttpProxyRoute> RouteOf(const ProxyRules& rules,
                                              std::string_view method,
                                              std::string_view target);

// INVALID_ARGUMENT, naming the field ("http.routes[0].wait"), for what is no
// JSON, is of another type, says nothing sensible, is named twice or is not
// known.
absl::StatusOr<ProxyRules> ParseRules(std::string_view text);

// A file of rules, for the manual.
extern const char kRulesExample[];

// The file, read again and again. Not thread-safe.
class RulesFile {
 public:
  explicit RulesFile(std::string path) : path_(std::move(path)) {}

  // The rules, where the file's content is not that of the last call; an error,
  // once for each content or reason, where it cannot be read or has none.
  absl::StatusOr<std::optional<ProxyRules>> ReadIfChanged();

 private:
  const std::string path_;
  // What was last found: the content, or why there is none.
  std::optional<absl::StatusOr<std::string>> last_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_PROXY_RULES_H_
