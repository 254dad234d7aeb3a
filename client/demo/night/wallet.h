#ifndef IDEMPOTENCY_CLIENT_DEMO_NIGHT_WALLET_H_
#define IDEMPOTENCY_CLIENT_DEMO_NIGHT_WALLET_H_

#include <chrono>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/demo/night/ledger.h"
#include "client/demo/night/timeline.h"
#include "wallet.grpc.pb.h"

namespace idempotency::night {

// The unstable payment channel. A charge is on its disk before anybody is
// answered. Thread-safe.
class WalletService final : public Wallet::CallbackService {
 public:
  struct Options {
    // So many calls of Charge, the first ones, are carried out and not
    // answered. Find always answers.
    int unanswered = 0;
    // Between a charge and its answer.
    std::chrono::milliseconds answer_after{0};
    // Takes no notice of idempotency keys and finds nothing: a channel with
    // which no coordinator can help.
    bool forgetful = false;
  };

  WalletService(std::unique_ptr<Ledger> ledger, const Options& options,
                const Timeline& timeline);

  grpc::ServerUnaryReactor* Charge(grpc::CallbackServerContext* context,
                                   const ChargeRequest* request,
                                   LedgerEntry* response) override;
  grpc::ServerUnaryReactor* Find(grpc::CallbackServerContext* context,
                                 const FindRequest* request,
                                 FindResponse* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const ListRequest* request,
                                 ListResponse* response) override;
  grpc::ServerUnaryReactor* LoseAnswers(grpc::CallbackServerContext* context,
                                        const LoseAnswersRequest* request,
                                        LoseAnswersResponse* response) override;

 private:
  absl::StatusOr<LedgerEntry> ChargeOnce(const ChargeRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const Timeline& timeline_;

  absl::Mutex mutex_;
  const std::unique_ptr<Ledger> ledger_ ABSL_PT_GUARDED_BY(mutex_);
  int to_be_lost_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace idempotency::night

#endif  // IDEMPOTENCY_CLIENT_DEMO_NIGHT_WALLET_H_
