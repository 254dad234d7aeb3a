// The payment channel of a fault run: a process of its own, so that what it did
// stays done whichever caller is killed.
#ifndef IDEMPOTENCY_TESTS_FAULT_CALLER_WALLET_H_
#define IDEMPOTENCY_TESTS_FAULT_CALLER_WALLET_H_

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/core/mutex.h"
#include "tests/fault/checker/history.h"

namespace idempotency::fault {

enum class WalletVerb {
  kCharge,  // acts, once for each downstream key
  kFind,    // tells what was done
  kRefuse,  // nothing was done, and nothing will be: unless it was done
};

struct WalletRequest {
  WalletVerb verb = WalletVerb::kFind;
  std::string scope{};
  std::string key{};
  std::string downstream{};
  // Of the grant under which it is asked.
  std::string token{};
  std::int64_t fencing = 0;
};

enum class WalletAnswer {
  kExecuted,   // now
  kDuplicate,  // earlier, under this downstream key
  kRefused,    // never, and never will be
  kAbsent,     // not so far
};

// What was charged under which key. Each charge and refusal is an `effect` in
// its ledger before it is answered, and is still known to the next process that
// opens the ledger.
//
// Thread-safe.
class Wallet {
 public:
  static absl::StatusOr<std::unique_ptr<Wallet>> Open(
      const std::string& ledger_path);

  // Ends the process when the ledger cannot be written.
  WalletAnswer Ask(const WalletRequest& request);

 private:
  Wallet(std::unique_ptr<HistoryWriter> ledger,
         std::unordered_map<std::string, bool> charged)
      : ledger_(std::move(ledger)), charged_(std::move(charged)) {}

  void Write(const WalletRequest& request, EffectResult result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::unique_ptr<HistoryWriter> ledger_;

  // Held while a line is written too: the ledger's order is that of the acts.
  Mutex mutex_;
  // By downstream key: whether it was charged, else it is refused.
  std::unordered_map<std::string, bool> charged_ ABSL_GUARDED_BY(mutex_);
};

// Serves a wallet on a unix socket. Answers at random late or not at all,
// before or after it has acted.
class WalletServer {
 public:
  struct Options {
    std::string socket_path;
    std::uint64_t seed = 0;
    // In thousandths of the requests.
    int lost_before = 5;
    int lost_after = 10;
    int late = 20;
    int late_ms_max = 400;
  };

  // `wallet` must outlive it. Whatever lies at the path is replaced.
  static absl::StatusOr<std::unique_ptr<WalletServer>> Start(Wallet& wallet,
                                                             Options options);
  WalletServer(const WalletServer&) = delete;
  WalletServer& operator=(const WalletServer&) = delete;
  // Requests under way are finished.
  ~WalletServer();

 private:
  WalletServer(Wallet& wallet, Options options, int listener)
      : wallet_(wallet), options_(std::move(options)), listener_(listener) {}

  struct Connection {
    int socket = -1;
    std::thread thread;
    std::atomic<bool> ended = false;
  };

  void Accept();
  // Joins the threads of connections that have ended, or of all.
  void Reap(bool all);
  void Serve(Connection& connection, std::uint64_t seed);
  // False: the answer is lost.
  bool Answer(int socket, const std::string& line, std::mt19937_64& random);

  Wallet& wallet_;
  const Options options_;
  const int listener_;

  Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::list<Connection> connections_ ABSL_GUARDED_BY(mutex_);

  std::thread acceptor_;
};

// One connection to a wallet, made anew as needed. Not thread-safe.
class WalletClient {
 public:
  explicit WalletClient(std::string socket_path)
      : socket_path_(std::move(socket_path)) {}
  ~WalletClient();
  WalletClient(const WalletClient&) = delete;
  WalletClient& operator=(const WalletClient&) = delete;

  // An error: it may have acted, or not.
  absl::StatusOr<WalletAnswer> Ask(const WalletRequest& request);

 private:
  void Close();

  const std::string socket_path_;
  int socket_ = -1;
};

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CALLER_WALLET_H_
