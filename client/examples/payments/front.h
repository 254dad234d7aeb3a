#ifndef IDEMPOTENCY_CLIENT_EXAMPLES_PAYMENTS_FRONT_H_
#define IDEMPOTENCY_CLIENT_EXAMPLES_PAYMENTS_FRONT_H_

#include <httplib.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "client/client.h"
#include "client/demo/night/wallet_client.h"
#include "client/examples/payments/pods.h"

namespace idempotency::payments {

// What stands between a browser and the pods: a load balancer, and for trying
// things out also the page, a look at the ledger and at the coordinator's
// records, and faults. Thread-safe.
//
//   POST /payments        goes to the pods in turn; the header Served-By tells
//                         which one answered. 502: the pod was gone before it
//                         answered; 503: none can be reached; 504: its answer
//                         was lost.
//     Demo-Fault: lose-answer    the pod's answer is thrown away
//     Demo-Fault: silent-wallet  the wallet charges and does not answer
//     Demo-Fault: kill-pod       likewise, and once it has charged, the pod
//                                that waits for it is killed
//   GET /ledger           the wallet's charges
//   GET /record?key=KEY   what the coordinator knows of a payment
//   GET /pods             which pods run
//   GET /                 the page
class Front {
 public:
  struct Options {
    std::string coordinator;  // HOST:PORT
    std::string channel;      // HOST:PORT of the wallet
    std::string page;         // a folder
  };

  // `pods` must outlive it.
  Front(const Options& options, Pods& pods);

  // It must outlive `server`. False: there is no folder for the page.
  bool AddTo(httplib::Server& server);

 private:
  void Pay(const httplib::Request& request, httplib::Response& response);
  void Forward(const httplib::Request& request, httplib::Response& response);
  void KillOnceCharged(const std::string& key, std::size_t pod,
                       const std::atomic<bool>& answered);
  bool IsCharged(const std::string& key);

  void ShowLedger(httplib::Response& response);
  void ShowRecord(const std::string& key, httplib::Response& response);
  void ShowPods(httplib::Response& response);

  const Options options_;
  Pods& pods_;
  const std::unique_ptr<Client> coordinator_;
  night::WalletClient wallet_;
  std::atomic<std::size_t> next_{0};
};

}  // namespace idempotency::payments

#endif  // IDEMPOTENCY_CLIENT_EXAMPLES_PAYMENTS_FRONT_H_
