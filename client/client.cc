#include "client/client.h"

#include <grpc/support/time.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr std::size_t kMessageBytesMax = std::size_t{4} << 20;
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

// What the server would refuse as too long is left out here, so that the
// record becomes final all the same.
void LeaveOutWhatIsTooLong(std::size_t body_bytes_max,
                           v1::FinalizeRequest* request) {
  if (!request->has_response()) return;
  v1::Response* const response = request->mutable_response();
  if (response->body().size() > body_bytes_max ||
      (!response->body().empty() &&
       request->ByteSizeLong() > kMessageBytesMax)) {
    response->clear_body();
    response->set_body_omitted(true);
  }
  if (request->ByteSizeLong() > kMessageBytesMax) {
    response->clear_headers();
    response->set_headers_omitted(true);
  }
}

template <typename Response>
absl::Status CheckAnswer(const Response&) {
  return absl::OkStatus();
}

absl::Status CheckAnswer(const v1::ClaimResponse& response) {
  if (response.outcome_case() != v1::ClaimResponse::OUTCOME_NOT_SET) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      "the server answered with an outcome this client does not know");
}

AttemptFailure FailureOf(const absl::Status& status, bool writes,
                         const grpc::ClientContext& context) {
  AttemptFailure failure;
  // This client cancels nothing: it was the server, which is going away.
  failure.unavailable = status.code() == absl::StatusCode::kUnavailable ||
                        status.code() == absl::StatusCode::kCancelled;
  failure.may_have_acted = writes && MayHaveActed(status);
  failure.retry_delay = RetryDelayOf(status);
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto pushback = trailers.find(kPushbackTrailer);
  if (pushback != trailers.end()) {
    failure.pushback.emplace(pushback->second.data(), pushback->second.size());
  }
  return failure;
}

const char* Explanation(RetryVerdict verdict) {
  switch (verdict) {
    case RetryVerdict::kServerForbids:
      return ", the server asks not to retry";
    case RetryVerdict::kAttemptsUsedUp:
      return ", no more are allowed";
    case RetryVerdict::kNoTimeLeft:
      return ", no time for another";
    case RetryVerdict::kSendAgain:
    case RetryVerdict::kNotRetryable:
      break;
  }
  return "";
}

absl::Status FinalStatus(const absl::Status& last, const RetryState& retry,
                         RetryVerdict verdict, bool last_may_have_acted) {
  // A refusal of the service settles what became of the attempts before it:
  // they were the same call.
  const bool unsettled = last_may_have_acted ||
                         last.code() == absl::StatusCode::kUnavailable ||
                         last.code() == absl::StatusCode::kCancelled ||
                         last.code() == absl::StatusCode::kDeadlineExceeded;
  const absl::Status status =
      unsettled && retry.may_have_acted() ? AsOutcomeUnknown(last) : last;
  if (retry.attempts() == 1 && verdict == RetryVerdict::kNotRetryable) {
    return status;
  }
  absl::Status result(
      status.code(), absl::StrCat(status.message(), " (attempt ",
                                  retry.attempts(), Explanation(verdict), ")"));
  status.ForEachPayload([&](auto url, const absl::Cord& payload) {
    result.SetPayload(url, payload);
  });
  return result;
}

// Even over [0, 1): a double holds 53 bits.
double Fraction(std::uint64_t random) {
  return static_cast<double>(random >> 11) * 0x1.0p-53;
}

}  // namespace

template <typename Request, typename Response>
struct Client::Method {
  grpc::Status (v1::IdempotencyService::StubInterface::*call)(
      grpc::ClientContext*, const Request&, Response*);
  bool writes;  // whether a lost answer leaves something unknown
};

// A channel, and what it was made with where that was TlsFiles::Current().
struct Client::Connection {
  Connection(std::shared_ptr<grpc::ChannelInterface> over,
             std::shared_ptr<grpc::ChannelCredentials> with)
      : credentials(std::move(with)),
        channel(std::move(over)),
        stub(v1::IdempotencyService::NewStub(channel)) {}

  const std::shared_ptr<grpc::ChannelCredentials> credentials;
  const std::shared_ptr<grpc::ChannelInterface> channel;
  const std::unique_ptr<v1::IdempotencyService::StubInterface> stub;
};

std::unique_ptr<Client> Client::Connect(const std::string& target,
                                        const ClientOptions& options) {
  if (options.tls) return std::unique_ptr<Client>(new Client(target, options));
  const auto credentials = options.credentials
                               ? options.credentials
                               : grpc::InsecureChannelCredentials();
  return std::make_unique<Client>(
      grpc::CreateCustomChannel(target, credentials, ChannelArgumentsOf()),
      options);
}

Client::Client(std::shared_ptr<grpc::ChannelInterface> channel,
               const ClientOptions& options)
    : options_(options),
      environment_(options.environment ? options.environment
                                       : SystemEnvironment()),
      connection_(
          std::make_shared<const Connection>(std::move(channel), nullptr)) {}

Client::Client(std::string target, const ClientOptions& options)
    : options_(options),
      environment_(options.environment ? options.environment
                                       : SystemEnvironment()),
      target_(std::move(target)) {}

Client::~Client() = default;

std::shared_ptr<const Client::Connection> Client::Current() {
  // Before the lock, since it may read files.
  const auto credentials = target_.empty() ? nullptr : options_.tls->Current();
  absl::MutexLock lock(&mutex_);
  if (connection_ == nullptr || connection_->credentials != credentials) {
    connection_ = std::make_shared<const Connection>(
        grpc::CreateCustomChannel(target_, credentials, ChannelArgumentsOf()),
        credentials);
  }
  return connection_;
}

absl::StatusOr<v1::ClaimResponse> Client::Claim(v1::ClaimRequest& request,
                                                const CallOptions& options) {
  if (request.claim_token().empty() && request.renew_fencing_token() == 0) {
    request.set_claim_token(NewClaimToken(*environment_));
  }
  const nanoseconds timeout = options.timeout.has_value()
                                  ? Bounded(*options.timeout)
                                  : Bounded(options_.timeout) + WaitOf(request);
  return Call<v1::ClaimRequest, v1::ClaimResponse>(
      {&v1::IdempotencyService::StubInterface::Claim, true}, request, timeout);
}

absl::StatusOr<v1::FinalizeResponse> Client::Finalize(
    const v1::FinalizeRequest& request, const CallOptions& options) {
  v1::FinalizeRequest fitting = request;
  LeaveOutWhatIsTooLong(options_.body_bytes_max, &fitting);
  return Call<v1::FinalizeRequest, v1::FinalizeResponse>(
      {&v1::IdempotencyService::StubInterface::Finalize, true}, fitting,
      Bounded(options.timeout.value_or(options_.timeout)));
}

absl::StatusOr<v1::LookupResponse> Client::Lookup(
    const v1::LookupRequest& request, const CallOptions& options) {
  return Call<v1::LookupRequest, v1::LookupResponse>(
      {&v1::IdempotencyService::StubInterface::Lookup, false}, request,
      Bounded(options.timeout.value_or(options_.timeout)));
}

absl::StatusOr<v1::ReleaseResponse> Client::Release(
    const v1::ReleaseRequest& request, const CallOptions& options) {
  return Call<v1::ReleaseRequest, v1::ReleaseResponse>(
      {&v1::IdempotencyService::StubInterface::Release, true}, request,
      Bounded(options.timeout.value_or(options_.timeout)));
}

template <typename Request, typename Response>
absl::StatusOr<Response> Client::Call(const Method<Request, Response>& method,
                                      const Request& request,
                                      nanoseconds timeout) {
  if (timeout <= nanoseconds(0)) {
    return absl::DeadlineExceededError("the timeout is not positive: not sent");
  }
  const auto deadline = environment_->Now() + timeout;
  RetryState retry(options_.retry, deadline);
  for (;;) {
    const std::shared_ptr<const Connection> connection = Current();
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(deadline - environment_->Now()));
    Response response;
    absl::Status status = ToAbslStatus(
        (connection->stub.get()->*method.call)(&context, request, &response));
    if (status.ok()) status = CheckAnswer(response);
    if (status.ok()) return response;

    const AttemptFailure failure = FailureOf(status, method.writes, context);
    const RetryDecision decision = retry.AfterFailure(
        failure, environment_->Now(), Fraction(environment_->Random()));
    if (decision.verdict != RetryVerdict::kSendAgain) {
      return FinalStatus(status, retry, decision.verdict,
                         failure.may_have_acted);
    }
    if (!WaitBeforeRetry(*connection, decision.wait, deadline)) {
      return FinalStatus(status, retry, RetryVerdict::kNoTimeLeft,
                         failure.may_have_acted);
    }
  }
}

// gRPC makes connections only while some thread waits on the channel: sleeping
// alone would use the attempts up on one that is never made. Without a
// connection there is nothing to send, so the wait is then for that.
bool Client::WaitBeforeRetry(const Connection& connection, nanoseconds wait,
                             ClientEnvironment::TimePoint deadline) {
  const auto until = environment_->Now() + wait;
  grpc::ChannelInterface& channel = *connection.channel;
  if (channel.GetState(/*try_to_connect=*/true) != GRPC_CHANNEL_READY &&
      !channel.WaitForConnected(
          DeadlineAfter(deadline - environment_->Now()))) {
    return false;
  }
  environment_->SleepFor(std::max(until - environment_->Now(), nanoseconds(0)));
  return true;
}

}  // namespace idempotency
