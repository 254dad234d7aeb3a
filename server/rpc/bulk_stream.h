// One stream of Bulk: reads commands, has them decided, and writes the results
// in any order, as many together as have gathered while the last message was
// being written.
#ifndef IDEMPOTENCY_SERVER_RPC_BULK_STREAM_H_
#define IDEMPOTENCY_SERVER_RPC_BULK_STREAM_H_

#include <grpcpp/alarm.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "idempotency/v1/idempotency.pb.h"
#include "server/core/clock.h"
#include "server/core/metrics.h"
#include "server/core/mutex.h"
#include "server/rpc/bulk_outbox.h"
#include "server/rpc/decider.h"
#include "server/rpc/reply_budget.h"

namespace idempotency {

// Thread-safe. The stream is done only when every command it read has been
// answered, so that what it uses need not outlive its OnDone().
//
// gRPC hands over messages as bytes: one that can't be parsed is then not taken
// for the caller's end, and results are serialised once, by whoever made them.
class BulkStream final
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
      public std::enable_shared_from_this<BulkStream> {
 public:
  struct Parts {
    const Decider& decider;
    ReplyBudget& budget;
    StreamMetrics& metrics;
    // Runs when gRPC is done with the stream.
    std::function<void(const BulkStream*)> done;
  };

  // Kept by a shared pointer. `context` is gRPC's, until the stream is done.
  BulkStream(Parts parts, grpc::CallbackServerContext* context);

  // Begins to read. Drains after `age`; zero: never by itself.
  void Start(std::chrono::nanoseconds age);
  // Ends a stream that has not been started.
  void Reject(const absl::Status& error);
  // Refuses what it reads from now on with DRAINING, and ends with that when
  // the rest has been answered; claims that wait for another owner are soon.
  void Drain();

  // To be called now and then. Cancels the stream when its caller takes none of
  // the results: when two calls have found the same message under way,
  // kBulkStallMax apart.
  void Look(SteadyTime now);

  // The caller has gone away: what is queued need not be decided any more.
  bool gone() const { return gone_.load(std::memory_order_relaxed); }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  // What the stream keeps of a command until it is answered.
  struct Ticket {
    std::uint64_t id = 0;
    std::size_t bytes = 0;
    bool waits = false;
  };
  template <typename Wire>
  struct CommandInHand;
  // What is to be asked of gRPC next.
  struct Step {
    bool read = false;
    bool write = false;
    bool cancel = false;
    std::optional<absl::Status> end{};
  };

  absl::Status ReadMessage();
  void Carry(const v1::Command& command);
  template <typename Wire>
  void CarryAs(const v1::Command& command,
               const typename Wire::Request& request);
  // Puts the command in flight, and says in `ticket` whether it may wait; an
  // error if it is not to be decided.
  absl::Status Admit(Ticket& ticket);
  bool Reserve(std::size_t bytes);
  // Answers a command that is not in flight.
  void Refuse(std::uint64_t id, const ErrorReply& error);
  // Queues a result. With `ticket`, its command is in flight no more; gives
  // back what was reserved for it.
  void Deliver(const v1::Result& result, const Ticket* ticket,
               std::size_t reserved);

  // After each change of what is guarded: is the caller to Drive()?
  bool Changed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes steps until there is none to take. One thread at a time, so that the
  // last of them is the last thing that gRPC is asked. Afterwards the stream
  // may be gone, but for a shared pointer.
  void Drive();
  Step NextStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::size_t Unsent() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<absl::Status> EndOf() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(const absl::Status& status);

  const Parts parts_;
  grpc::CallbackServerContext* const context_;
  // Written under the lock, as what else decides the next step.
  std::atomic<bool> gone_{false};
  std::atomic<bool> draining_{false};

  mutable Mutex mutex_;
  // A read is in gRPC's hands, or about to be, or its message is being taken
  // in, which is `handling_`.
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool handling_ ABSL_GUARDED_BY(mutex_) = false;
  // The message in gRPC's hands, or about to be; 0: none.
  std::size_t writing_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // When Look() found that message first.
  std::optional<SteadyTime> writing_since_ ABSL_GUARDED_BY(mutex_);
  bool stalled_ ABSL_GUARDED_BY(mutex_) = false;
  // Why the stream is to end; the first that holds counts.
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  // Commands that have not been answered.
  absl::flat_hash_set<std::uint64_t> in_flight_ ABSL_GUARDED_BY(mutex_);
  // Those among them that may wait; the others' bytes.
  std::size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  std::size_t in_flight_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  BulkOutbox outbox_ ABSL_GUARDED_BY(mutex_);
  // See Drive().
  bool driven_ ABSL_GUARDED_BY(mutex_) = false;
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;

  // gRPC's while it reads, and while it writes.
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  grpc::Alarm age_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_BULK_STREAM_H_
