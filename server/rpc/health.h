// grpc.health.v1.Health. It is not gRPC's own: that one says SERVING before
// anybody had a chance to say otherwise, and reflection can't describe it.
#ifndef IDEMPOTENCY_SERVER_RPC_HEALTH_H_
#define IDEMPOTENCY_SERVER_RPC_HEALTH_H_

#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <set>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"
#include "server/core/mutex.h"
#include "server/rpc/stream_set.h"

namespace idempotency {

// Answers for the whole server, named "", and for the services it was given,
// all of which serve or do not serve together. Not serving at first.
// Thread-safe; must outlive the grpc::Server that it is registered with.
class Health final : public grpc::health::v1::Health::CallbackService {
 public:
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  // Watch calls beyond this many are refused with RESOURCE_EXHAUSTED.
  static constexpr std::size_t kWatchersMax = 1000;

  explicit Health(std::set<std::string> services,
                  std::size_t watchers_max = kWatchersMax);
  ~Health() override;

  // Without effect after Shutdown().
  void SetServing(bool serving);
  bool serving() const;
  // Not serving, for good. Whoever watches is told and goes on watching.
  void Shutdown();
  // Ends every Watch, present and future, with UNAVAILABLE, so that none
  // delays the server's end.
  void EndWatches();

  grpc::ServerUnaryReactor* Check(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request,
      grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  class Watcher;

  Status StatusOf(const std::string& service) const;
  void TellWatchers();

  const std::set<std::string> services_;
  StreamSet<Watcher> watchers_;

  mutable Mutex mutex_;
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_HEALTH_H_
