#ifndef IDEMPOTENCY_CLIENT_DEMO_NIGHT_LEDGER_H_
#define IDEMPOTENCY_CLIENT_DEMO_NIGHT_LEDGER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "wallet.pb.h"

namespace idempotency::night {

// The wallet's charges, in a file: one line each, of the charge's id, its
// idempotency key (`-` where it has none) and the amount, separated by tabs.
//
// Not thread-safe.
class Ledger {
 public:
  // Goes on with the charges that the file holds.
  static absl::StatusOr<std::unique_ptr<Ledger>> Open(const std::string& file);

  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;
  ~Ledger();

  // Writes a charge down; it is on the disk upon return. An error says that
  // nothing is known of it. INVALID_ARGUMENT for a key that no line can hold.
  absl::StatusOr<LedgerEntry> Append(const ChargeRequest& charge);

  const std::vector<LedgerEntry>& entries() const { return entries_; }
  // The charge with that key.
  std::optional<LedgerEntry> Find(const std::string& idempotency_key) const;

 private:
  Ledger(int fd, std::vector<LedgerEntry> entries);

  const int fd_;
  std::vector<LedgerEntry> entries_;
};

}  // namespace idempotency::night

#endif  // IDEMPOTENCY_CLIENT_DEMO_NIGHT_LEDGER_H_
