// The request hash of an HTTP request: what tells a retry of it from another
// request with the same key, which is answered 422.
#ifndef IDEMPOTENCY_CLIENT_HTTP_FINGERPRINT_H_
#define IDEMPOTENCY_CLIENT_HTTP_FINGERPRINT_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/http/request.h"

namespace idempotency {

// As it is, the hash is that of request_hash.h over method, target, content
// type and body, which programs in other languages make too. What a retry does
// not repeat is left out here; when that changes, retries of requests from
// before are answered 422 until their records expire.
struct HttpFingerprint {
  // Header fields that count besides, by name in any case: "Accept-Language".
  // Each adds parts after those four, in this order: its name in lower case,
  // how often it was sent in decimal, and each value.
  std::vector<std::string> headers_added = {};
  // Query parameters that do not count, by name as it is sent, nothing decoded.
  // A query of which nothing is left goes with its question mark.
  std::vector<std::string> query_left_out = {};
  // Members of a JSON body that do not count, as JSON Pointers (RFC 6901):
  // "/timestamp", "/meta/sent_at", "/items/0/trace".
  std::vector<std::string> json_left_out = {};
  // False: the content type counts as empty.
  bool content_type = true;
};

// 32 raw bytes; empty only where RequestHash() is.
std::string HashOf(const HttpRequest& request,
                   const HttpFingerprint& fingerprint);

// The body that is hashed in place of a JSON body from which members are left
// out: the same JSON text without them and without white space. Members stay in
// the order in which they were sent. In strings, `"` and `\` are escaped by a
// backslash, U+0000 to U+001F as \b \t \n \f \r or \u00xx, and all else is
// UTF-8. Integers that fit into 64 bits are in decimal (-0 is 0), other
// numbers as they were sent.
//
// A body that is no JSON text, is not UTF-8, or has an object with the same
// name twice is returned as it is.
std::string WithoutJsonMembers(std::string_view body,
                               std::span<const std::string> pointers);

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_HTTP_FINGERPRINT_H_
