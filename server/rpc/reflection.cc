#include "server/rpc/reflection.h"

#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace idempotency {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;

constexpr char kV1Service[] = "grpc.reflection.v1.ServerReflection";
constexpr char kV1AlphaService[] = "grpc.reflection.v1alpha.ServerReflection";
constexpr char kV1Method[] =
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
constexpr char kV1AlphaMethod[] =
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

constexpr char kV1AlphaFile[] = "grpc/reflection/v1alpha/reflection.proto";
constexpr char kV1Package[] = "grpc.reflection.v1";
constexpr char kV1AlphaPackage[] = "grpc.reflection.v1alpha";

// ".grpc.reflection.v1.Name" becomes ".grpc.reflection.v1alpha.Name".
void Rename(std::string& type_name) {
  const std::string v1 = std::string(".") + kV1Package + ".";
  if (type_name.compare(0, v1.size(), v1) != 0) return;
  type_name =
      std::string(".") + kV1AlphaPackage + "." + type_name.substr(v1.size());
}

// v1alpha is v1 under another name.
google::protobuf::FileDescriptorProto V1AlphaFile() {
  google::protobuf::FileDescriptorProto file;
  grpc::reflection::v1::ServerReflectionRequest::descriptor()->file()->CopyTo(
      &file);
  file.set_name(kV1AlphaFile);
  file.set_package(kV1AlphaPackage);
  file.clear_options();
  for (auto& message : *file.mutable_message_type()) {
    for (auto& field : *message.mutable_field()) {
      if (field.has_type_name()) Rename(*field.mutable_type_name());
    }
  }
  for (auto& service : *file.mutable_service()) {
    for (auto& method : *service.mutable_method()) {
      Rename(*method.mutable_input_type());
      Rename(*method.mutable_output_type());
    }
  }
  return file;
}

void SetError(grpc::StatusCode code, const char* message,
              Reflection::Response& response) {
  response.mutable_error_response()->set_error_code(code);
  response.mutable_error_response()->set_error_message(message);
}

// `file` after everything it imports, each once.
void AddWithImports(const FileDescriptor& file, std::set<std::string>& seen,
                    grpc::reflection::v1::FileDescriptorResponse& out) {
  if (!seen.insert(file.name()).second) return;
  for (int i = 0; i < file.dependency_count(); ++i) {
    AddWithImports(*file.dependency(i), seen, out);
  }
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  proto.SerializeToString(out.add_file_descriptor_proto());
}

}  // namespace

// One call: reads a question, writes its answer, and so on until the caller
// has no more. gRPC runs one reaction at a time, OnCancel() apart.
class Reflection::Stream final : public Reflection::Reactor {
 public:
  Stream(Reflection& reflection, grpc::CallbackServerContext* context)
      : reflection_(reflection), context_(context) {}

  void Start() { StartRead(&request_); }

  // Ends an admitted stream, from any thread.
  void Cancel() {
    MutexLock lock(mutex_);
    if (context_ != nullptr) context_->TryCancel();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    response_ = reflection_.Answer(request_);
    StartWrite(&response_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    StartRead(&request_);
  }

  void OnDone() override {
    {
      MutexLock lock(mutex_);
      context_ = nullptr;
    }
    reflection_.streams_.Remove(this);
  }

 private:
  Reflection& reflection_;
  Request request_;
  Response response_;

  Mutex mutex_;
  // gRPC's, until the stream is done.
  grpc::CallbackServerContext* context_ ABSL_GUARDED_BY(mutex_);
};

Reflection::Endpoint::Endpoint(const char* method, Reflection& reflection) {
  AddMethod(new grpc::internal::RpcServiceMethod(
      method, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
  MarkMethodCallback(0,
                     new grpc::internal::CallbackBidiHandler<Request, Response>(
                         [&reflection](grpc::CallbackServerContext* context) {
                           return reflection.Open(context);
                         }));
}

Reflection::Reflection(std::set<std::string> services, std::size_t streams_max)
    : pool_(DescriptorPool::generated_pool()),
      services_(std::move(services)),
      streams_(streams_max),
      v1_(kV1Method, *this),
      v1alpha_(kV1AlphaMethod, *this) {
  services_.insert({kV1Service, kV1AlphaService});
  pool_.BuildFile(V1AlphaFile());
}

Reflection::~Reflection() = default;

Reflection::Response Reflection::Answer(const Request& request) const {
  Response response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case Request::kFileByFilename:
      DescribeFile(pool_.FindFileByName(request.file_by_filename()), response);
      break;
    case Request::kFileContainingSymbol:
      DescribeFile(
          pool_.FindFileContainingSymbol(request.file_containing_symbol()),
          response);
      break;
    case Request::kFileContainingExtension: {
      const auto& asked = request.file_containing_extension();
      const auto* type = pool_.FindMessageTypeByName(asked.containing_type());
      const auto* extension =
          type == nullptr
              ? nullptr
              : pool_.FindExtensionByNumber(type, asked.extension_number());
      DescribeFile(extension == nullptr ? nullptr : extension->file(),
                   response);
      break;
    }
    case Request::kAllExtensionNumbersOfType:
      ListExtensions(request.all_extension_numbers_of_type(), response);
      break;
    case Request::kListServices:
      for (const std::string& service : services_) {
        response.mutable_list_services_response()->add_service()->set_name(
            service);
      }
      break;
    case Request::MESSAGE_REQUEST_NOT_SET:
      SetError(grpc::StatusCode::INVALID_ARGUMENT, "nothing was asked",
               response);
      break;
  }
  return response;
}

void Reflection::EndStreams() {
  streams_.Close();
  for (const auto& stream : streams_.All()) stream->Cancel();
}

Reflection::Reactor* Reflection::Open(grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<Stream>(*this, context);
  switch (streams_.Add(stream)) {
    case StreamSet<Stream>::Admission::kAdmitted:
      stream->Start();
      break;
    case StreamSet<Stream>::Admission::kFull:
      stream->Finish({grpc::StatusCode::RESOURCE_EXHAUSTED,
                      "too many calls ask for descriptions"});
      break;
    case StreamSet<Stream>::Admission::kClosed:
      stream->Finish(
          {grpc::StatusCode::UNAVAILABLE, "the server is going away"});
      break;
  }
  return stream.get();
}

void Reflection::DescribeFile(const FileDescriptor* file,
                              Response& response) const {
  if (file == nullptr) {
    return SetError(grpc::StatusCode::NOT_FOUND, "not found", response);
  }
  std::set<std::string> seen;
  AddWithImports(*file, seen, *response.mutable_file_descriptor_response());
}

void Reflection::ListExtensions(const std::string& type,
                                Response& response) const {
  const auto* descriptor = pool_.FindMessageTypeByName(type);
  if (descriptor == nullptr) {
    return SetError(grpc::StatusCode::NOT_FOUND, "not found", response);
  }
  auto& out = *response.mutable_all_extension_numbers_response();
  out.set_base_type_name(type);
  std::vector<const google::protobuf::FieldDescriptor*> extensions;
  pool_.FindAllExtensions(descriptor, &extensions);
  for (const auto* extension : extensions) {
    out.add_extension_number(extension->number());
  }
}

}  // namespace idempotency
