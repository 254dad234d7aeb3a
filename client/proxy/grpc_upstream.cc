#include "client/proxy/grpc_upstream.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "client/grpc/call_status.h"
#include "client/proxy/upstream_headers.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"
#include "grpcpp/support/slice.h"

namespace idempotency::internal {
namespace {

using std::chrono::milliseconds;

// Between two looks at whether there is a connection: ever longer, so that a
// crowd that waits for one costs little.
constexpr milliseconds kLookPauseMin{5};
constexpr milliseconds kLookPauseMax{100};
// A service that was restarted is found again soon.
constexpr int kReconnectMsMin = 100;
constexpr int kReconnectMsMax = 1'000;

std::shared_ptr<grpc::Channel> ChannelTo(const GrpcUpstream::Options& options) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMsMin);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMsMax);
  arguments.SetMaxReceiveMessageSize(options.response_bytes_max);
  // What is sent again by gRPC itself is an attempt that nobody counts. Without
  // a policy from outside it sends again only what no server has seen.
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  return grpc::CreateCustomChannel(options.target,
                                   options.credentials
                                       ? options.credentials
                                       : grpc::InsecureChannelCredentials(),
                                   arguments);
}

}  // namespace

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::string bytes;
  if (!buffer.Valid()) return bytes;
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return bytes;
  bytes.reserve(buffer.Length());
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

grpc::ByteBuffer BufferOf(std::string bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

GrpcMetadata HandedOn(const MetadataMap& metadata) {
  GrpcMetadata handed_on;
  for (const auto& [key, text] : metadata) {
    std::string name(key.data(), key.size());
    std::string value(text.data(), text.size());
    // Traces go through, of all that is gRPC's own.
    const bool goes_through =
        name == "grpc-trace-bin" || IsHandedOn(name, value);
    if (!goes_through || IsUpstreamHeader(name)) continue;
    handed_on.emplace_back(std::move(name), std::move(value));
  }
  return handed_on;
}

struct GrpcUpstream::UnaryCall {
  UpstreamRequest request;
  milliseconds timeout;
  Answered answered;
  ClientEnvironment::TimePoint connected_by;
  milliseconds look_pause = kLookPauseMin;

  Mutex mutex;
  std::unique_ptr<Timer> look ABSL_GUARDED_BY(mutex);

  grpc::ClientContext context;
  grpc::ByteBuffer sent;
  grpc::ByteBuffer received;

  void AnswerNotSent(const std::string& why) {
    answered({.answer = {.status = CallStatus(grpc::StatusCode::UNAVAILABLE,
                                              "UPSTREAM_UNAVAILABLE", why)},
              .sent = false});
  }
};

GrpcUpstream::GrpcUpstream(const Options& options)
    : connect_timeout_(options.connect_timeout),
      environment_(SystemEnvironment()),
      channel_(ChannelTo(options)),
      stub_(channel_) {}

void GrpcUpstream::Call(UpstreamRequest request, milliseconds timeout,
                        Answered answered) {
  const auto call = std::make_shared<UnaryCall>();
  call->request = std::move(request);
  call->timeout = timeout;
  call->answered = std::move(answered);
  call->connected_by = environment_->Now() + connect_timeout_;
  SendWhenConnected(call);
}

std::optional<bool> GrpcUpstream::Connected() const {
  switch (channel_->GetState(/*try_to_connect=*/true)) {
    case GRPC_CHANNEL_READY:
      return true;
    case GRPC_CHANNEL_TRANSIENT_FAILURE:
    case GRPC_CHANNEL_SHUTDOWN:
      return false;
    default:
      return std::nullopt;
  }
}

// A call that is begun without a connection ends with UNAVAILABLE as one does
// whose connection broke: then nobody could say that nothing was sent.
void GrpcUpstream::SendWhenConnected(const std::shared_ptr<UnaryCall>& call) {
  if (closed()) return call->AnswerNotSent("the sidecar ends");
  const std::optional<bool> connected = Connected();
  if (connected.value_or(false)) return Send(call);
  if (connected.has_value() || environment_->Now() >= call->connected_by) {
    return call->AnswerNotSent("the service cannot be reached");
  }
  LookLater(call);
}

void GrpcUpstream::LookLater(const std::shared_ptr<UnaryCall>& call) {
  const milliseconds pause = call->look_pause;
  call->look_pause = std::min(2 * pause, kLookPauseMax);
  // The timer's thread waits here until the timer is in its place.
  MutexLock lock(call->mutex);
  call->look = environment_->RunAfter(pause, [self = shared_from_this(), call] {
    std::unique_ptr<Timer> looked;
    {
      MutexLock looking(call->mutex);
      // It would hold the call that holds it.
      looked = std::move(call->look);
    }
    self->SendWhenConnected(call);
  });
}

void GrpcUpstream::Send(const std::shared_ptr<UnaryCall>& call) {
  if (call->request.may_be_sent && !call->request.may_be_sent()) {
    return call->AnswerNotSent("the claim was lost before a connection was");
  }
  for (const auto& [name, value] : call->request.metadata) {
    call->context.AddMetadata(name, value);
  }
  call->context.set_deadline(std::chrono::system_clock::now() + call->timeout);
  call->sent = BufferOf(std::move(call->request.message));
  if (!Enter(call)) return call->AnswerNotSent("the sidecar ends");
  stub_.UnaryCall(
      &call->context, call->request.method, {}, &call->sent, &call->received,
      [self = shared_from_this(), call](grpc::Status status) {
        UpstreamAnswer answer;
        answer.answer = {
            .status = std::move(status),
            .trailers = HandedOn(call->context.GetServerTrailingMetadata())};
        if (answer.answer.status.ok()) {
          answer.answer.message = BytesOf(call->received);
          answer.initial_metadata =
              HandedOn(call->context.GetServerInitialMetadata());
        }
        call->answered(std::move(answer));
        self->Leave(call);
      });
}

bool GrpcUpstream::closed() {
  MutexLock lock(mutex_);
  return closed_;
}

bool GrpcUpstream::Enter(const std::shared_ptr<UnaryCall>& call) {
  MutexLock lock(mutex_);
  if (!closed_) calls_.insert(call);
  return !closed_;
}

void GrpcUpstream::Leave(const std::shared_ptr<UnaryCall>& call) {
  MutexLock lock(mutex_);
  calls_.erase(call);
  changed_.notify_all();
}

void GrpcUpstream::Close() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  std::unique_lock<Mutex> lock(mutex_);
  closed_ = true;
  for (const auto& call : calls_) call->context.TryCancel();
  changed_.wait(
      lock, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return calls_.empty(); });
}

}  // namespace idempotency::internal
