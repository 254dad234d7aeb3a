// The gRPC server with all its services, without gRPC in sight.
#ifndef IDEMPOTENCY_SERVER_RPC_SERVER_H_
#define IDEMPOTENCY_SERVER_RPC_SERVER_H_

#include <chrono>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/clock.h"
#include "server/rpc/options.h"

namespace idempotency {

// Thread-safe. It has threads of gRPC's own from Start() to its destruction.
class RpcServer {
 public:
  // Listens and takes calls at once; its health says "not serving" until
  // SetServing(true). An address that can't be listened on, because another
  // process does for one, is an error, and so are certificate files that don't
  // fit together.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(
      const ServerOptions& options, const ServiceOptions& service_options,
      const ServiceParts& parts);

  // As Shutdown() without grace.
  ~RpcServer();
  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  // The TCP port it listens on; of a unix socket, a positive number without
  // meaning.
  int port() const;

  // What health says, until StopServing().
  void SetServing(bool serving);
  bool serving() const;
  // Health says "not serving" for good; calls are still taken.
  void StopServing();

  // Streams of Bulk, present and future, end with DRAINING; one that has
  // commands in hand answers them first. Unary calls are the engine's to
  // refuse.
  void DrainStreams();

  // Ends streams of Bulk whose callers have taken no results for kBulkStallMax.
  // To be called now and then.
  void LookAtStreams(SteadyTime now);

  // Takes changed certificate files over for new connections; see
  // CertificateWatch::Look(). Nothing happens without TLS. By one thread at a
  // time.
  void LookAtCertificates(absl::Time now);
  // When the certificate that is served expires; none without TLS.
  std::optional<absl::Time> certificate_not_after() const;

  // Takes no more calls, lets those in hand end within `grace`, then cancels
  // them, and returns when each has been answered: the engine's lanes must
  // still be driven. Health watches and reflection end at once, streams of
  // Bulk as by DrainStreams(). Only the first call of it does anything.
  void Shutdown(std::chrono::milliseconds grace);

 private:
  struct Impl;
  explicit RpcServer(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_SERVER_H_
