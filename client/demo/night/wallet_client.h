#ifndef IDEMPOTENCY_CLIENT_DEMO_NIGHT_WALLET_CLIENT_H_
#define IDEMPOTENCY_CLIENT_DEMO_NIGHT_WALLET_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "wallet.grpc.pb.h"

namespace idempotency::night {

// The payment channel, as those who pay with it see it. Each call waits for its
// answer for `timeout`. Thread-safe.
class WalletClient {
 public:
  // `target`: HOST:PORT.
  WalletClient(const std::string& target, std::chrono::milliseconds timeout);

  // Takes the money, with an idempotency key once for the key. Upon an error it
  // may have been taken. An empty key: none.
  absl::StatusOr<LedgerEntry> Charge(std::int64_t amount,
                                     const std::string& idempotency_key);
  // What became of the charge with that key: nothing if there is none.
  absl::StatusOr<std::optional<LedgerEntry>> Find(
      const std::string& idempotency_key);

  // All charges.
  absl::StatusOr<std::vector<LedgerEntry>> Ledger();
  // The next `count` charges are made and not answered.
  absl::Status LoseAnswers(int count);

 private:
  const std::unique_ptr<Wallet::Stub> wallet_;
  const std::chrono::milliseconds timeout_;
};

}  // namespace idempotency::night

#endif  // IDEMPOTENCY_CLIENT_DEMO_NIGHT_WALLET_CLIENT_H_
