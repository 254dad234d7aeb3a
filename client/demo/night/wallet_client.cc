#include "client/demo/night/wallet_client.h"

#include "client/status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace idempotency::night {
namespace {

// One call's, which ends at its deadline.
class Context : public grpc::ClientContext {
 public:
  explicit Context(std::chrono::milliseconds timeout) {
    set_deadline(std::chrono::system_clock::now() + timeout);
  }
};

}  // namespace

WalletClient::WalletClient(const std::string& target,
                           std::chrono::milliseconds timeout)
    : wallet_(Wallet::NewStub(
          grpc::CreateChannel(target, grpc::InsecureChannelCredentials()))),
      timeout_(timeout) {}

absl::StatusOr<LedgerEntry> WalletClient::Charge(
    std::int64_t amount, const std::string& idempotency_key) {
  Context context(timeout_);
  ChargeRequest request;
  request.set_amount(amount);
  request.set_idempotency_key(idempotency_key);
  LedgerEntry entry;
  const grpc::Status status = wallet_->Charge(&context, request, &entry);
  if (!status.ok()) return ToAbslStatus(status);
  return entry;
}

absl::StatusOr<std::optional<LedgerEntry>> WalletClient::Find(
    const std::string& idempotency_key) {
  Context context(timeout_);
  FindRequest request;
  request.set_idempotency_key(idempotency_key);
  FindResponse found;
  const grpc::Status status = wallet_->Find(&context, request, &found);
  if (!status.ok()) return ToAbslStatus(status);
  if (!found.has_entry()) return std::nullopt;
  return found.entry();
}

absl::StatusOr<std::vector<LedgerEntry>> WalletClient::Ledger() {
  Context context(timeout_);
  ListResponse list;
  const grpc::Status status = wallet_->List(&context, ListRequest(), &list);
  if (!status.ok()) return ToAbslStatus(status);
  return std::vector<LedgerEntry>(list.entries().begin(), list.entries().end());
}

absl::Status WalletClient::LoseAnswers(int count) {
  Context context(timeout_);
  LoseAnswersRequest request;
  request.set_count(count);
  LoseAnswersResponse response;
  return ToAbslStatus(wallet_->LoseAnswers(&context, request, &response));
}

}  // namespace idempotency::night
