// Operations of a caller that arrive over HTTP, at a service within its process
// whose handlers are behind the middleware.
#ifndef IDEMPOTENCY_TESTS_FAULT_CALLER_HTTP_SHOP_H_
#define IDEMPOTENCY_TESTS_FAULT_CALLER_HTTP_SHOP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "tests/fault/caller/world.h"

namespace idempotency::fault {

// Thread-safe.
class HttpShop {
 public:
  // `world` and what is in it must outlive it.
  static absl::StatusOr<std::unique_ptr<HttpShop>> Start(World& world);
  virtual ~HttpShop() = default;

  // One request, to its response; now and then the client hangs up before.
  virtual void Request(Self& self, const Key& key) = 0;
};

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CALLER_HTTP_SHOP_H_
