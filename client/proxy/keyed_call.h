// A unary call with a key that the sidecar makes at most once. For
// grpc_proxy.cc.
#ifndef IDEMPOTENCY_CLIENT_PROXY_KEYED_CALL_H_
#define IDEMPOTENCY_CLIENT_PROXY_KEYED_CALL_H_

#include <atomic>
#include <memory>
#include <string>

#include "client/mutex.h"
#include "client/proxy/grpc_proxy.h"
#include "client/proxy/grpc_upstream.h"
#include "client/run_once.h"
#include "grpcpp/generic/async_generic_service.h"

namespace idempotency::internal {

// Stays until gRPC is done with the call, and for as long as the service has
// the request. A caller that hangs up is done with at once; what was granted
// goes on.
class KeyedCall final : public grpc::ServerGenericBidiReactor,
                        public std::enable_shared_from_this<KeyedCall> {
 public:
  KeyedCall(RunOnce& once, std::shared_ptr<GrpcUpstream> upstream,
            std::shared_ptr<const GrpcRoute> route, std::string key,
            std::shared_ptr<void> slot,
            grpc::GenericCallbackServerContext& context);

  // Once, within CreateReactor().
  void Start();

  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  void Run();
  // Asks the service, once; `execution` is null for a call without a claim.
  void Ask(const std::shared_ptr<Execution>& execution,
           const Completion<FunctionResult>& completion);
  GrpcAnswer ForCaller(GrpcAnswer answer, bool unknown) const;
  // Only the first one counts.
  void Answer(const GrpcAnswer& answer, bool with_initial_metadata = false);

  RunOnce& once_;
  const std::shared_ptr<GrpcUpstream> upstream_;
  const std::shared_ptr<const GrpcRoute> route_;
  const std::string key_;
  const std::shared_ptr<void> slot_;
  // gRPC's, until Answer().
  grpc::GenericCallbackServerContext& context_;
  const std::string method_;
  // Complete when the claim is made; empty when the service is asked.
  UpstreamRequest request_;
  bool read_ = false;
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  // Of the service's answer, before that is given to the completion.
  GrpcMetadata initial_metadata_;
  // Its status was gRPC's own, not the service's.
  std::atomic<bool> lost_sight_{false};

  Mutex mutex_;
  std::unique_ptr<Running> running_ ABSL_GUARDED_BY(mutex_);
  bool answered_ ABSL_GUARDED_BY(mutex_) = false;
  // Until OnDone().
  std::shared_ptr<KeyedCall> self_;
};

}  // namespace idempotency::internal

#endif  // IDEMPOTENCY_CLIENT_PROXY_KEYED_CALL_H_
