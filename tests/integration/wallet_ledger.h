#ifndef IDEMPOTENCY_TESTS_INTEGRATION_WALLET_LEDGER_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_WALLET_LEDGER_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace idempotency {

// A payment channel that any number of processes use at a time: a file with a
// line for each charge. Like a real one it makes one charge for each of its
// idempotency keys (the coordinator's downstream keys), and can be asked for
// it. A charge that was made is on the disk, whoever is killed when.
//
// Every call throws std::system_error where the file cannot be used.
// Thread-safe.
class WalletLedger {
 public:
  struct Charge {
    std::string downstream_key;
    std::string reference;  // whose it is; without blanks
    std::string id;         // another for each charge
  };

  explicit WalletLedger(std::string path) : path_(std::move(path)) {}

  Charge Make(const std::string& downstream_key, const std::string& reference);
  std::optional<Charge> Find(const std::string& downstream_key) const;
  std::vector<Charge> All() const;

 private:
  const std::string path_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_WALLET_LEDGER_H_
