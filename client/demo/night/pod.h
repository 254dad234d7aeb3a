#ifndef IDEMPOTENCY_CLIENT_DEMO_NIGHT_POD_H_
#define IDEMPOTENCY_CLIENT_DEMO_NIGHT_POD_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/demo/night/timeline.h"
#include "client/demo/night/wallet_client.h"
#include "client/run_once.h"
#include "night.grpc.pb.h"

namespace idempotency::night {

// The payment service. Thread-safe.
class PodService final : public Payments::Service {
 public:
  struct Options {
    std::string name;
    std::string wallet;  // HOST:PORT
    // HOST:PORT, or empty: each call charges.
    std::string coordinator;
  };

  PodService(const Options& options, const Timeline& timeline);

  grpc::Status Pay(grpc::ServerContext* context, const PayRequest* request,
                   PayResponse* response) override;

 private:
  PayResponse Charge(const PayRequest& request);
  PayResponse ChargeOnce(const PayRequest& request);

  FunctionResult Execute(const PayRequest& request, Execution& execution);
  Resolution AskWallet(const PayRequest& request, Execution& execution);
  absl::StatusOr<LedgerEntry> CallWallet(const PayRequest& request,
                                         const std::string& idempotency_key);

  const Options options_;
  const Timeline& timeline_;
  WalletClient wallet_;
  const std::unique_ptr<RunOnce> once_;  // null without a coordinator
};

}  // namespace idempotency::night

#endif  // IDEMPOTENCY_CLIENT_DEMO_NIGHT_POD_H_
