#include "client/demo/night/ledger.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace idempotency::night {
namespace {

constexpr char kNoKey[] = "-";

absl::StatusOr<LedgerEntry> Parse(const std::string& line) {
  const std::vector<std::string> fields = absl::StrSplit(line, '\t');
  std::int64_t amount = 0;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[2], &amount)) {
    return absl::DataLossError(absl::StrCat("no line of a ledger: ", line));
  }
  LedgerEntry entry;
  entry.set_id(fields[0]);
  if (fields[1] != kNoKey) entry.set_idempotency_key(fields[1]);
  entry.set_amount(amount);
  return entry;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Ledger>> Ledger::Open(const std::string& file) {
  std::vector<LedgerEntry> entries;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    absl::StatusOr<LedgerEntry> entry = Parse(line);
    if (!entry.ok()) return entry.status();
    entries.push_back(*std::move(entry));
  }
  const int fd = open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC,
                      S_IRUSR | S_IWUSR);
  if (fd < 0) return absl::ErrnoToStatus(errno, file);
  return std::unique_ptr<Ledger>(new Ledger(fd, std::move(entries)));
}

Ledger::Ledger(int fd, std::vector<LedgerEntry> entries)
    : fd_(fd), entries_(std::move(entries)) {}

Ledger::~Ledger() { close(fd_); }

absl::StatusOr<LedgerEntry> Ledger::Append(const ChargeRequest& charge) {
  const std::string& key = charge.idempotency_key();
  if (key == kNoKey || key.find_first_of("\t\n") != std::string::npos) {
    return absl::InvalidArgumentError("idempotency_key");
  }
  LedgerEntry entry;
  entry.set_id(absl::StrCat("charge-", entries_.size() + 1));
  entry.set_idempotency_key(key);
  entry.set_amount(charge.amount());
  const std::string line = absl::StrCat(
      entry.id(), "\t", key.empty() ? kNoKey : key, "\t", entry.amount(), "\n");
  const ssize_t written = write(fd_, line.data(), line.size());
  if (written != static_cast<ssize_t>(line.size()) || fsync(fd_) != 0) {
    return absl::ErrnoToStatus(errno, "the ledger");
  }
  entries_.push_back(entry);
  return entry;
}

std::optional<LedgerEntry> Ledger::Find(
    const std::string& idempotency_key) const {
  for (const LedgerEntry& entry : entries_) {
    if (entry.idempotency_key() == idempotency_key) return entry;
  }
  return std::nullopt;
}

}  // namespace idempotency::night
