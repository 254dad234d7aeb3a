// grpc.reflection.v1.ServerReflection, and v1alpha for older tools. Described
// from the descriptors that are compiled into the program, itself included.
#ifndef IDEMPOTENCY_SERVER_RPC_REFLECTION_H_
#define IDEMPOTENCY_SERVER_RPC_REFLECTION_H_

#include <google/protobuf/descriptor.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <set>
#include <string>
#include <string_view>

#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "server/rpc/stream_set.h"

namespace idempotency {

// Thread-safe; must outlive the grpc::Server that it is registered with.
class Reflection {
 public:
  using Request = grpc::reflection::v1::ServerReflectionRequest;
  using Response = grpc::reflection::v1::ServerReflectionResponse;

  // Streams beyond this many are refused with RESOURCE_EXHAUSTED.
  static constexpr std::size_t kStreamsMax = 100;

  // Lists `services` and its own two.
  explicit Reflection(std::set<std::string> services,
                      std::size_t streams_max = kStreamsMax);
  ~Reflection();

  // To be registered, both of them.
  grpc::Service& v1() { return v1_; }
  grpc::Service& v1alpha() { return v1alpha_; }

  Response Answer(const Request& request) const;

  // Cancels every stream, present and future, so that none delays the
  // server's end.
  void EndStreams();

 private:
  class Stream;
  using Reactor = grpc::ServerBidiReactor<Request, Response>;

  // The messages of both versions are the same on the wire, so that one
  // handler serves either method.
  class Endpoint final : public grpc::Service {
   public:
    // `method` is a literal.
    Endpoint(const char* method, Reflection& reflection);
  };

  Reactor* Open(grpc::CallbackServerContext* context);
  void DescribeFile(const google::protobuf::FileDescriptor* file,
                    Response& response) const;
  void ListExtensions(const std::string& type, Response& response) const;

  google::protobuf::DescriptorPool pool_;
  std::set<std::string> services_;
  StreamSet<Stream> streams_;
  Endpoint v1_;
  Endpoint v1alpha_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_REFLECTION_H_
