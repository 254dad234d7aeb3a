// The C++ client of the coordinator: the four calls, sent until they are
// answered or their deadline is over.
//
//   auto client = idempotency::Client::Connect("127.0.0.1:50051");
//   idempotency::v1::ClaimRequest request;
//   request.set_scope("payments");
//   request.set_key(key_of_the_caller);
//   request.set_request_hash(hash_of_the_request);  // request_hash.h
//   auto claim = client->Claim(request);
//   if (claim.ok() && claim->has_claimed()) {
//     // Execute, then Finalize with request.claim_token().
//   }
//
// Execute only upon `claimed`. Any error means: do not execute.
#ifndef IDEMPOTENCY_CLIENT_CLIENT_H_
#define IDEMPOTENCY_CLIENT_CLIENT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/async_client.h"
#include "client/coordinator.h"
#include "client/status.h"
#include "grpcpp/channel.h"

namespace idempotency {

// Every call blocks until it is answered or given up, and is safe to make
// again with the same arguments.
//
// Retries, errors and what is left out of a Finalize: as AsyncClient.
//
// Thread-safe.
class Client {
 public:
  // As AsyncClient's, both.
  static std::unique_ptr<Client> Connect(const std::string& target,
                                         const ClientOptions& options = {});

  explicit Client(std::shared_ptr<grpc::ChannelInterface> channel,
                  const ClientOptions& options = {});

  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Puts a new claim token into `request` where it has none (but never into a
  // renewal, which speaks for a token it has). The token is in `request` before
  // anything is sent and stays there whatever the result: keep it for Finalize
  // and Release, and for calling Claim again.
  absl::StatusOr<v1::ClaimResponse> Claim(v1::ClaimRequest& request,
                                          const CallOptions& options = {});

  absl::StatusOr<v1::FinalizeResponse> Finalize(
      const v1::FinalizeRequest& request, const CallOptions& options = {});

  absl::StatusOr<v1::LookupResponse> Lookup(const v1::LookupRequest& request,
                                            const CallOptions& options = {});

  absl::StatusOr<v1::ReleaseResponse> Release(const v1::ReleaseRequest& request,
                                              const CallOptions& options = {});

 private:
  explicit Client(std::unique_ptr<AsyncClient> async);

  const std::unique_ptr<AsyncClient> async_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_CLIENT_H_
