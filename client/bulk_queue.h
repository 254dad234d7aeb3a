// The commands of one stream `Bulk`: which go into the next message, which are
// answered, and which are overdue. Pure: no gRPC and no clock of its own. For
// bulk_stream.cc; not installed.
#ifndef IDEMPOTENCY_CLIENT_BULK_QUEUE_H_
#define IDEMPOTENCY_CLIENT_BULK_QUEUE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "idempotency/v1/idempotency.pb.h"

namespace idempotency::internal {

// A call whose attempt is a command of a stream. Exactly one of the last three
// ends the attempt, in a thread that it must not block.
class BulkCommand {
 public:
  virtual ~BulkCommand() = default;

  // The command's own request, without a copy. It must be taken out of
  // `command` before that ends.
  virtual void Lend(v1::Command& command) = 0;

  // It ends or keeps what was claimed: new work waits for it.
  virtual bool urgent() const = 0;

  // Takes out of `result` what it keeps.
  virtual void OnResult(v1::Result& result) = 0;
  // `sent`: the server may have received it.
  virtual void OnFailure(const absl::Status& status, bool sent) = 0;
  // It is to be sent anew at once, and no attempt counts as made: the server
  // has no Bulk, or ends the stream in good order, or the channel does not take
  // the result of one of its neighbours. What has been so too often
  // fails with `why`.
  virtual void OnSendAgain(const absl::Status& why, bool sent) = 0;
};

// The contract's bound.
inline constexpr std::size_t kBulkCommandsMax = 1024;
// Where a message takes no more commands. Well below the contract's 4 MiB: what
// is behind a long message waits for it.
inline constexpr std::size_t kBulkBytesMax = std::size_t{1} << 20;
// A longer request is no command.
inline constexpr std::size_t kBulkRequestBytesMax = std::size_t{256} << 10;
// Commands of a stream without a result, sent or not.
inline constexpr std::size_t kBulkInFlightMax = 16 * kBulkCommandsMax;
// The server answers an overdue command too. A stream on which nothing comes
// for so long after one is overdue stands still.
inline constexpr std::chrono::seconds kBulkSilence{1};

// Not thread-safe.
class BulkQueue {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Outgoing {
    std::uint64_t id;
    std::shared_ptr<BulkCommand> command;
    std::chrono::nanoseconds timeout;  // more than zero
  };
  struct Unanswered {
    std::shared_ptr<BulkCommand> command;
    bool sent;
    bool cancelled;
  };

  bool full() const { return commands_.size() >= kBulkInFlightMax; }
  bool empty() const { return commands_.empty(); }

  // Not when it is full.
  void Add(std::shared_ptr<BulkCommand> command, std::size_t request_bytes,
           TimePoint deadline);

  // The commands of the next message, urgent ones first, else in the order of
  // Add(); empty: none waits. One that is due is left to TakeDue().
  std::vector<Outgoing> TakeMessage(TimePoint now);
  // How many wait for a message, or a few more.
  std::size_t waiting() const { return urgent_.size() + waiting_.size(); }

  // Null: it has ended, or there was none.
  std::shared_ptr<BulkCommand> TakeAnswered(std::uint64_t id);

  // Those whose time is over, and those that were cancelled.
  std::vector<Unanswered> TakeDue(TimePoint now);
  std::vector<Unanswered> TakeAll();
  // All that there are become due.
  void CancelAll();
  // When to call TakeDue() again, or earlier; empty: nothing is awaited.
  std::optional<TimePoint> due_at() const { return due_at_; }

  bool ever_answered() const { return ever_answered_; }
  // As TakeDue() found it.
  bool stands_still() const { return stands_still_; }

 private:
  struct InFlight {
    std::shared_ptr<BulkCommand> command;
    std::size_t bytes;
    TimePoint deadline;
    bool sent = false;
    bool cancelled = false;
  };

  static Unanswered Take(InFlight& in_flight);
  // Appends to `message` what of `waiting` fits.
  void TakeWaiting(TimePoint now, std::deque<std::uint64_t>& waiting,
                   std::size_t& bytes, std::vector<Outgoing>& message);

  absl::flat_hash_map<std::uint64_t, InFlight> commands_;
  // To be sent, of those in `commands_`; others are passed over.
  std::deque<std::uint64_t> urgent_;
  std::deque<std::uint64_t> waiting_;
  std::uint64_t next_id_ = 1;
  std::optional<TimePoint> due_at_;
  bool ever_answered_ = false;
  // Since a command that was sent is overdue, and nothing was answered.
  std::optional<TimePoint> silent_since_;
  bool stands_still_ = false;
};

}  // namespace idempotency::internal

#endif  // IDEMPOTENCY_CLIENT_BULK_QUEUE_H_
