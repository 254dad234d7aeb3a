// What a caller of a gRPC service that executes once is told where there is no
// response of the service's own.
//
//   outcome                  status               reason
//   key missing, malformed   INVALID_ARGUMENT     KEY_MISSING, KEY_MALFORMED
//   kMismatch                FAILED_PRECONDITION  KEY_REUSED
//   kInDoubt                 FAILED_PRECONDITION  IN_DOUBT
//   kInProgress              ABORTED              IN_PROGRESS, and RetryInfo
//   kConflict                ABORTED              SUPERSEDED
//   response too long        DATA_LOSS            RESPONSE_NOT_KEPT
//   kUnavailable, kHungUp    UNAVAILABLE          UNAVAILABLE
//   kInvalid                 INTERNAL             MISCONFIGURED: the rule is
//                                                 not what the coordinator
//                                                 takes
//   kUnknown                 as the handler says  OUTCOME_UNKNOWN
//   kNothingHappened         as the handler says
//
// The reason is that of a google.rpc.ErrorInfo in the status details, of the
// domain "idempotency.v1": ErrorReasonOf() in status.h reads it. A handler's
// own ErrorInfo stays instead. What the coordinator said about an error is not
// shown: it is for the service's own eyes (OnceRule::notice).
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

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_GRPC_CALL_STATUS_H_
