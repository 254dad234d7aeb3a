// What the middleware answers by itself: errors as application/problem+json
// (RFC 9457).
#ifndef IDEMPOTENCY_CLIENT_HTTP_PROBLEM_H_
#define IDEMPOTENCY_CLIENT_HTTP_PROBLEM_H_

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "idempotency/v1/idempotency.pb.h"

namespace idempotency {

// One kind of problem. Names and statuses are fixed: callers rely on them.
struct Problem {
  int status;
  std::string_view name;   // the end of its `type`
  std::string_view title;  // the same for all of its kind
};

inline constexpr Problem kKeyMissing{400, "key-missing",
                                     "This request needs an idempotency key"};
inline constexpr Problem kKeyMalformed{400, "key-malformed",
                                       "The idempotency key cannot be read"};
inline constexpr Problem kRequestTooLong{413, "request-too-long",
                                         "The request is too long"};
inline constexpr Problem kKeyReused{
    422, "key-reused", "The idempotency key belongs to a different request"};
inline constexpr Problem kInProgress{
    409, "in-progress", "The request with this idempotency key is under way"};
inline constexpr Problem kInDoubt{
    409, "in-doubt",
    "Whether the request with this idempotency key was carried out is not "
    "known"};
inline constexpr Problem kSuperseded{
    409, "superseded",
    "Another attempt of this request has taken its idempotency key over"};
inline constexpr Problem kResponseNotKept{
    410, "response-not-kept",
    "The request was carried out before, and its response was not kept"};
inline constexpr Problem kOutcomeUnknown{
    500, "outcome-unknown", "Whether the request was carried out is not known"};
inline constexpr Problem kMisconfigured{500, "misconfigured",
                                        "The server cannot guard this request"};
inline constexpr Problem kUnavailable{
    503, "unavailable",
    "This attempt was not carried out; an earlier one may have been. Send it "
    "again with the same key"};

// `type` is prefix and name: with "https://example.org/problems/" an address
// that explains it. `detail` may be empty, and shows no internals. With
// `retry_after` comes Retry-After in whole seconds, rounded up, at least 1.
v1::Response MakeProblem(
    const Problem& problem, std::string_view type_prefix,
    std::string_view detail = "",
    std::optional<std::chrono::nanoseconds> retry_after = std::nullopt);

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_HTTP_PROBLEM_H_
