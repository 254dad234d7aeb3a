// The stream `Bulk` as the client uses it, and the streams of one client. For
// async_client.cc; not installed.
#ifndef IDEMPOTENCY_CLIENT_BULK_STREAM_H_
#define IDEMPOTENCY_CLIENT_BULK_STREAM_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <unordered_set>
#include <vector>

#include "client/bulk_queue.h"
#include "client/connection.h"
#include "client/environment.h"
#include "client/mutex.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "idempotency/v1/idempotency.pb.h"

namespace idempotency::internal {

class BulkStreams;

// One stream. What is handed over while a message is being written makes up the
// next one: no timer, and no command waits for company.
//
// Commands end without a lock: in gRPC's threads, or in the thread of the
// clock's timers.
//
// Thread-safe.
class BulkStream final
    : public grpc::ClientBidiReactor<v1::BulkRequest, v1::BulkResponse>,
      public std::enable_shared_from_this<BulkStream> {
 public:
  // `streams` is told of the end, and waits for it.
  explicit BulkStream(BulkStreams& streams) : streams_(streams) {}

  // Once, before anything else. The stream keeps itself alive until it ends.
  void Open(v1::IdempotencyService::StubInterface& stub);

  // False: it takes no command, or no more at the moment. True: the command
  // will end, after Flush(). Nothing of the command is called in here.
  bool Enqueue(std::shared_ptr<BulkCommand> command, std::size_t request_bytes,
               std::chrono::nanoseconds timeout);
  // Sends what was handed over, or leaves it to the write that is under way.
  void Flush();

  bool open() const;
  // Takes no more commands, and ends once those it has are answered.
  void Retire();
  // Its commands fail with CANCELLED, soon.
  void CancelCommands();
  // Ends it, soon.
  void Cancel();

 private:
  enum class Step { kNone, kWrite, kHalfClose };

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnWritesDoneDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  // What is to be done next of what gRPC allows one of at a time. Anything but
  // kNone has a hold on the stream, for Perform() to remove.
  Step NextStep();
  void Perform(Step step);
  void FillMessage();
  void TakeRequestsBack();
  void SetTimer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TimePassed();

  BulkStreams& streams_;

  // Of the write that is under way.
  std::vector<BulkQueue::Outgoing> outgoing_;
  v1::BulkRequest request_;
  v1::BulkResponse response_;  // of the read that is under way

  mutable Mutex mutex_;
  BulkQueue queue_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<BulkStream> self_ ABSL_GUARDED_BY(mutex_);
  // From Open() to the end.
  std::optional<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;   // takes no more commands
  bool over_ ABSL_GUARDED_BY(mutex_) = false;     // gRPC said so
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // or half-closed
  std::unique_ptr<Timer> timer_ ABSL_GUARDED_BY(mutex_);
  std::optional<BulkQueue::TimePoint> timer_at_ ABSL_GUARDED_BY(mutex_);
};

// The streams of one client: one at a time is given commands, over the newest
// connection, and so to one server; when it ends, the next one may go to
// another. A server that lacks Bulk, or never answers on a stream, is not asked
// for one for a minute.
//
// Thread-safe.
class BulkStreams {
 public:
  BulkStreams() = default;
  // Cancels the streams, which must have no command left, and waits until they
  // have ended. Not from a thread of gRPC's.
  ~BulkStreams();
  BulkStreams(const BulkStreams&) = delete;
  BulkStreams& operator=(const BulkStreams&) = delete;

  // The stream that has taken the command, to be flushed; null: none does. A
  // call's first attempt may open a stream over a connection that is still to
  // be made; later ones, only over one that stands.
  std::shared_ptr<BulkStream> Enqueue(
      const std::shared_ptr<const Connection>& connection, bool first_attempt,
      std::shared_ptr<BulkCommand> command, std::size_t request_bytes,
      std::chrono::nanoseconds timeout);

  // Of all streams.
  void CancelCommands();

 private:
  std::shared_ptr<BulkStream> StreamOver(
      const std::shared_ptr<const Connection>& connection, bool first_attempt);

  friend BulkStream;
  // The stream has ended, its commands have not. `of_use`: another one may be
  // tried soon.
  void Ended(const BulkStream* stream, bool of_use);
  // Its commands have ended too, and gRPC was let go of.
  void Gone(BulkStream* stream);

  Mutex mutex_;
  ConditionVariable changed_;
  // Null, or the one that is given commands, and over what.
  std::shared_ptr<BulkStream> current_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Connection> connection_ ABSL_GUARDED_BY(mutex_);
  // Those that gRPC has not let go of.
  std::unordered_set<BulkStream*> streams_ ABSL_GUARDED_BY(mutex_);
  BulkQueue::TimePoint not_before_ ABSL_GUARDED_BY(mutex_) =
      BulkQueue::TimePoint::min();
};

}  // namespace idempotency::internal

#endif  // IDEMPOTENCY_CLIENT_BULK_STREAM_H_
