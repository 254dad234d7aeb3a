#include "server/rpc/bulk_stream.h"

#include <google/protobuf/arena.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/errors.h"
#include "server/core/limits.h"
#include "server/rpc/status.h"
#include "server/rpc/validation.h"
#include "server/rpc/wire_calls.h"

namespace idempotency {
namespace {

using std::chrono::nanoseconds;

// Large enough for most results, so that they cost no allocation each.
constexpr std::size_t kResultArenaBytes = 1024;

// The bytes stay where they are until gRPC has sent them.
grpc::ByteBuffer ToBuffer(std::string bytes) {
  auto owned = std::make_unique<std::string>(std::move(bytes));
  void* const data = owned->data();
  const std::size_t size = owned->size();
  const grpc::Slice slice(
      data, size, [](void* text) { delete static_cast<std::string*>(text); },
      owned.release());
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status Draining() {
  return MakeError(Reason::kDraining, "the stream ends; go on with another");
}

}  // namespace

template <typename Wire>
struct BulkStream::CommandInHand {
  std::shared_ptr<BulkStream> stream;
  Ticket ticket;
  RecordId shown;
  StartedCall call;

  void Answer(absl::StatusOr<typename Wire::Outcome> outcome) {
    char block[kResultArenaBytes];
    google::protobuf::ArenaOptions options;
    options.initial_block = block;
    options.initial_block_size = sizeof(block);
    google::protobuf::Arena arena(options);
    auto& result = *google::protobuf::Arena::CreateMessage<v1::Result>(&arena);
    result.set_id(ticket.id);
    std::size_t reserved = 0;
    const auto reserve = [&](std::size_t bytes) {
      if (!stream->Reserve(bytes)) return false;
      reserved = bytes;
      return true;
    };
    const Decider& decider = stream->parts_.decider;
    const absl::Status status = decider.Write(
        std::move(outcome), std::move(shown), reserve, Wire::In(result));
    std::optional<ErrorReply> error = decider.Settle(call, status);
    if (error.has_value()) {
      result.clear_result();
      *result.mutable_error() = std::move(error->details);
    }
    stream->Deliver(result, &ticket, reserved);
  }
};

BulkStream::BulkStream(Parts parts, grpc::CallbackServerContext* context)
    : parts_(std::move(parts)), context_(context) {
  Count(parts_.metrics.started);
  ++parts_.metrics.open;
}

void BulkStream::Start(nanoseconds age) {
  if (age > nanoseconds::zero()) {
    age_.Set(std::chrono::system_clock::now() +
                 std::chrono::duration_cast<std::chrono::microseconds>(age),
             [self = weak_from_this()](bool expired) {
               const std::shared_ptr<BulkStream> stream = self.lock();
               if (expired && stream != nullptr) stream->Drain();
             });
  }
  {
    MutexLock lock(mutex_);
    if (!Changed()) return;
  }
  Drive();
}

void BulkStream::Reject(const absl::Status& error) {
  {
    MutexLock lock(mutex_);
    failure_ = error;
  }
  Start(nanoseconds::zero());
}

void BulkStream::Drain() {
  {
    MutexLock lock(mutex_);
    draining_ = true;
    if (!Changed()) return;
  }
  Drive();
}

void BulkStream::Look(SteadyTime now) {
  {
    MutexLock lock(mutex_);
    if (writing_bytes_ == 0) return;
    if (!writing_since_.has_value()) writing_since_ = now;
    if (now - *writing_since_ < limits::kBulkStallMax) return;
    stalled_ = true;
    if (!Changed()) return;
  }
  Drive();
}

void BulkStream::OnCancel() {
  {
    MutexLock lock(mutex_);
    gone_ = true;
    if (!Changed()) return;
  }
  Drive();
}

void BulkStream::OnReadDone(bool ok) {
  {
    MutexLock lock(mutex_);
    // A message that arrives now is one that was not read.
    if (ended_) return;
    handling_ = ok;
    if (!ok && context_->IsCancelled()) gone_ = true;
  }
  absl::Status status;
  if (ok) {
    Count(parts_.metrics.received);
    status = ReadMessage();
  }
  {
    MutexLock lock(mutex_);
    reading_ = handling_ = false;
    half_closed_ = !ok;
    failure_.Update(status);
    if (!Changed()) return;
  }
  Drive();
}

void BulkStream::OnWriteDone(bool ok) {
  if (ok) Count(parts_.metrics.sent);
  outgoing_.Clear();
  {
    MutexLock lock(mutex_);
    parts_.budget.Give(std::exchange(writing_bytes_, 0));
    writing_since_.reset();
    if (!ok) gone_ = true;
    if (!Changed()) return;
  }
  Drive();
}

void BulkStream::OnDone() {
  age_.Cancel();
  --parts_.metrics.open;
  parts_.done(this);
}

absl::Status BulkStream::ReadMessage() {
  google::protobuf::Arena arena;
  auto& message =
      *google::protobuf::Arena::CreateMessage<v1::BulkRequest>(&arena);
  const bool parsed = grpc::SerializationTraits<v1::BulkRequest>::Deserialize(
                          &incoming_, &message)
                          .ok();
  incoming_.Clear();
  if (!parsed) return UnparsableMessage();
  const auto count = static_cast<std::size_t>(message.commands_size());
  if (count > limits::kBulkCommandsMax) {
    return InvalidField("commands",
                        absl::StrCat("has ", count, " commands, want at most ",
                                     limits::kBulkCommandsMax));
  }
  for (const v1::Command& command : message.commands()) Carry(command);
  return absl::OkStatus();
}

void BulkStream::Carry(const v1::Command& command) {
  switch (command.command_case()) {
    case v1::Command::kClaim:
      return CarryAs<ClaimWire>(command, command.claim());
    case v1::Command::kFinalize:
      return CarryAs<FinalizeWire>(command, command.finalize());
    case v1::Command::kLookup:
      return CarryAs<LookupWire>(command, command.lookup());
    case v1::Command::kRelease:
      return CarryAs<ReleaseWire>(command, command.release());
    case v1::Command::COMMAND_NOT_SET:
      return Refuse(command.id(), parts_.decider.ReplyTo(InvalidField(
                                      "command", "is missing or unknown")));
  }
}

template <typename Wire>
void BulkStream::CarryAs(const v1::Command& command,
                         const typename Wire::Request& request) {
  const StartedCall call = parts_.decider.Start(Wire::kKind);
  Ticket ticket{.id = command.id(),
                .bytes = command.ByteSizeLong(),
                .waits = Wire::Waits(request)};
  const bool asks_to_wait = ticket.waits;
  const absl::Status admitted = Admit(ticket);
  if (!admitted.ok()) {
    return Refuse(ticket.id, parts_.decider.Refuse(call, admitted));
  }
  auto in_hand = std::make_unique<CommandInHand<Wire>>(CommandInHand<Wire>{
      shared_from_this(), ticket, Wire::Shown(request), call});
  const absl::StatusOr<nanoseconds> patience = ValidateTimeout(command);
  if (!patience.ok()) return in_hand->Answer(patience.status());
  // Whoever answers holds the stream.
  parts_.decider.Decide<Wire>(
      request, call,
      {.patience = *patience,
       .gone = [this] { return gone(); },
       .may_wait = ticket.waits == asks_to_wait,
       .wait_is_over = &draining_},
      [in_hand =
           std::move(in_hand)](absl::StatusOr<typename Wire::Outcome> outcome) {
        in_hand->Answer(std::move(outcome));
      });
}

absl::Status BulkStream::Admit(Ticket& ticket) {
  MutexLock lock(mutex_);
  if (in_flight_.contains(ticket.id)) {
    return InvalidField("id", "is that of a command in flight on this stream");
  }
  if (draining_) return Draining();
  in_flight_.insert(ticket.id);
  if (waiting_ >= limits::kBulkWaitingMax) ticket.waits = false;
  if (ticket.waits) {
    ++waiting_;
  } else {
    in_flight_bytes_ += ticket.bytes;
  }
  return absl::OkStatus();
}

bool BulkStream::Reserve(std::size_t bytes) {
  MutexLock lock(mutex_);
  return parts_.budget.TryTakeShare(Unsent(), bytes);
}

void BulkStream::Refuse(std::uint64_t id, const ErrorReply& error) {
  v1::Result result;
  result.set_id(id);
  *result.mutable_error() = error.details;
  Deliver(result, nullptr, 0);
}

void BulkStream::Deliver(const v1::Result& result, const Ticket* ticket,
                         std::size_t reserved) {
  std::string bytes = SerializeResult(result);
  parts_.budget.Take(bytes.size());
  parts_.budget.Give(reserved);
  {
    MutexLock lock(mutex_);
    outbox_.Add(std::move(bytes));
    if (ticket != nullptr) {
      in_flight_.erase(ticket->id);
      if (ticket->waits) {
        --waiting_;
      } else {
        in_flight_bytes_ -= ticket->bytes;
      }
    }
    if (!Changed()) return;
  }
  Drive();
}

bool BulkStream::Changed() {
  changed_ = true;
  return !std::exchange(driven_, true);
}

void BulkStream::Drive() {
  for (;;) {
    Step step;
    {
      MutexLock lock(mutex_);
      if (!std::exchange(changed_, false)) {
        driven_ = false;
        return;
      }
      step = NextStep();
    }
    if (step.read) StartRead(&incoming_);
    if (step.write) StartWrite(&outgoing_);
    if (step.cancel) context_->TryCancel();
    // It stays driven: nothing is asked of gRPC after the end.
    if (step.end.has_value()) return End(*step.end);
  }
}

BulkStream::Step BulkStream::NextStep() {
  if (gone_) {
    while (!outbox_.empty()) parts_.budget.Give(outbox_.Take().size());
  }
  Step step;
  if (writing_bytes_ == 0 && !outbox_.empty()) {
    std::string message = outbox_.Take();
    writing_bytes_ = message.size();
    outgoing_ = ToBuffer(std::move(message));
    step.write = true;
  }
  // A message under way keeps the stream, and so its context, from the end.
  step.cancel = std::exchange(stalled_, false) && writing_bytes_ > 0 && !gone_;
  step.end = EndOf();
  if (step.end.has_value()) {
    ended_ = true;
  } else if (MayRead()) {
    reading_ = step.read = true;
  }
  return step;
}

std::size_t BulkStream::Unsent() const {
  return outbox_.bytes() + writing_bytes_;
}

bool BulkStream::MayRead() const {
  if (reading_ || gone_ || half_closed_ || !failure_.ok()) return false;
  if (in_flight_.size() - waiting_ + limits::kBulkCommandsMax >
          limits::kBulkInFlightMax ||
      in_flight_bytes_ > limits::kBulkInFlightBytesMax) {
    return false;
  }
  // Who has read everything may always ask for more.
  return Unsent() == 0 || (Unsent() <= limits::kBulkUnsentBytesMax &&
                           !parts_.budget.exhausted());
}

std::optional<absl::Status> BulkStream::EndOf() const {
  if (handling_ || !in_flight_.empty() || Unsent() > 0) return std::nullopt;
  if (gone_) return absl::CancelledError();
  if (!failure_.ok()) return failure_;
  if (half_closed_) return absl::OkStatus();
  if (draining_) return Draining();
  return std::nullopt;
}

void BulkStream::End(const absl::Status& status) {
  grpc::Status last;
  if (!status.ok()) last = EndWith(parts_.decider.ReplyTo(status), *context_);
  Count(parts_.metrics.handled[static_cast<std::size_t>(last.error_code())]);
  Finish(last);
}

}  // namespace idempotency
