// The gRPC service behind the sidecar. For grpc_proxy.cc and what it is made
// of.
#ifndef IDEMPOTENCY_CLIENT_PROXY_GRPC_UPSTREAM_H_
#define IDEMPOTENCY_CLIENT_PROXY_GRPC_UPSTREAM_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

#include "client/environment.h"
#include "client/grpc/recorded_call.h"
#include "client/mutex.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/string_ref.h"

namespace idempotency::internal {

std::string BytesOf(const grpc::ByteBuffer& buffer);
grpc::ByteBuffer BufferOf(std::string bytes);

// What is handed on of a caller's metadata to the service, and of the service's
// to the caller.
using MetadataMap = std::multimap<grpc::string_ref, grpc::string_ref>;
GrpcMetadata HandedOn(const MetadataMap& metadata);

struct UpstreamRequest {
  std::string method;  // path
  GrpcMetadata metadata;
  std::string message;
  // Asked right before it is sent; null: it may.
  std::function<bool()> may_be_sent;
};

struct UpstreamAnswer {
  GrpcAnswer answer;
  GrpcMetadata initial_metadata = {};
  // False: nothing was, for want of a connection or because it might no more.
  bool sent = true;
};

// Thread-safe. Kept by a shared pointer.
class GrpcUpstream : public std::enable_shared_from_this<GrpcUpstream> {
 public:
  struct Options {
    std::string target;
    std::shared_ptr<grpc::ChannelCredentials> credentials;
    int response_bytes_max;
    std::chrono::milliseconds connect_timeout;
  };
  using Answered = std::function<void(UpstreamAnswer)>;

  explicit GrpcUpstream(const Options& options);

  // A unary call, sent once at most and only over a connection that is there.
  // `answered` is called once, in a thread that it must not block.
  void Call(UpstreamRequest request, std::chrono::milliseconds timeout,
            Answered answered);

  grpc::GenericStub& stub() { return stub_; }

  // Sends no more, cancels what is under way, and waits until it has been
  // answered.
  void Close();

 private:
  struct UnaryCall;

  // Whether there is a connection; nothing while that is being found out.
  std::optional<bool> Connected() const;
  void SendWhenConnected(const std::shared_ptr<UnaryCall>& call);
  void LookLater(const std::shared_ptr<UnaryCall>& call);
  void Send(const std::shared_ptr<UnaryCall>& call);
  bool closed();
  // False: it is closed.
  bool Enter(const std::shared_ptr<UnaryCall>& call);
  void Leave(const std::shared_ptr<UnaryCall>& call);

  const std::chrono::milliseconds connect_timeout_;
  const std::shared_ptr<ClientEnvironment> environment_;
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;

  Mutex mutex_;
  ConditionVariable changed_;
  std::unordered_set<std::shared_ptr<UnaryCall>> calls_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace idempotency::internal

#endif  // IDEMPOTENCY_CLIENT_PROXY_GRPC_UPSTREAM_H_
