// A request as the middleware looks at it.
#ifndef IDEMPOTENCY_CLIENT_HTTP_REQUEST_H_
#define IDEMPOTENCY_CLIENT_HTTP_REQUEST_H_

#include <string>
#include <string_view>
#include <vector>

namespace idempotency {

// One header field, as received: the name in any letter case.
struct HttpField {
  std::string_view name;
  std::string_view value;
};

// Views of what the framework holds. The middleware reads them within the call
// that they are given to, and keeps none.
struct HttpRequest {
  std::string_view method;  // "POST"
  std::string_view target;  // path and query, as in the request line
  // A field that was sent twice is here twice.
  std::vector<HttpField> headers = {};
  std::string_view body = {};
  // Not empty: the request hash, made while a long body passed by
  // (RequestHasher in request_hash.h). `body` and the route's fingerprint are
  // then not looked at.
  std::string request_hash = {};
};

// Whether two field names are the same: letter case of ASCII does not count.
bool IsSameField(std::string_view a, std::string_view b);

// The values of that field, in order.
std::vector<std::string_view> FieldValues(const HttpRequest& request,
                                          std::string_view name);

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_HTTP_REQUEST_H_
