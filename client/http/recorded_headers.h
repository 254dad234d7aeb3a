// Which header fields of a response are recorded, and which of a record are
// answered with.
#ifndef IDEMPOTENCY_CLIENT_HTTP_RECORDED_HEADERS_H_
#define IDEMPOTENCY_CLIENT_HTTP_RECORDED_HEADERS_H_

#include <string>
#include <string_view>

#include "client/http/route.h"
#include "idempotency/v1/idempotency.pb.h"

namespace idempotency {

// Of a response that is to be recorded, removes the fields that
//   - belong to one connection or message: Connection and what it names,
//     Keep-Alive, Proxy-Connection, TE, Trailer, Transfer-Encoding, Upgrade,
//     Content-Length; and the route's replayed_header;
//   - belong to one moment or one client, unless the route's headers_recorded
//     names them: Age, Alt-Svc, Authentication-Info, Authorization, Cookie,
//     Date, Proxy-Authenticate, Proxy-Authentication-Info,
//     Proxy-Authorization, Set-Cookie, Set-Cookie2, WWW-Authenticate;
//   - the route's headers_left_out names, which goes before headers_recorded;
//   - HTTP cannot send.
// The others stay as they are: order, duplicates, values of any bytes.
void KeepRecordedHeaders(const HttpRoute& route, v1::Response& response);

// Of a record, which another program may have made, removes what HTTP cannot
// send, or what belongs to another message: the first group of above, and
// names or values that would break the message apart. Others are answered with,
// although this route would not have recorded them.
void KeepSendableHeaders(const HttpRoute& route, v1::Response& response);

// A name of RFC 9110's tokens; a value without CR, LF and NUL.
bool CanBeSent(const v1::Header& header);

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_HTTP_RECORDED_HEADERS_H_
