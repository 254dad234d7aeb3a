#include "server/rpc/bulk_streams.h"

#include <memory>
#include <utility>

#include "server/core/errors.h"

namespace idempotency {

BulkStreams::BulkStreams(BulkStream::Parts parts,
                         std::chrono::nanoseconds age_max, RandomSource random)
    : parts_(std::move(parts)), age_max_(age_max), random_(std::move(random)) {
  parts_.done = [this](const BulkStream* stream) { streams_.Remove(stream); };
}

BulkStreams::~BulkStreams() = default;

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* BulkStreams::Open(
    grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<BulkStream>(parts_, context);
  switch (streams_.Add(stream)) {
    case StreamSet<BulkStream>::Admission::kAdmitted:
      stream->Start(std::chrono::nanoseconds(static_cast<std::int64_t>(Jittered(
          static_cast<double>(age_max_.count()), kAgeSpread, random_()))));
      break;
    case StreamSet<BulkStream>::Admission::kFull:
      stream->Reject(MakeError(Reason::kOverloaded,
                               "too many streams are open on this server"));
      break;
    case StreamSet<BulkStream>::Admission::kClosed:
      stream->Reject(
          MakeError(Reason::kDraining, "this server is shutting down"));
      break;
  }
  return stream.get();
}

void BulkStreams::Drain() {
  streams_.Close();
  for (const auto& stream : streams_.All()) stream->Drain();
}

void BulkStreams::Look(SteadyTime now) {
  for (const auto& stream : streams_.All()) stream->Look(now);
}

}  // namespace idempotency
