#include "client/bulk_stream.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "client/attempt.h"
#include "client/bulk_command.h"
#include "client/status.h"

namespace idempotency::internal {
namespace {

using std::chrono::nanoseconds;

constexpr char kDraining[] = "DRAINING";
constexpr char kOverloaded[] = "OVERLOADED";
constexpr std::chrono::minutes kNoUsePause{1};
constexpr std::chrono::seconds kOverloadedPause{5};
constexpr std::chrono::seconds kLostPause{1};  // doubled each time
// So many answers' calls are kept together before they are sent.
constexpr std::size_t kHeldBackMax = 256;

// The stream whose answers this thread is handing out: what is called in them
// is sent together afterwards.
thread_local const BulkStream* handing_out = nullptr;

// Deadlines on a stream go by the real clock, as those of gRPC's calls do.
ClientEnvironment& Real() {
  static ClientEnvironment& environment = *SystemEnvironment();
  return environment;
}

void SetDuration(nanoseconds value, google::protobuf::Duration* duration) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(value);
  duration->set_seconds(seconds.count());
  duration->set_nanos(static_cast<std::int32_t>((value - seconds).count()));
}

// It carries out nothing that it reads from now on.
bool IsDraining(const absl::Status& error) {
  return absl::IsUnavailable(error) && ErrorReasonOf(error) == kDraining;
}

// Only where the command was not carried out because the stream is to end.
std::optional<absl::Status> DrainingOf(const v1::Result& result) {
  if (!result.has_error()) return std::nullopt;
  absl::Status error = ToAbslStatus(result.error());
  if (!IsDraining(error)) return std::nullopt;
  return error;
}

// The server has no room for the stream, and has read nothing of it.
bool IsTurnedAway(const absl::Status& end, bool ever_answered) {
  return !ever_answered && absl::IsUnavailable(end) &&
         ErrorReasonOf(end) == kOverloaded;
}

// What the end says about the streams to come.
StreamEnd MeaningOf(const absl::Status& end, bool ever_answered,
                    bool stood_still) {
  // A result that is longer than the channel receives: only its own call may
  // fail of that.
  if (absl::IsResourceExhausted(end)) {
    return {.answered = ever_answered, .pause = kNoUsePause};
  }
  if (ever_answered) return {.answered = true};
  if (IsTurnedAway(end, ever_answered)) {
    return {.pause = RetryDelayOf(end).value_or(kOverloadedPause)};
  }
  if (end.ok() || IsDraining(end)) return {};
  // What a server says, or a proxy, that will say the same next time.
  if (stood_still || !(absl::IsUnavailable(end) || absl::IsCancelled(end))) {
    return {.pause = kNoUsePause};
  }
  return {.lost = true};
}

}  // namespace

// ----------------------------------------------------------------- BulkStream

void BulkStream::Open(v1::IdempotencyService::StubInterface& stub) {
  grpc::ClientContext* context;
  {
    MutexLock lock(mutex_);
    self_ = shared_from_this();
    context = &context_.emplace();
    SetIdleTimer();
  }
  stub.async()->Bulk(context, this);
  // Until a read fails: writes begin outside of the reactions.
  AddHold();
  StartRead(&response_);
  StartCall();
}

bool BulkStream::Enqueue(std::shared_ptr<BulkCommand> command,
                         std::size_t request_bytes, nanoseconds timeout) {
  MutexLock lock(mutex_);
  if (closed_ || queue_.full()) return false;
  queue_.Add(std::move(command), request_bytes, Real().Now() + timeout);
  used_ = true;
  SetTimer();
  return true;
}

void BulkStream::Flush() {
  if (handing_out == this) {
    MutexLock lock(mutex_);
    if (queue_.waiting() < kHeldBackMax) return;
  }
  Perform(NextStep());
}

bool BulkStream::open() const {
  MutexLock lock(mutex_);
  return !closed_;
}

void BulkStream::Retire() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  Perform(NextStep());
}

void BulkStream::CancelCommands() {
  MutexLock lock(mutex_);
  queue_.CancelAll();
  SetTimer();
}

void BulkStream::Cancel() {
  MutexLock lock(mutex_);
  closed_ = true;
  if (context_.has_value()) context_->TryCancel();
}

BulkStream::Step BulkStream::NextStep() {
  MutexLock lock(mutex_);
  if (over_ || writing_) return Step::kNone;
  outgoing_ = queue_.TakeMessage(Real().Now());
  const bool write = !outgoing_.empty();
  if (!write && !(closed_ && queue_.empty())) return Step::kNone;
  writing_ = true;
  AddHold();
  return write ? Step::kWrite : Step::kHalfClose;
}

void BulkStream::Perform(Step step) {
  if (step == Step::kNone) return;
  if (step == Step::kWrite) {
    FillMessage();
    StartWrite(&request_);
  } else {
    StartWritesDone();
  }
  RemoveHold();
}

void BulkStream::FillMessage() {
  for (const BulkQueue::Outgoing& each : outgoing_) {
    v1::Command& command = *request_.add_commands();
    command.set_id(each.id);
    SetDuration(each.timeout, command.mutable_timeout());
    each.command->Lend(command);
  }
}

void BulkStream::TakeRequestsBack() {
  for (v1::Command& command : *request_.mutable_commands()) {
    TakeRequestOut(command);
  }
  request_.Clear();
  outgoing_.clear();
}

void BulkStream::OnWriteDone(bool ok) {
  TakeRequestsBack();
  {
    MutexLock lock(mutex_);
    writing_ = false;
    // The read fails too, and then the stream is over.
    if (!ok) closed_ = over_ = true;
  }
  Perform(NextStep());
}

// Half-closed: nothing is written any more, so `writing_` stays.
void BulkStream::OnWritesDoneDone(bool) {}

void BulkStream::OnReadDone(bool ok) {
  if (!ok) {
    {
      MutexLock lock(mutex_);
      closed_ = over_ = true;
    }
    RemoveHold();
    return;
  }
  v1::BulkResponse response;
  response.Swap(&response_);
  struct Answered {
    std::shared_ptr<BulkCommand> command;
    v1::Result* result;
    std::optional<absl::Status> draining;
  };
  std::vector<Answered> answered;
  answered.reserve(static_cast<std::size_t>(response.results_size()));
  {
    MutexLock lock(mutex_);
    for (v1::Result& result : *response.mutable_results()) {
      auto command = queue_.TakeAnswered(result.id());
      auto draining = DrainingOf(result);
      if (draining.has_value()) closed_ = true;
      if (command == nullptr) continue;
      answered.push_back({std::move(command), &result, std::move(draining)});
    }
  }
  // Before the answers are handed out: one that takes long holds up no other.
  StartRead(&response_);
  handing_out = this;
  for (const auto& [command, result, draining] : answered) {
    if (draining.has_value()) {
      command->OnSendAgain(*draining, false);
    } else {
      command->OnResult(*result);
    }
  }
  handing_out = nullptr;
  Perform(NextStep());
}

void BulkStream::SetTimer() {
  const auto due_at = queue_.due_at();
  if (!due_at.has_value() || (timer_at_.has_value() && *timer_at_ <= *due_at)) {
    return;
  }
  timer_at_ = due_at;
  const auto left = std::max<nanoseconds>(
      *due_at - std::min(*due_at, Real().Now()), nanoseconds(0));
  timer_ = Real().RunAfter(left, [weak = weak_from_this()] {
    const std::shared_ptr<BulkStream> self = weak.lock();
    if (self != nullptr) self->TimePassed();
  });
}

void BulkStream::SetIdleTimer() {
  idle_timer_ = Real().RunAfter(idle_max_ / 2, [weak = weak_from_this()] {
    const std::shared_ptr<BulkStream> self = weak.lock();
    if (self != nullptr) self->EndIfIdle();
  });
}

void BulkStream::EndIfIdle() {
  {
    MutexLock lock(mutex_);
    // gRPC has let go of it, and nothing may renew what OnDone() ended.
    if (!context_.has_value()) return;
    if (!used_ && queue_.empty()) {
      closed_ = true;
    } else {
      used_ = false;
      SetIdleTimer();
    }
  }
  Perform(NextStep());
}

void BulkStream::TimePassed() {
  std::vector<BulkQueue::Unanswered> due;
  {
    MutexLock lock(mutex_);
    timer_at_.reset();
    due = queue_.TakeDue(Real().Now());
    SetTimer();
    // What else is on it is better off on another, perhaps to another server.
    if (queue_.stands_still()) {
      closed_ = true;
      if (context_.has_value()) context_->TryCancel();
    }
  }
  for (const BulkQueue::Unanswered& each : due) {
    each.command->OnFailure(
        each.cancelled ? absl::CancelledError("CANCELLED")
                       : absl::DeadlineExceededError("Deadline Exceeded"),
        each.sent);
  }
  Perform(NextStep());
}

void BulkStream::OnDone(const grpc::Status& status) {
  std::vector<BulkQueue::Unanswered> unanswered;
  std::shared_ptr<BulkStream> self;
  bool ever_answered;
  bool stood_still;
  {
    MutexLock lock(mutex_);
    self = std::move(self_);
    context_.reset();
    timer_.reset();
    idle_timer_.reset();
    unanswered = queue_.TakeAll();
    ever_answered = queue_.ever_answered();
    stood_still = queue_.stands_still();
  }
  const absl::Status end = ToAbslStatus(status);
  streams_.Ended(this, MeaningOf(end, ever_answered, stood_still));
  const bool unread = IsTurnedAway(end, ever_answered) ||
                      (!ever_answered && absl::IsUnimplemented(end));
  for (const BulkQueue::Unanswered& each : unanswered) {
    if (!each.cancelled &&
        (unread || IsDraining(end) || absl::IsResourceExhausted(end))) {
      // Such an end comes after the results of what was carried out; but gRPC
      // may drop results that an error of the stream overtakes.
      each.command->OnSendAgain(LostWith(end), each.sent && !unread);
    } else {
      each.command->OnFailure(
          each.cancelled ? absl::CancelledError("CANCELLED") : LostWith(end),
          each.sent);
    }
  }
  streams_.Gone(this);
}

// ---------------------------------------------------------------- BulkStreams

BulkStreams::~BulkStreams() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  std::unique_lock<Mutex> lock(mutex_);
  for (BulkStream* stream : streams_) stream->Cancel();
  changed_.wait(lock, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return streams_.empty();
  });
}

std::shared_ptr<BulkStream> BulkStreams::Enqueue(
    const std::shared_ptr<const Connection>& connection, bool first_attempt,
    std::shared_ptr<BulkCommand> command, std::size_t request_bytes,
    nanoseconds timeout) {
  if (request_bytes > kBulkRequestBytesMax) return nullptr;
  std::shared_ptr<BulkStream> stream = StreamOver(connection, first_attempt);
  if (stream == nullptr ||
      !stream->Enqueue(std::move(command), request_bytes, timeout)) {
    return nullptr;
  }
  return stream;
}

std::shared_ptr<BulkStream> BulkStreams::StreamOver(
    const std::shared_ptr<const Connection>& connection, bool first_attempt) {
  std::shared_ptr<BulkStream> former;
  std::shared_ptr<BulkStream> stream;
  {
    MutexLock lock(mutex_);
    if (current_ != nullptr && connection_ == connection && current_->open()) {
      return current_;
    }
    // Whoever still holds an older connection opens no stream over it again.
    if (connection->generation < newest_generation_) return nullptr;
    if (Real().Now() < not_before_) return nullptr;
    const grpc_connectivity_state state = connection->channel->GetState(true);
    if (state != GRPC_CHANNEL_READY &&
        (!first_attempt || state == GRPC_CHANNEL_TRANSIENT_FAILURE)) {
      return nullptr;
    }
    former = std::move(current_);
    connection_ = connection;
    newest_generation_ = connection->generation;
    current_ = stream = std::make_shared<BulkStream>(*this, idle_max_);
    streams_.insert(stream.get());
    stream->Open(*connection->stub);
  }
  if (former != nullptr) former->Retire();
  return stream;
}

void BulkStreams::CancelCommands() {
  MutexLock lock(mutex_);
  for (BulkStream* stream : streams_) stream->CancelCommands();
}

void BulkStreams::Ended(const BulkStream* stream, const StreamEnd& end) {
  MutexLock lock(mutex_);
  nanoseconds pause = end.pause;
  if (end.answered) lost_in_a_row_ = 0;
  if (end.lost && ++lost_in_a_row_ > 1) {
    constexpr int kDoublingsMax = 6;
    pause = kLostPause * (1 << std::min(lost_in_a_row_ - 2, kDoublingsMax));
    pause = std::min<nanoseconds>(pause, kNoUsePause);
  }
  if (pause > nanoseconds(0)) {
    not_before_ = Real().Now() + std::min<nanoseconds>(pause, kNoUsePause);
  }
  if (current_.get() != stream) return;
  current_.reset();
  connection_.reset();
}

void BulkStreams::Gone(BulkStream* stream) {
  MutexLock lock(mutex_);
  streams_.erase(stream);
  changed_.notify_all();
}

}  // namespace idempotency::internal
