// The C++ client of the coordinator: the four calls, sent until they are
// answered or their deadline is over.
//
//   auto client = idempotency::Client::Connect("127.0.0.1:50051");
//   idempotency::v1::ClaimRequest request;
//   request.set_scope("payments");
//   request.set_key(key_of_the_caller);
//   request.set_request_hash(sha256_of_the_request);
//   auto claim = client->Claim(request);
//   if (claim.ok() && claim->has_claimed()) {
//     // Execute, then Finalize with request.claim_token().
//   }
//
// Execute only upon `claimed`. Any error means: do not execute.
#ifndef IDEMPOTENCY_CLIENT_CLIENT_H_
#define IDEMPOTENCY_CLIENT_CLIENT_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/credentials.h"
#include "client/environment.h"
#include "client/retry.h"
#include "client/status.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"
#include "idempotency/v1/idempotency.grpc.pb.h"

namespace idempotency {

struct ClientOptions {
  // How long a call may take, all its attempts together; Claim adds the
  // request's `wait` to it, of which the server grants at most 60 s.
  std::chrono::milliseconds timeout{5000};
  RetryOptions retry = {};
  // What the server keeps of a body, in bytes: its own setting, at most 3 MiB.
  std::size_t body_bytes_max = std::size_t{1} << 20;
  // TLS with files that may change: calls go over a new connection once they
  // have. Null: as `credentials` says.
  std::shared_ptr<TlsFiles> tls = nullptr;
  // Where `tls` is null; fixed. Null: without encryption.
  std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr;
  // Null: SystemEnvironment().
  std::shared_ptr<ClientEnvironment> environment = nullptr;
};

struct CallOptions {
  // Instead of the client's timeout and of what Claim adds to it. Zero or
  // negative: the call ends without being sent.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
};

// Every call blocks until it is answered or given up, and is safe to make
// again with the same arguments.
//
// Retries: UNAVAILABLE only (and CANCELLED, which a server that goes away makes
// of a call that reaches it too late), within the timeout and RetryOptions. The
// server's `grpc-retry-pushback-ms` is obeyed, else its RetryInfo, else
// exponential backoff with full jitter. A wait that would reach the deadline
// ends the call at once, with the error it has.
//
// Errors: the service's, see ToAbslStatus() and ErrorReasonOf(). A Claim,
// Finalize or Release that failed and may nevertheless have been carried out
// has the reason OUTCOME_UNKNOWN, whatever its code (UNAVAILABLE,
// DEADLINE_EXCEEDED): calling again with the same request finds out.
//
// Thread-safe.
class Client {
 public:
  // A client with a channel of its own. `target` is a gRPC name:
  // "127.0.0.1:50051", "dns:///coordinator:50051"; where it has several
  // addresses, calls and retries go round them. Connects with the first call.
  static std::unique_ptr<Client> Connect(const std::string& target,
                                         const ClientOptions& options = {});

  // Over a channel of the caller's. gRPC's own retries must be off in it
  // (GRPC_ARG_ENABLE_RETRIES = 0): two retry policies multiply.
  // `options.credentials` and `options.tls` have no effect.
  explicit Client(std::shared_ptr<grpc::ChannelInterface> channel,
                  const ClientOptions& options = {});

  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Puts a new claim token into `request` where it has none (but never into a
  // renewal, which speaks for a token it has). The token is in `request` before
  // anything is sent and stays there whatever the result: keep it for Finalize
  // and Release, and for calling Claim again. An answer without an outcome that
  // this client knows is UNAVAILABLE.
  absl::StatusOr<v1::ClaimResponse> Claim(v1::ClaimRequest& request,
                                          const CallOptions& options = {});

  // A body above `body_bytes_max`, or one that makes the message longer than
  // the 4 MiB that gRPC takes, is sent as `body_omitted`; headers that are too
  // long for a message even so, as `headers_omitted`.
  absl::StatusOr<v1::FinalizeResponse> Finalize(
      const v1::FinalizeRequest& request, const CallOptions& options = {});

  absl::StatusOr<v1::LookupResponse> Lookup(const v1::LookupRequest& request,
                                            const CallOptions& options = {});

  absl::StatusOr<v1::ReleaseResponse> Release(const v1::ReleaseRequest& request,
                                              const CallOptions& options = {});

 private:
  template <typename Request, typename Response>
  struct Method;
  struct Connection;

  Client(std::string target, const ClientOptions& options);

  // The connection for the next attempt of a call: a new one once the files of
  // options_.tls have changed. Calls on the old one end there.
  std::shared_ptr<const Connection> Current();
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(const Method<Request, Response>& method,
                                const Request& request,
                                std::chrono::nanoseconds timeout);
  // False when there is no connection by the deadline.
  bool WaitBeforeRetry(const Connection& connection,
                       std::chrono::nanoseconds wait,
                       ClientEnvironment::TimePoint deadline);

  // Constant after construction.
  const ClientOptions options_;
  const std::shared_ptr<ClientEnvironment> environment_;
  const std::string target_;  // empty: the channel is the caller's

  absl::Mutex mutex_;
  std::shared_ptr<const Connection> connection_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_CLIENT_H_
