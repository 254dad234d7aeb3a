// The four calls without a thread for each, sent until they are answered or
// their deadline is over.
#ifndef IDEMPOTENCY_CLIENT_ASYNC_CLIENT_H_
#define IDEMPOTENCY_CLIENT_ASYNC_CLIENT_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "client/coordinator.h"
#include "client/credentials.h"
#include "client/environment.h"
#include "client/retry.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"

namespace idempotency {

// When calls go over the stream `Bulk`, which makes many of them cheaper. What
// is answered is the same.
enum class BulkUse {
  kAuto,  // while many calls are under way
  kNever,
  kAlways,  // a lone call too, which takes a little longer there
};

struct ClientOptions {
  // How long a call may take, all its attempts together; Claim adds the
  // request's `wait` to it, of which the server grants at most 60 s.
  std::chrono::milliseconds timeout{5000};
  RetryOptions retry = {};
  BulkUse bulk = BulkUse::kAuto;
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

// Retries: UNAVAILABLE only (and CANCELLED, which a server that goes away makes
// of a call that reaches it too late), within the timeout and RetryOptions. The
// server's `grpc-retry-pushback-ms` is obeyed, else its RetryInfo, else
// exponential backoff with full jitter. A wait that would reach the deadline
// ends the call at once, with the error it has; without a connection an attempt
// after the first waits for one.
//
// Errors: the service's, see ToAbslStatus() and ErrorReasonOf(). A Claim,
// Finalize or Release that failed and may nevertheless have been carried out
// has the reason OUTCOME_UNKNOWN, whatever its code (UNAVAILABLE,
// DEADLINE_EXCEEDED): calling again with the same request finds out. An answer
// to Claim without an outcome that this client knows is UNAVAILABLE.
//
// Finalize: a body above `body_bytes_max`, or one that makes the message longer
// than the 4 MiB that gRPC takes, is sent as `body_omitted`; headers that are
// too long for a message even so, as `headers_omitted`.
//
// While some thirty calls or more are under way, new attempts go over the
// stream `Bulk` of a server that has it, and are answered as if they were calls
// of their own; but nothing but their deadline ends them early at the server,
// no pushback comes with them, only RetryInfo, and the server has bounds for a
// stream: beyond 1,024 claims that wait for other owners the next are answered
// InProgress at once, and recorded responses beyond its share of memory fail
// with OVERLOADED, to be sent again. A client has one such stream
// at a time, to one server: where the target has several addresses, the next
// stream goes to another, when the one before has ended or stands still. Long
// requests (above 256 KiB) remain calls.
//
// Thread-safe.
class AsyncClient final : public Coordinator {
 public:
  // A client with a channel of its own. `target` is a gRPC name:
  // "127.0.0.1:50051", "dns:///coordinator:50051"; where it has several
  // addresses, calls and retries go round them. Connects with the first call.
  static std::unique_ptr<AsyncClient> Connect(
      const std::string& target, const ClientOptions& options = {});

  // Over a channel of the caller's. gRPC's own retries must be off in it
  // (GRPC_ARG_ENABLE_RETRIES = 0): two retry policies multiply.
  // `options.credentials` and `options.tls` have no effect.
  explicit AsyncClient(std::shared_ptr<grpc::ChannelInterface> channel,
                       const ClientOptions& options = {});

  // CancelCalls(), and waits until each has been answered. Not from within an
  // answer.
  ~AsyncClient() override;
  AsyncClient(const AsyncClient&) = delete;
  AsyncClient& operator=(const AsyncClient&) = delete;

  void Claim(const v1::ClaimRequest& request, const CallOptions& options,
             Answered<v1::ClaimResponse> answered) override;
  void Finalize(const v1::FinalizeRequest& request, const CallOptions& options,
                Answered<v1::FinalizeResponse> answered) override;
  void Lookup(const v1::LookupRequest& request, const CallOptions& options,
              Answered<v1::LookupResponse> answered) override;
  void Release(const v1::ReleaseRequest& request, const CallOptions& options,
               Answered<v1::ReleaseResponse> answered) override;

  // Ends the calls that are under way, soon: each is answered, with CANCELLED
  // unless it has another answer by then. Later calls are made as ever.
  void CancelCalls();

  ClientEnvironment& environment() const;

 private:
  struct Shared;
  template <typename Request, typename Response>
  class Call;

  explicit AsyncClient(std::unique_ptr<Shared> shared);

  const std::unique_ptr<Shared> shared_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_ASYNC_CLIENT_H_
