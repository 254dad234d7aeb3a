// Health and reflection as load balancers and tools see them, over loopback.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "idempotency/v1/idempotency.grpc.pb.h"
#include "server/rpc/health.h"
#include "server/rpc/reflection.h"
#include "tests/integration/loopback_server.h"

namespace idempotency {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using grpc::reflection::v1::ServerReflectionRequest;
using grpc::reflection::v1::ServerReflectionResponse;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

constexpr char kService[] = "idempotency.v1.IdempotencyService";
// So long that a test which had to wait for it would never end.
constexpr std::chrono::hours kNever{24};

// ---- Health.

// The status, or the code of a call that was refused.
std::string Check(const LoopbackServer& server, const std::string& service) {
  auto stub = grpc::health::v1::Health::NewStub(server.Channel());
  grpc::ClientContext context;
  HealthCheckRequest request;
  HealthCheckResponse response;
  request.set_service(service);
  const grpc::Status status = stub->Check(&context, request, &response);
  if (!status.ok()) return "error " + std::to_string(status.error_code());
  return HealthCheckResponse::ServingStatus_Name(response.status());
}

// One Watch call.
class Watch {
 public:
  Watch(const std::shared_ptr<grpc::Channel>& channel,
        const std::string& service)
      : stub_(grpc::health::v1::Health::NewStub(channel)) {
    HealthCheckRequest request;
    request.set_service(service);
    reader_ = stub_->Watch(&context_, request);
  }

  // What is told next; "end" when the stream is over.
  std::string Next() {
    HealthCheckResponse response;
    if (!reader_->Read(&response)) return "end";
    return HealthCheckResponse::ServingStatus_Name(response.status());
  }
  void Cancel() { context_.TryCancel(); }
  grpc::StatusCode Finish() { return reader_->Finish().error_code(); }

 private:
  std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<HealthCheckResponse>> reader_;
};

TEST(HealthCheck, IsNotServingUntilToldOtherwise) {
  LoopbackServer server;
  EXPECT_EQ(Check(server, ""), "NOT_SERVING");
  EXPECT_EQ(Check(server, kService), "NOT_SERVING");
  server.server->SetServing(true);
  EXPECT_EQ(Check(server, ""), "SERVING");
  EXPECT_EQ(Check(server, kService), "SERVING");
  server.server->SetServing(false);
  EXPECT_EQ(Check(server, ""), "NOT_SERVING");
}

TEST(HealthCheck, StopsServingForGood) {
  LoopbackServer server;
  server.server->SetServing(true);
  server.server->StopServing();
  server.server->SetServing(true);
  EXPECT_EQ(Check(server, ""), "NOT_SERVING");
  EXPECT_EQ(Check(server, kService), "NOT_SERVING");
}

TEST(HealthCheck, DoesNotKnowOtherServices) {
  LoopbackServer server;
  EXPECT_EQ(Check(server, "idempotency.v1"),
            "error " + std::to_string(grpc::StatusCode::NOT_FOUND));
}

TEST(HealthWatch, TellsTheStatusAndEachChangeOfIt) {
  LoopbackServer server;
  Watch watch(server.Channel(), kService);
  EXPECT_EQ(watch.Next(), "NOT_SERVING");
  server.server->SetServing(true);
  EXPECT_EQ(watch.Next(), "SERVING");
  server.server->SetServing(true);
  server.server->StopServing();
  EXPECT_EQ(watch.Next(), "NOT_SERVING");
}

TEST(HealthWatch, OfAnUnknownServiceStaysOpen) {
  LoopbackServer server;
  Watch watch(server.Channel(), "no.such.Service");
  EXPECT_EQ(watch.Next(), "SERVICE_UNKNOWN");
  server.server->SetServing(true);
  watch.Cancel();
  EXPECT_EQ(watch.Next(), "end");
  EXPECT_EQ(watch.Finish(), grpc::StatusCode::CANCELLED);
}

TEST(HealthWatch, DoesNotDelayTheServersEnd) {
  LoopbackServer server;
  Watch watch(server.Channel(), "");
  EXPECT_EQ(watch.Next(), "NOT_SERVING");
  server.server->Shutdown(kNever);
  EXPECT_EQ(watch.Next(), "end");
  EXPECT_EQ(watch.Finish(), grpc::StatusCode::UNAVAILABLE);
}

TEST(HealthWatch, LastStatusToldIsTheLatest) {
  LoopbackServer server;
  constexpr int kWatches = 8;
  std::atomic<bool> done{false};
  std::vector<std::thread> switchers;
  for (int i = 0; i < 2; ++i) {
    switchers.emplace_back([&, i] {
      for (int n = i; !done; ++n) server.server->SetServing(n % 2 == 0);
    });
  }
  std::vector<std::unique_ptr<Watch>> watches;
  for (int i = 0; i < kWatches; ++i) {
    watches.push_back(std::make_unique<Watch>(server.Channel(), ""));
    for (int n = 0; n < 50; ++n) {
      EXPECT_THAT(watches.back()->Next(), Not("end"));
    }
  }
  done = true;
  for (std::thread& switcher : switchers) switcher.join();
  server.server->SetServing(true);
  server.server->Shutdown(kNever);
  for (const auto& watch : watches) {
    std::string last;
    for (std::string told = watch->Next(); told != "end";
         told = watch->Next()) {
      EXPECT_NE(told, last) << "told twice";
      last = told;
    }
    EXPECT_NE(last, "SERVING") << "the server had shut down";
  }
}

// A bare server with the one service.
std::unique_ptr<grpc::Server> Serve(std::vector<grpc::Service*> services,
                                    int& port) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  return builder.BuildAndStart();
}

std::shared_ptr<grpc::Channel> ChannelTo(int port) {
  return grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                             grpc::InsecureChannelCredentials());
}

TEST(HealthWatch, IsRefusedBeyondItsBoundAndTakenAgainWhenOneEnds) {
  Health health({kService}, 2);
  int port = 0;
  const auto server = Serve({&health}, port);
  Watch first(ChannelTo(port), "");
  Watch second(ChannelTo(port), "");
  EXPECT_EQ(first.Next(), "NOT_SERVING");
  EXPECT_EQ(second.Next(), "NOT_SERVING");
  Watch third(ChannelTo(port), "");
  EXPECT_EQ(third.Next(), "end");
  EXPECT_EQ(third.Finish(), grpc::StatusCode::RESOURCE_EXHAUSTED);

  first.Cancel();
  EXPECT_EQ(first.Finish(), grpc::StatusCode::CANCELLED);
  // The server hears of it a little later.
  std::string told = "end";
  while (told == "end") told = Watch(ChannelTo(port), "").Next();
  EXPECT_EQ(told, "NOT_SERVING");
  health.EndWatches();
}

// ---- Reflection.

// One reflection stream of either version.
class Questions {
 public:
  Questions(const std::shared_ptr<grpc::Channel>& channel,
            const std::string& version)
      : channel_(channel),
        method_name_("/grpc.reflection." + version +
                     ".ServerReflection/ServerReflectionInfo"),
        stream_(
            grpc::internal::ClientReaderWriterFactory<
                ServerReflectionRequest, ServerReflectionResponse>::
                Create(channel_.get(),
                       grpc::internal::RpcMethod(
                           method_name_.c_str(),
                           grpc::internal::RpcMethod::BIDI_STREAMING, channel_),
                       &context_)) {}

  ServerReflectionResponse Ask(const ServerReflectionRequest& request) {
    ServerReflectionResponse response;
    EXPECT_TRUE(stream_->Write(request));
    EXPECT_TRUE(stream_->Read(&response));
    return response;
  }
  std::vector<std::string> Services() {
    ServerReflectionRequest request;
    request.set_list_services("*");
    const ServerReflectionResponse answer = Ask(request);
    std::vector<std::string> names;
    for (const auto& service : answer.list_services_response().service()) {
      names.push_back(service.name());
    }
    return names;
  }
  ServerReflectionResponse AskForSymbol(const std::string& symbol) {
    ServerReflectionRequest request;
    request.set_file_containing_symbol(symbol);
    return Ask(request);
  }
  bool ReadsNothingMore() {
    ServerReflectionResponse response;
    return !stream_->Read(&response);
  }
  void NoMore() { stream_->WritesDone(); }
  grpc::Status Finish() { return stream_->Finish(); }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  const std::string method_name_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<ServerReflectionRequest,
                                           ServerReflectionResponse>>
      stream_;
};

// The method names of `service`, from nothing but the answer's files, which
// must come in an order in which they can be built.
std::vector<std::string> MethodsOf(const std::string& service,
                                   const ServerReflectionResponse& answer) {
  google::protobuf::DescriptorPool pool;
  for (const std::string& bytes :
       answer.file_descriptor_response().file_descriptor_proto()) {
    google::protobuf::FileDescriptorProto file;
    EXPECT_TRUE(file.ParseFromString(bytes));
    EXPECT_NE(pool.BuildFile(file), nullptr) << file.name();
  }
  const auto* descriptor = pool.FindServiceByName(service);
  if (descriptor == nullptr) return {"not described"};
  std::vector<std::string> methods;
  for (int i = 0; i < descriptor->method_count(); ++i) {
    methods.push_back(descriptor->method(i)->name());
  }
  return methods;
}

class ReflectionTest : public ::testing::TestWithParam<const char*> {
 protected:
  LoopbackServer server_;
  Questions questions_{server_.Channel(), GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Versions, ReflectionTest,
                         ::testing::Values("v1", "v1alpha"));

TEST_P(ReflectionTest, ListsEveryService) {
  EXPECT_THAT(
      questions_.Services(),
      ElementsAre("grpc.health.v1.Health",
                  "grpc.reflection.v1.ServerReflection",
                  "grpc.reflection.v1alpha.ServerReflection", kService));
}

TEST_P(ReflectionTest, DescribesEveryServiceThatItLists) {
  const auto methods = [this](const std::string& service) {
    return MethodsOf(service, questions_.AskForSymbol(service));
  };
  EXPECT_THAT(methods(kService),
              ElementsAre("Claim", "Finalize", "Lookup", "Release", "Bulk"));
  EXPECT_THAT(methods("grpc.health.v1.Health"), ElementsAre("Check", "Watch"));
  EXPECT_THAT(methods("grpc.reflection.v1.ServerReflection"),
              ElementsAre("ServerReflectionInfo"));
  EXPECT_THAT(methods("grpc.reflection.v1alpha.ServerReflection"),
              ElementsAre("ServerReflectionInfo"));
}

TEST_P(ReflectionTest, FindsFilesMethodsAndMessages) {
  ServerReflectionRequest request;
  request.set_host("example");
  request.set_file_by_filename("idempotency/v1/idempotency.proto");
  const ServerReflectionResponse answer = questions_.Ask(request);
  EXPECT_EQ(answer.valid_host(), "example");
  EXPECT_EQ(answer.original_request().file_by_filename(),
            "idempotency/v1/idempotency.proto");
  EXPECT_THAT(MethodsOf(kService, answer), Contains("Claim"));
  for (const char* symbol :
       {"idempotency.v1.IdempotencyService.Claim", "idempotency.v1.Claimed",
        "idempotency.v1.Record.State"}) {
    EXPECT_THAT(MethodsOf(kService, questions_.AskForSymbol(symbol)),
                Contains("Claim"));
  }
}

TEST_P(ReflectionTest, GoesOnAfterAnErrorAndEndsWithItsCaller) {
  EXPECT_EQ(
      questions_.AskForSymbol("no.such.Thing").error_response().error_code(),
      grpc::StatusCode::NOT_FOUND);
  ServerReflectionRequest request;
  EXPECT_EQ(questions_.Ask(request).error_response().error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  request.set_file_by_filename("no/such/file.proto");
  EXPECT_EQ(questions_.Ask(request).error_response().error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(questions_.Services(), Contains(kService));
  questions_.NoMore();
  EXPECT_TRUE(questions_.ReadsNothingMore());
  EXPECT_TRUE(questions_.Finish().ok());
}

TEST_P(ReflectionTest, AnswersQuestionsAboutExtensions) {
  ServerReflectionRequest request;
  request.set_all_extension_numbers_of_type("idempotency.v1.Claimed");
  const ServerReflectionResponse none = questions_.Ask(request);
  EXPECT_EQ(none.all_extension_numbers_response().base_type_name(),
            "idempotency.v1.Claimed");
  EXPECT_EQ(none.all_extension_numbers_response().extension_number_size(), 0);
  request.set_all_extension_numbers_of_type("no.such.Type");
  EXPECT_EQ(questions_.Ask(request).error_response().error_code(),
            grpc::StatusCode::NOT_FOUND);
  auto& extension = *request.mutable_file_containing_extension();
  extension.set_containing_type("idempotency.v1.Claimed");
  extension.set_extension_number(7);
  EXPECT_EQ(questions_.Ask(request).error_response().error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_P(ReflectionTest, DoesNotDelayTheServersEnd) {
  EXPECT_THAT(questions_.Services(), Contains(kService));
  server_.server->Shutdown(kNever);
  EXPECT_TRUE(questions_.ReadsNothingMore());
  EXPECT_FALSE(questions_.Finish().ok());
}

TEST_P(ReflectionTest, IsUnknownWhenSwitchedOff) {
  LoopbackServer server({.reflection = false});
  Questions questions(server.Channel(), GetParam());
  EXPECT_TRUE(questions.ReadsNothingMore());
  EXPECT_EQ(questions.Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST(ReflectionBound, RefusesStreamsBeyondItAndTakesThemAgainWhenOneEnds) {
  Reflection reflection({}, 1);
  int port = 0;
  const auto server = Serve({&reflection.v1(), &reflection.v1alpha()}, port);
  Questions first(ChannelTo(port), "v1");
  EXPECT_THAT(first.Services(), Not(Contains(kService)));
  Questions second(ChannelTo(port), "v1alpha");
  EXPECT_TRUE(second.ReadsNothingMore());
  EXPECT_EQ(second.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);

  first.NoMore();
  EXPECT_TRUE(first.Finish().ok());
  // The server forgets a stream a little after its caller.
  grpc::StatusCode code = grpc::StatusCode::RESOURCE_EXHAUSTED;
  while (code == grpc::StatusCode::RESOURCE_EXHAUSTED) {
    Questions third(ChannelTo(port), "v1");
    third.NoMore();
    code = third.Finish().error_code();
  }
  EXPECT_EQ(code, grpc::StatusCode::OK);
}

}  // namespace
}  // namespace idempotency
