// The stream `Bulk` as the client uses it, and the streams of one client. For
// async_client.cc; not installed.
#ifndef IDEMPOTENCY_CLIENT_BULK_STREAM_H_
#define IDEMPOTENCY_CLIENT_BULK_STREAM_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
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

// A stream on which so long nothing is asked gives its place at the server up:
// after at least half of this time.
inline constexpr std::chrono::seconds kBulkIdleMax{30};

// What the end of a stream says about the next one.
struct StreamEnd {
  bool answered = false;
  bool lost = false;  // nobody said why, and nothing was answered
  std::chrono::nanoseconds pause{0};  // until another one is tried
};

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
  BulkStream(BulkStreams& streams, std::chrono::nanoseconds idle_max)
      : streams_(streams), idle_max_(idle_max) {}

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
  void SetIdleTimer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndIfIdle();

  BulkStreams& streams_;
  const std::chrono::nanoseconds idle_max_;

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
  std::unique_ptr<Timer> idle_timer_ ABSL_GUARDED_BY(mutex_);
  bool used_ ABSL_GUARDED_BY(mutex_) = false;  // since the idle timer was set
  std::unique_ptr<Timer> timer_ ABSL_GUARDED_BY(mutex_);
  std::optional<BulkQueue::TimePoint> timer_at_ ABSL_GUARDED_BY(mutex_);
};

// The streams of one client: one at a time is given commands, over the newest
// connection, and so to one server; when it ends, the next one may go to
// another. A server that lacks Bulk, or never answers on a stream, is not asked
// for one for a minute; one that has no room, for as long as it says; and where
// streams are lost one after the other before they answer anything, as behind a
// proxy that does not pass them, for ever longer, up to a minute.
//
// Thread-safe.
class BulkStreams {
 public:
  explicit BulkStreams(std::chrono::nanoseconds idle_max = kBulkIdleMax)
      : idle_max_(idle_max) {}
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
  // The stream has ended, its commands have not.
  void Ended(const BulkStream* stream, const StreamEnd& end);
  // Its commands have ended too, and gRPC was let go of.
  void Gone(BulkStream* stream);

  const std::chrono::nanoseconds idle_max_;

  Mutex mutex_;
  ConditionVariable changed_;
  // Null, or the one that is given commands, and over what.
  std::shared_ptr<BulkStream> current_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Connection> connection_ ABSL_GUARDED_BY(mutex_);
  // Of the connections that had a stream.
  std::uint64_t newest_generation_ ABSL_GUARDED_BY(mutex_) = 0;
  // Those that gRPC has not let go of.
  std::unordered_set<BulkStream*> streams_ ABSL_GUARDED_BY(mutex_);
  BulkQueue::TimePoint not_before_ ABSL_GUARDED_BY(mutex_) =
      BulkQueue::TimePoint::min();
  int lost_in_a_row_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace idempotency::internal

#endif  // IDEMPOTENCY_CLIENT_BULK_STREAM_H_
