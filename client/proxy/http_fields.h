// What the sidecar hands on of HTTP heads, and what it answers by itself.
#ifndef IDEMPOTENCY_CLIENT_PROXY_HTTP_FIELDS_H_
#define IDEMPOTENCY_CLIENT_PROXY_HTTP_FIELDS_H_

#include <string_view>
#include <vector>

#include "client/http/problem.h"
#include "client/http/request.h"
#include "client/proxy/http_wire.h"
#include "idempotency/v1/idempotency.pb.h"

namespace idempotency::internal {

// Beside the problems of the middleware.
inline constexpr Problem kMalformed{400, "malformed-request",
                                    "The request is not HTTP as it is here"};
inline constexpr Problem kRequestTimeout{408, "request-timeout",
                                         "The request did not come in time"};
inline constexpr Problem kExpectationFailed{
    417, "expectation-failed", "Only 100-continue can be expected"};
inline constexpr Problem kHeadTooLarge{431, "head-too-large",
                                       "The request's head is too long"};
inline constexpr Problem kNotImplemented{501, "not-implemented",
                                         "The sidecar does not do this"};
inline constexpr Problem kUpstreamLost{
    502, "upstream-lost", "The service's answer was lost on its way"};
inline constexpr Problem kUpstreamUnreachable{
    503, "upstream-unreachable", "The service was not asked; send it again"};
inline constexpr Problem kUpstreamTimeout{504, "upstream-timeout",
                                          "The service did not answer in time"};

// Without the fields that belong to one connection or message.
Fields EndToEnd(const Fields& fields);

// The head that the service is sent: without those, and without what only the
// sidecar may say (upstream_headers.h), also where `_` stands for `-`, which
// many a service cannot tell apart. Framing as the caller's.
RequestHead HandedOn(const RequestHead& head, const HostAndPort& upstream);

// The head that the caller is sent of a response with that many bytes.
ResponseHead HeadOf(const v1::Response& response);

// Views of the fields.
std::vector<HttpField> ViewsOf(const Fields& fields);

// The values of that field, in order.
std::vector<std::string_view> ValuesOf(const Fields& fields,
                                       std::string_view name);

}  // namespace idempotency::internal

#endif  // IDEMPOTENCY_CLIENT_PROXY_HTTP_FIELDS_H_
