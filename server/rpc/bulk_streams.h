// The method Bulk: its open streams, and their end.
#ifndef IDEMPOTENCY_SERVER_RPC_BULK_STREAMS_H_
#define IDEMPOTENCY_SERVER_RPC_BULK_STREAMS_H_

#include <grpcpp/support/server_callback.h>

#include <chrono>

#include "server/core/clock.h"
#include "server/core/limits.h"
#include "server/rpc/bulk_stream.h"
#include "server/rpc/random.h"
#include "server/rpc/stream_set.h"

namespace idempotency {

// Thread-safe; must outlive the grpc::Server that it is registered with.
class BulkStreams {
 public:
  static constexpr double kAgeSpread = 0.1;

  // Of `parts`, `done` is not looked at. A stream drains by itself after
  // `age_max`, more or less by kAgeSpread of it; zero: never.
  BulkStreams(BulkStream::Parts parts, std::chrono::nanoseconds age_max,
              RandomSource random);
  ~BulkStreams();

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Open(
      grpc::CallbackServerContext* context);

  // Drains every stream, and refuses those to come with DRAINING.
  void Drain();

  // Of every stream, as BulkStream::Look().
  void Look(SteadyTime now);

 private:
  BulkStream::Parts parts_;
  const std::chrono::nanoseconds age_max_;
  const RandomSource random_;
  StreamSet<BulkStream> streams_{limits::kBulkStreamsMax};
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_BULK_STREAMS_H_
