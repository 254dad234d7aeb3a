// The four calls of idempotency.v1.IdempotencyService. Each is validated here,
// decided by the engine and answered from there: no thread of gRPC ever waits
// for the store.
#ifndef IDEMPOTENCY_SERVER_RPC_SERVICE_H_
#define IDEMPOTENCY_SERVER_RPC_SERVICE_H_

#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "idempotency/v1/idempotency.grpc.pb.h"
#include "server/core/call.h"
#include "server/core/clock.h"
#include "server/core/metrics.h"
#include "server/core/uuid.h"
#include "server/rpc/options.h"

namespace idempotency {

// Thread-safe.
class Service final : public v1::IdempotencyService::CallbackService {
 public:
  Service(const ServiceOptions& options, const ServiceParts& parts);

  grpc::ServerUnaryReactor* Claim(grpc::CallbackServerContext* context,
                                  const v1::ClaimRequest* request,
                                  v1::ClaimResponse* response) override;
  grpc::ServerUnaryReactor* Finalize(grpc::CallbackServerContext* context,
                                     const v1::FinalizeRequest* request,
                                     v1::FinalizeResponse* response) override;
  grpc::ServerUnaryReactor* Lookup(grpc::CallbackServerContext* context,
                                   const v1::LookupRequest* request,
                                   v1::LookupResponse* response) override;
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context,
                                    const v1::ReleaseRequest* request,
                                    v1::ReleaseResponse* response) override;

 private:
  // A call in hand, counted as started.
  struct Started {
    grpc::CallbackServerContext* context;
    grpc::ServerUnaryReactor* reactor;
    CallMetrics* counts;
    SteadyTime at;
  };

  // Puts a handler of the service's own in place of the generated one.
  template <typename Request, typename Response>
  void Install(CallKind kind,
               grpc::ServerUnaryReactor* (Service::*method)(
                   grpc::CallbackServerContext*, const Request*, Response*));
  Started Start(CallKind kind, grpc::CallbackServerContext* context) const;
  CallContext ContextOf(const Started& call,
                        std::chrono::nanoseconds wait) const;
  // The outcome of a call written for a record whose downstream key the answer
  // shows: Claim and Lookup.
  template <typename Outcome, typename Request, typename Response>
  absl::Status Write(absl::StatusOr<Outcome> outcome, const Request& request,
                     Response& response) const;
  absl::StatusOr<Uuid> DownstreamNamespace() const;
  // Ends the call. Nothing of it may be touched afterwards.
  grpc::ServerUnaryReactor* Finish(const Started& call,
                                   const absl::Status& status) const;
  // Likewise with OK, and with an error that is no news to operators.
  grpc::ServerUnaryReactor* FinishCounted(const Started& call,
                                          const grpc::Status& status) const;
  grpc::ServerUnaryReactor* Refuse(const Started& call,
                                   const absl::Status& error) const;

  const ServiceOptions options_;
  const ServiceParts parts_;
};

// When a call must be answered on the steady clock: at the caller's deadline,
// which is on the system's clock, but at most `longest` from now.
SteadyTime AnswerBy(std::chrono::system_clock::time_point deadline,
                    std::chrono::system_clock::time_point system_now,
                    SteadyTime steady_now, std::chrono::nanoseconds longest);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_SERVICE_H_
