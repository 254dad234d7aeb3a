// What a caller of a gRPC service that executes once is told where there is no
// response of the service's own.
//
//   outcome                    status
//   kInvalid                   INVALID_ARGUMENT
//   kMismatch, kInDoubt        FAILED_PRECONDITION  MISMATCH, IN_DOUBT
//   kInProgress                ABORTED              IN_PROGRESS, with RetryInfo
//   kConflict                  ABORTED              CONFLICT
//   kUnavailable, kHungUp      UNAVAILABLE          UNAVAILABLE
//   kNothingHappened           as the handler says
//   kUnknown                   as the handler says, or UNKNOWN
//
// The words in capitals are the reason of a google.rpc.ErrorInfo in the status
// details, of the domain "idempotency.v1": ErrorReasonOf() in status.h reads
// it. An error of the coordinator keeps the details that it has.
#ifndef IDEMPOTENCY_CLIENT_GRPC_CALL_STATUS_H_
#define IDEMPOTENCY_CLIENT_GRPC_CALL_STATUS_H_

#include <string>

#include "absl/status/status.h"
#include "client/operation.h"
#include "grpcpp/support/status.h"

namespace idempotency {

// With an ErrorInfo of that reason.
grpc::Status CallStatus(grpc::StatusCode code, const std::string& reason,
                        const std::string& message);

// The same code, message and details. Nobody's answer is OK for want of a
// reason: an OK becomes UNKNOWN.
grpc::Status ToGrpcError(const absl::Status& status);

// Of a result without a response.
grpc::Status StatusOf(const RunResult& result);

// Whether the operation was not claimed because the coordinator did not answer.
bool HasNoCoordinator(const RunResult& result);

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_GRPC_CALL_STATUS_H_
