#include "client/client.h"

#include <optional>
#include <utility>

#include "absl/synchronization/notification.h"

namespace idempotency {
namespace {

// The answer of the call that `start` makes.
template <typename Response, typename Start>
absl::StatusOr<Response> Await(const Start& start) {
  absl::Notification done;
  std::optional<absl::StatusOr<Response>> result;
  start([&](absl::StatusOr<Response> answer) {
    result = std::move(answer);
    done.Notify();
  });
  done.WaitForNotification();
  return *std::move(result);
}

}  // namespace

std::unique_ptr<Client> Client::Connect(const std::string& target,
                                        const ClientOptions& options) {
  return std::unique_ptr<Client>(
      new Client(AsyncClient::Connect(target, options)));
}

Client::Client(std::shared_ptr<grpc::ChannelInterface> channel,
               const ClientOptions& options)
    : Client(std::make_unique<AsyncClient>(std::move(channel), options)) {}

Client::Client(std::unique_ptr<AsyncClient> async) : async_(std::move(async)) {}

absl::StatusOr<v1::ClaimResponse> Client::Claim(v1::ClaimRequest& request,
                                                const CallOptions& options) {
  if (request.claim_token().empty() && request.renew_fencing_token() == 0) {
    request.set_claim_token(NewClaimToken(async_->environment()));
  }
  return Await<v1::ClaimResponse>([&](auto answered) {
    async_->Claim(request, options, std::move(answered));
  });
}

absl::StatusOr<v1::FinalizeResponse> Client::Finalize(
    const v1::FinalizeRequest& request, const CallOptions& options) {
  return Await<v1::FinalizeResponse>([&](auto answered) {
    async_->Finalize(request, options, std::move(answered));
  });
}

absl::StatusOr<v1::LookupResponse> Client::Lookup(
    const v1::LookupRequest& request, const CallOptions& options) {
  return Await<v1::LookupResponse>([&](auto answered) {
    async_->Lookup(request, options, std::move(answered));
  });
}

absl::StatusOr<v1::ReleaseResponse> Client::Release(
    const v1::ReleaseRequest& request, const CallOptions& options) {
  return Await<v1::ReleaseResponse>([&](auto answered) {
    async_->Release(request, options, std::move(answered));
  });
}

}  // namespace idempotency
