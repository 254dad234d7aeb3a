// The engine's errors as gRPC carries them.
#ifndef IDEMPOTENCY_SERVER_RPC_STATUS_H_
#define IDEMPOTENCY_SERVER_RPC_STATUS_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <optional>

#include "absl/status/status.h"
#include "google/rpc/status.pb.h"

namespace idempotency {

// What google.rpc.ErrorInfo names as the owner of the reasons.
inline constexpr char kErrorDomain[] = "idempotency.v1";
// The trailer that gRPC's own retries obey.
inline constexpr char kPushbackTrailer[] = "grpc-retry-pushback-ms";

// When the caller of an UNAVAILABLE call should come back: long enough for a
// queue to empty or a database connection to be made anew, or what the error
// itself says if that is longer; spread by half so that callers refused
// together do not come back together.
inline constexpr std::chrono::milliseconds kRetryDelay{200};
// A replica that drains is left for another one, which can answer at once.
inline constexpr std::chrono::milliseconds kDrainingRetryDelay{20};
inline constexpr double kRetryDelaySpread = 0.5;

// What the caller is told of an error.
struct ErrorReply {
  // Code, message and google.rpc details: ErrorInfo always, BadRequest when a
  // field is to blame, RetryInfo with UNAVAILABLE.
  google::rpc::Status details{};
  // For kPushbackTrailer; with UNAVAILABLE only.
  std::optional<std::chrono::milliseconds> pushback{};

  // As gRPC sends it at the end of a call.
  grpc::Status status() const;
};

// Must operators hear of `error`, because the service or its data is broken?
bool IsFault(const absl::Status& error);

// The status that ends a call or a stream of `context` with the error; adds
// the pushback to its trailers.
grpc::Status EndWith(const ErrorReply& reply,
                     grpc::CallbackServerContext& context);

// Of an error that errors.h did not make, the caller gets nothing but the code.
// A caller that went away gets a bare CANCELLED. `random`: fresh, evenly from 0
// to 1. REQUIRES: !error.ok().
ErrorReply ToErrorReply(const absl::Status& error, double random);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_STATUS_H_
