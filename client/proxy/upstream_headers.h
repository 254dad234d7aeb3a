// What the sidecar tells the service behind it about the attempt it makes, as
// HTTP headers and as gRPC metadata:
//
//   idempotency-attempt         2
//   idempotency-fencing-token   1764525000000001
//   idempotency-downstream-key  the key for the channel, a UUID
//   idempotency-abandoned       only for an attempt that took over another
//
// idempotency-abandoned is a dictionary of structured fields (RFC 8941), of
// what is known of the earlier attempt:
//
//   attempt=1, reason=server-error, status=503, fencing-token=1764524999000001,
//   downstream-key="...", claimed-at=1764524999, abandoned-at=1764525000
//
// with the reason lease-lapsed, outcome-unknown or server-error, and the times
// in seconds of the Unix epoch. Members may be added.
#ifndef IDEMPOTENCY_CLIENT_PROXY_UPSTREAM_HEADERS_H_
#define IDEMPOTENCY_CLIENT_PROXY_UPSTREAM_HEADERS_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "idempotency/v1/idempotency.pb.h"

namespace idempotency {

// Names in lower case.
std::vector<std::pair<std::string, std::string>> UpstreamHeaders(
    const v1::Claimed& claimed);

// Whether the name, in any case, is one of those: a caller's own are not handed
// on, or it could tell the service what it likes.
bool IsUpstreamHeader(std::string_view name);

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_PROXY_UPSTREAM_HEADERS_H_
