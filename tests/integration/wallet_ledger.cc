#include "tests/integration/wallet_ledger.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <system_error>

#include "client/environment.h"

namespace idempotency {
namespace {

void RequireDone(bool done, const char* what) {
  if (!done) throw std::system_error(errno, std::generic_category(), what);
}

// The ledger's file, kept from all others while this object lives.
class LockedFile {
 public:
  explicit LockedFile(const std::string& path)
      : fd_(open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC,
                 0600)) {
    RequireDone(fd_ >= 0, "open");
    while (flock(fd_, LOCK_EX) != 0) RequireDone(errno == EINTR, "flock");
  }
  ~LockedFile() { close(fd_); }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

  void Append(const std::string& line) {
    const ssize_t written = write(fd_, line.data(), line.size());
    RequireDone(written == static_cast<ssize_t>(line.size()), "write");
    RequireDone(fsync(fd_) == 0, "fsync");
  }

 private:
  const int fd_;
};

std::vector<WalletLedger::Charge> ReadAll(const std::string& path) {
  std::vector<WalletLedger::Charge> charges;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    WalletLedger::Charge charge;
    std::istringstream(line) >> charge.downstream_key >> charge.reference >>
        charge.id;
    charges.push_back(std::move(charge));
  }
  return charges;
}

std::optional<WalletLedger::Charge> FindIn(
    const std::vector<WalletLedger::Charge>& charges,
    const std::string& downstream_key) {
  for (const WalletLedger::Charge& charge : charges) {
    if (charge.downstream_key == downstream_key) return charge;
  }
  return std::nullopt;
}

}  // namespace

WalletLedger::Charge WalletLedger::Make(const std::string& downstream_key,
                                        const std::string& reference) {
  LockedFile file(path_);
  if (const auto made = FindIn(ReadAll(path_), downstream_key)) return *made;
  Charge charge{downstream_key, reference, NewClaimToken()};
  file.Append(charge.downstream_key + ' ' + charge.reference + ' ' + charge.id +
              '\n');
  return charge;
}

std::optional<WalletLedger::Charge> WalletLedger::Find(
    const std::string& downstream_key) const {
  return FindIn(All(), downstream_key);
}

std::vector<WalletLedger::Charge> WalletLedger::All() const {
  const LockedFile file(path_);
  return ReadAll(path_);
}

}  // namespace idempotency
