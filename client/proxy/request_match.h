// Which HTTP requests a route of the sidecar is for.
#ifndef IDEMPOTENCY_CLIENT_PROXY_REQUEST_MATCH_H_
#define IDEMPOTENCY_CLIENT_PROXY_REQUEST_MATCH_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace idempotency {

// "POST /payments", "POST,PUT /orders/*" or "* /admin/**". A `*` in place of
// the method is every one that is not safe; as a segment of the path it is any
// one segment, and a last `**` is any rest, or none. Paths are compared without
// their query, segment by segment, each with its %XX decoded; letter case
// counts.
class RequestMatch {
 public:
  // INVALID_ARGUMENT for what is no such text, or names a safe method (GET,
  // HEAD, OPTIONS, TRACE), which is never guarded.
  static absl::StatusOr<RequestMatch> Parse(std::string_view text);

  // `target` is path and query.
  bool Fits(std::string_view method, std::string_view target) const;

 private:
  std::vector<std::string> methods_;  // empty: any
  std::vector<std::string> segments_;
  bool any_rest_ = false;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_PROXY_REQUEST_MATCH_H_
