// The other side of a payment, played, so that a test can say what it does.
#ifndef IDEMPOTENCY_TESTS_INTEROP_CPP_WALLET_H_
#define IDEMPOTENCY_TESTS_INTEROP_CPP_WALLET_H_

#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "client/execution.h"

namespace idempotency::interop {

struct Said {
  int status = 201;
  nlohmann::json answer;
  int receipts = 2;
  bool nothing_happened = false;
};

// Thread-safe.
class Wallet {
 public:
  // `order` is what it is to do: slow-MS, throw, nothing-happened, decline-402,
  // error-500, long-BYTES, receipts-N; empty: charge. `payment` holds account
  // and amount.
  Said Charge(nlohmann::json payment, const Execution& execution,
              const std::string& order);

  // How often Charge was called.
  int Asked(const std::string& account) const;

 private:
  mutable std::mutex mu_;
  std::map<std::string, int> asked_;  // Guarded by mu_.
};

}  // namespace idempotency::interop

#endif  // IDEMPOTENCY_TESTS_INTEROP_CPP_WALLET_H_
