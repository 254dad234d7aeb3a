#include "client/async_client.h"

#include <grpc/support/time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <unordered_set>
#include <utility>

#include "client/attempt.h"
#include "client/bulk_command.h"
#include "client/bulk_stream.h"
#include "client/connection.h"
#include "client/left_out.h"
#include "client/mutex.h"
#include "client/status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"
#include "idempotency/v1/idempotency.grpc.pb.h"

namespace idempotency {
namespace {

using internal::BulkStream;
using internal::ConditionVariable;
using internal::Connection;
using internal::FailureOf;
using internal::FinalStatus;
using internal::Mutex;
using internal::MutexLock;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// From so many calls under way on, new attempts go over a stream, and until so
// few are left.
constexpr std::size_t kManyCalls = 32;
constexpr std::size_t kFewCalls = 8;
// A stream that ends in good order is replaced by one that lasts: a call that
// meets with so many has attempts to lose on more.
constexpr int kSentAnewMax = 4;
constexpr milliseconds kTimeoutMax = std::chrono::hours(24);
constexpr nanoseconds kWaitMax = std::chrono::seconds(60);
constexpr char kPushbackTrailer[] = "grpc-retry-pushback-ms";

grpc::ChannelArguments ChannelArgumentsOf() {
  grpc::ChannelArguments arguments;
  // One retry policy, the one of retry.h.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // Unless told otherwise gRPC waits up to two minutes before it tries a lost
  // server again, and fails every call meanwhile.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  // So that a retry reaches another replica.
  arguments.SetLoadBalancingPolicyName("round_robin");
  return arguments;
}

// Monotonic, so that a set wall clock moves no deadline.
gpr_timespec DeadlineAfter(nanoseconds remaining) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(remaining.count(), GPR_TIMESPAN));
}

// Bounded before it is converted: the caller's milliseconds may be too many to
// count in nanoseconds.
nanoseconds Bounded(milliseconds timeout) {
  return std::clamp(timeout, milliseconds(0), kTimeoutMax);
}

nanoseconds WaitOf(const v1::ClaimRequest& request) {
  const std::int64_t seconds = std::clamp<std::int64_t>(
      request.wait().seconds(), 0,
      std::chrono::duration_cast<std::chrono::seconds>(kWaitMax).count());
  const std::int64_t nanos = std::clamp(request.wait().nanos(), 0, 999'999'999);
  return std::min<nanoseconds>(
      std::chrono::seconds(seconds) + nanoseconds(nanos), kWaitMax);
}

absl::Status UnknownAnswer() {
  return absl::UnavailableError(
      "the server answered with an outcome this client does not know");
}

template <typename Response>
absl::Status CheckAnswer(const Response&) {
  return absl::OkStatus();
}

absl::Status CheckAnswer(const v1::ClaimResponse& response) {
  if (response.outcome_case() != v1::ClaimResponse::OUTCOME_NOT_SET) {
    return absl::OkStatus();
  }
  return UnknownAnswer();
}

std::optional<std::string> PushbackOf(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto pushback = trailers.find(kPushbackTrailer);
  if (pushback == trailers.end()) return std::nullopt;
  return std::string(pushback->second.data(), pushback->second.size());
}

// A call that is under way.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual void Cancel() = 0;
};

}  // namespace

struct AsyncClient::Shared {
  Shared(const ClientOptions& the_options, std::string tls_target,
         std::shared_ptr<const Connection> first_connection)
      : options(the_options),
        environment(options.environment ? options.environment
                                        : SystemEnvironment()),
        target(std::move(tls_target)),
        connection(std::move(first_connection)) {}

  // For the next attempt of a call: a new one once the files of options.tls
  // have changed. Calls on the old one end there.
  std::shared_ptr<const Connection> Current() {
    if (connection != nullptr) return connection;
    // Before the lock, since it may read files.
    const auto credentials = options.tls->Current();
    MutexLock lock(mutex);
    if (tls_connection == nullptr ||
        tls_connection->credentials != credentials) {
      const std::uint64_t generation =
          tls_connection == nullptr ? 0 : tls_connection->generation + 1;
      tls_before = std::move(tls_connection);
      tls_connection = std::make_shared<const Connection>(
          grpc::CreateCustomChannel(target, credentials, ChannelArgumentsOf()),
          credentials, generation);
    }
    return tls_connection;
  }

  // Whether the next attempt is better made on a stream.
  bool wants_bulk() const {
    return options.bulk == BulkUse::kAlways ||
           (options.bulk == BulkUse::kAuto && many_calls);
  }

  void Add(const std::shared_ptr<Pending>& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    pending.insert(call);
    if (pending.size() >= kManyCalls) many_calls = true;
  }
  void Remove(const std::shared_ptr<Pending>& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    pending.erase(call);
    if (pending.size() <= kFewCalls) many_calls = false;
    if (pending.empty()) changed.notify_all();
  }

  // Constant after construction.
  const ClientOptions options;
  const std::shared_ptr<ClientEnvironment> environment;
  const std::string target;                            // of tls_connection
  const std::shared_ptr<const Connection> connection;  // null: the other

  Mutex mutex;
  ConditionVariable changed;
  std::shared_ptr<const Connection> tls_connection ABSL_GUARDED_BY(mutex);
  // The one before: it must not be the last that goes, see Answer().
  std::shared_ptr<const Connection> tls_before ABSL_GUARDED_BY(mutex);
  std::unordered_set<std::shared_ptr<Pending>> pending ABSL_GUARDED_BY(mutex);
  bool ending ABSL_GUARDED_BY(mutex) = false;
  std::atomic<bool> many_calls = false;  // changed under the mutex

  // Last, so that its streams end before the connections.
  internal::BulkStreams streams;
};

// One attempt, or the wait for the next, is under way at a time, and each
// begins where the one before ended, so that only Cancel() comes from
// elsewhere.
template <typename Request, typename Response>
class AsyncClient::Call final
    : public Pending,
      public internal::BulkCommand,
      public std::enable_shared_from_this<Call<Request, Response>> {
 public:
  // A stub's method, with a callback.
  using Method =
      void (v1::IdempotencyService::StubInterface::async_interface::*)(
          grpc::ClientContext*, const Request*, Response*,
          std::function<void(grpc::Status)>);

  struct Kind {
    Method method;
    bool writes;  // a lost answer leaves something unknown
    bool urgent;  // see CallOptions
  };

  static void Start(Shared& shared, Kind kind, Request request,
                    nanoseconds timeout, Answered<Response> answered) {
    if (timeout <= nanoseconds(0)) {
      answered(
          absl::DeadlineExceededError("the timeout is not positive: not sent"));
      return;
    }
    const std::shared_ptr<Call> call(new Call(shared, kind, std::move(request),
                                              timeout, std::move(answered)));
    bool ending;
    {
      MutexLock lock(shared.mutex);
      shared.Add(call);
      ending = shared.ending;
    }
    if (ending) return call->Answer(absl::CancelledError("the client ends"));
    call->Send();
  }

  void Cancel() override {
    MutexLock lock(mutex_);
    cancelled_ = true;
    if (context_.has_value()) context_->TryCancel();
    if (waits_) WaitThenSend(nanoseconds(0));
  }

  void Lend(v1::Command& command) override {
    internal::LendRequest(request_, command);
  }

  bool urgent() const override { return urgent_; }

  void OnResult(v1::Result& result) override {
    if (result.has_error() && result.error().code() != 0) {
      OnFailure(ToAbslStatus(result.error()), true);
    } else if (internal::TakeAnswer(result, response_)) {
      Received();
    } else {
      OnFailure(UnknownAnswer(), true);
    }
  }

  void OnFailure(const absl::Status& status, bool sent) override {
    Failed(status, FailureOf(status, writes_, sent));
  }

  void OnSendAgain(const absl::Status& why, bool sent) override {
    if (sent_anew_ == kSentAnewMax) return OnFailure(why, sent);
    ++sent_anew_;
    may_have_acted_ = may_have_acted_ || (writes_ && sent);
    Send();
  }

 private:
  Call(Shared& shared, Kind kind, Request request, nanoseconds timeout,
       Answered<Response> answered)
      : shared_(shared),
        method_(kind.method),
        writes_(kind.writes),
        urgent_(kind.urgent),
        request_(std::move(request)),
        answered_(std::move(answered)),
        deadline_(shared.environment->Now() + timeout),
        retry_(shared.options.retry, deadline_) {}

  void Send() {
    connection_ = shared_.Current();
    if (!SendAsCommand()) SendAsCall();
  }

  // False: no stream takes it.
  bool SendAsCommand() {
    if (!shared_.wants_bulk() || !internal::IsText(request_)) return false;
    std::shared_ptr<BulkStream> stream;
    {
      MutexLock lock(mutex_);
      if (cancelled_) return false;
      context_.reset();
      stream = shared_.streams.Enqueue(
          connection_, retry_.attempts() == 0, this->shared_from_this(),
          request_.ByteSizeLong(), deadline_ - shared_.environment->Now());
    }
    if (stream == nullptr) return false;
    // The attempt may have ended by now.
    stream->Flush();
    return true;
  }

  // gRPC makes connections only for calls that wait for them: sending alone
  // would use the attempts up on one that is never made.
  void SendAsCall() {
    grpc::ClientContext* context;
    {
      MutexLock lock(mutex_);
      context = &context_.emplace();
      context->set_deadline(
          DeadlineAfter(deadline_ - shared_.environment->Now()));
      context->set_wait_for_ready(retry_.attempts() > 0 &&
                                  connection_->channel->GetState(true) !=
                                      GRPC_CHANNEL_READY);
      if (cancelled_) context->TryCancel();
    }
    response_.Clear();
    (connection_->stub->async()->*method_)(
        context, &request_, &response_,
        [self = this->shared_from_this()](const grpc::Status& ended) {
          if (ended.ok()) return self->Received();
          const absl::Status status = ToAbslStatus(ended);
          AttemptFailure failure = FailureOf(status, self->writes_, true);
          failure.pushback = PushbackOf(*self->context_);
          self->Failed(status, failure);
        });
  }

  void Received() {
    const absl::Status status = CheckAnswer(response_);
    if (status.ok()) return Answer(std::move(response_));
    Failed(status, FailureOf(status, writes_, true));
  }

  void Failed(absl::Status status, AttemptFailure failure) {
    const bool last_may_have_acted = failure.may_have_acted;
    failure.may_have_acted = failure.may_have_acted || may_have_acted_;
    RetryDecision decision =
        retry_.AfterFailure(failure, shared_.environment->Now(),
                            RandomFraction(*shared_.environment));
    // It waited for a connection in vain; the attempt before says more.
    if (status.code() == absl::StatusCode::kDeadlineExceeded &&
        ErrorReasonOf(status).empty() && last_failure_.has_value()) {
      decision.verdict = RetryVerdict::kNoTimeLeft;
      status = *std::move(last_failure_);
    }
    if (decision.verdict != RetryVerdict::kSendAgain || cancelled()) {
      return Answer(
          FinalStatus(status, retry_, decision.verdict, last_may_have_acted));
    }
    last_failure_ = std::move(status);
    MutexLock lock(mutex_);
    WaitThenSend(cancelled_ ? nanoseconds(0) : decision.wait);
  }

  // A wait that was cut short may still end by itself: the first end counts.
  void WaitThenSend(nanoseconds wait) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    waits_ = true;
    wait_ =
        shared_.environment->RunAfter(wait, [weak = this->weak_from_this()] {
          const std::shared_ptr<Call> self = weak.lock();
          if (self != nullptr && self->EndWait()) self->Send();
        });
  }

  bool EndWait() {
    MutexLock lock(mutex_);
    return std::exchange(waits_, false);
  }

  void Answer(absl::StatusOr<Response> answer) {
    std::exchange(answered_, nullptr)(std::move(answer));
    // This may be a thread of gRPC's, and gRPC ends its threads, by waiting for
    // them, with the last channel: that must not be here.
    {
      MutexLock lock(mutex_);
      context_.reset();
    }
    connection_.reset();
    // Only now: whoever ends the client waits for what the answer does.
    const auto self = this->shared_from_this();
    MutexLock lock(shared_.mutex);
    shared_.Remove(self);
  }

  bool cancelled() {
    MutexLock lock(mutex_);
    return cancelled_;
  }

  Shared& shared_;
  const Method method_;
  const bool writes_;
  const bool urgent_;
  Request request_;  // never changed, but lent as if it might be
  Response response_;
  Answered<Response> answered_;
  const ClientEnvironment::TimePoint deadline_;
  RetryState retry_;
  int sent_anew_ = 0;
  // By what was sent and begun anew.
  bool may_have_acted_ = false;
  std::optional<absl::Status> last_failure_;
  std::shared_ptr<const Connection> connection_;  // of the latest attempt

  Mutex mutex_;
  // Of the latest attempt. Replaced only while none is under way.
  std::optional<grpc::ClientContext> context_;
  std::unique_ptr<Timer> wait_ ABSL_GUARDED_BY(mutex_);
  bool waits_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

std::unique_ptr<AsyncClient> AsyncClient::Connect(
    const std::string& target, const ClientOptions& options) {
  if (options.tls != nullptr) {
    return std::unique_ptr<AsyncClient>(
        new AsyncClient(std::make_unique<Shared>(options, target, nullptr)));
  }
  const auto credentials = options.credentials
                               ? options.credentials
                               : grpc::InsecureChannelCredentials();
  return std::make_unique<AsyncClient>(
      grpc::CreateCustomChannel(target, credentials, ChannelArgumentsOf()),
      options);
}

AsyncClient::AsyncClient(std::shared_ptr<grpc::ChannelInterface> channel,
                         const ClientOptions& options)
    : AsyncClient(std::make_unique<Shared>(
          options, "",
          std::make_shared<const Connection>(std::move(channel), nullptr))) {}

AsyncClient::AsyncClient(std::unique_ptr<Shared> shared)
    : shared_(std::move(shared)) {}

AsyncClient::~AsyncClient() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  {
    MutexLock lock(shared_->mutex);
    shared_->ending = true;
  }
  CancelCalls();
  std::unique_lock<Mutex> lock(shared_->mutex);
  shared_->changed.wait(lock, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return shared_->pending.empty();
  });
}

// Commands after calls: a call that is cancelled becomes no command.
void AsyncClient::CancelCalls() {
  {
    MutexLock lock(shared_->mutex);
    for (const auto& call : shared_->pending) call->Cancel();
  }
  shared_->streams.CancelCommands();
}

ClientEnvironment& AsyncClient::environment() const {
  return *shared_->environment;
}

using Async = v1::IdempotencyService::StubInterface::async_interface;

void AsyncClient::Claim(const v1::ClaimRequest& request,
                        const CallOptions& options,
                        Answered<v1::ClaimResponse> answered) {
  const nanoseconds timeout =
      options.timeout.has_value()
          ? Bounded(*options.timeout)
          : Bounded(shared_->options.timeout) + WaitOf(request);
  Call<v1::ClaimRequest, v1::ClaimResponse>::Start(
      *shared_, {&Async::Claim, true, options.urgent}, request, timeout,
      std::move(answered));
}

void AsyncClient::Finalize(const v1::FinalizeRequest& request,
                           const CallOptions& options,
                           Answered<v1::FinalizeResponse> answered) {
  v1::FinalizeRequest fitting = request;
  internal::LeaveOutWhatIsRefused(shared_->options.body_bytes_max, &fitting);
  Call<v1::FinalizeRequest, v1::FinalizeResponse>::Start(
      *shared_, {&Async::Finalize, true, true}, std::move(fitting),
      Bounded(options.timeout.value_or(shared_->options.timeout)),
      std::move(answered));
}

void AsyncClient::Lookup(const v1::LookupRequest& request,
                         const CallOptions& options,
                         Answered<v1::LookupResponse> answered) {
  Call<v1::LookupRequest, v1::LookupResponse>::Start(
      *shared_, {&Async::Lookup, false, options.urgent}, request,
      Bounded(options.timeout.value_or(shared_->options.timeout)),
      std::move(answered));
}

void AsyncClient::Release(const v1::ReleaseRequest& request,
                          const CallOptions& options,
                          Answered<v1::ReleaseResponse> answered) {
  Call<v1::ReleaseRequest, v1::ReleaseResponse>::Start(
      *shared_, {&Async::Release, true, true}, request,
      Bounded(options.timeout.value_or(shared_->options.timeout)),
      std::move(answered));
}

}  // namespace idempotency
