// What only a real connection shows: listening, limits of messages, trailers,
// deadlines and cancellations of real callers, and the server's end.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "idempotency/v1/idempotency.grpc.pb.h"
#include "server/core/limits.h"
#include "server/rpc/library_log.h"
#include "server/rpc/server.h"
#include "tests/integration/loopback_server.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_certificates.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kToken[] = "0f8fad5b-d9cb-469f-a165-70867728950e";
// So long that a test which had to wait for it would never end.
constexpr std::chrono::hours kNever{24};

v1::ClaimRequest ClaimOf(const std::string& key) {
  v1::ClaimRequest request;
  request.set_scope("payments");
  request.set_key(key);
  request.set_request_hash(std::string(32, 'h'));
  request.set_claim_token(kToken);
  return request;
}

// One Claim in a thread of its own.
class ClaimInBackground {
 public:
  ClaimInBackground(const std::shared_ptr<grpc::Channel>& channel,
                    seconds patience)
      : stub_(v1::IdempotencyService::NewStub(channel)) {
    context_.set_deadline(std::chrono::system_clock::now() + patience);
    thread_ = std::thread([this] {
      status_ = stub_->Claim(&context_, ClaimOf("k"), &response_);
    });
  }
  ~ClaimInBackground() {
    if (thread_.joinable()) thread_.join();
  }

  void Cancel() { context_.TryCancel(); }
  const grpc::Status& Await() {
    thread_.join();
    return status_;
  }
  const v1::ClaimResponse& response() const { return response_; }

 private:
  std::unique_ptr<v1::IdempotencyService::Stub> stub_;
  grpc::ClientContext context_;
  v1::ClaimResponse response_;
  grpc::Status status_;
  std::thread thread_;
};

std::string ReasonIn(const grpc::Status& status) {
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  if (!details.ParseFromString(status.error_details()) ||
      details.details_size() == 0 || !details.details(0).UnpackTo(&info)) {
    return "";
  }
  return info.reason();
}

TEST(RpcServer, CarriesTheFourCalls) {
  LoopbackServer server;
  server.RunLanesInThreads();
  auto stub = v1::IdempotencyService::NewStub(server.Channel());
  {
    grpc::ClientContext context;
    v1::ClaimResponse response;
    ASSERT_TRUE(stub->Claim(&context, ClaimOf("k"), &response).ok());
    EXPECT_TRUE(response.has_claimed());
  }
  {
    grpc::ClientContext context;
    v1::FinalizeRequest request;
    v1::FinalizeResponse response;
    request.set_scope("payments");
    request.set_key("k");
    request.set_claim_token(kToken);
    request.mutable_response()->set_status_code(201);
    ASSERT_TRUE(stub->Finalize(&context, request, &response).ok());
    EXPECT_EQ(response.result(), v1::FinalizeResponse::RESULT_RECORDED);
  }
  {
    grpc::ClientContext context;
    v1::LookupRequest request;
    v1::LookupResponse response;
    request.set_scope("payments");
    request.set_key("k");
    ASSERT_TRUE(stub->Lookup(&context, request, &response).ok());
    EXPECT_EQ(response.record().key(), "k");
  }
  {
    grpc::ClientContext context;
    v1::ReleaseRequest request;
    v1::ReleaseResponse response;
    request.set_scope("payments");
    request.set_key("k");
    request.set_claim_token(kToken);
    request.set_disposition(v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED);
    ASSERT_TRUE(stub->Release(&context, request, &response).ok());
    EXPECT_TRUE(response.released());
  }
}

TEST(RpcServer, StreamWhoseCallerTakesNoResultsEndsAfterAMinute) {
  LoopbackServer server;
  server.script.record.state = RecordState::kFinal;
  server.script.record.response.body = std::string(1 << 20, 'b');
  server.RunLanesInThreads();
  auto stub = v1::IdempotencyService::NewStub(server.Channel());
  grpc::ClientContext context;
  const auto stream = stub->Bulk(&context);
  v1::BulkRequest message;
  // More than gRPC takes off the server's hands before anybody reads.
  for (std::uint64_t id = 0; id < 30; ++id) {
    v1::Command& command = *message.add_commands();
    command.set_id(id);
    command.mutable_lookup()->set_scope("payments");
    command.mutable_lookup()->set_key("k");
  }
  ASSERT_TRUE(stream->Write(message));
  while (server.metrics.reply_bytes < limits::kBulkUnsentBytesMax) {
    std::this_thread::yield();
  }
  const SteadyTime begin = server.clock.Now();
  while (server.metrics.reply_bytes > 0) {
    ASSERT_LT(server.clock.Now() - begin, std::chrono::hours(1));
    server.clock.Advance(seconds(1));
    server.server->LookAtStreams(server.clock.Now());
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_GE(server.clock.Now() - begin, limits::kBulkStallMax);
  v1::BulkResponse results;
  while (stream->Read(&results)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(RpcServer, SecondServerOnTheSamePortFailsLoudly) {
  LoopbackServer server;
  const auto second =
      RpcServer::Start({.listen = server.address()}, {}, server.parts());
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(server.address()));
}

TEST(RpcServer, AddressThatIsNoneFailsLoudly) {
  LoopbackServer server;
  for (const char* address : {"", "192.0.2.1:1", "nonsense:x"}) {
    EXPECT_FALSE(RpcServer::Start({.listen = address}, {}, server.parts()).ok())
        << address;
  }
}

TEST(RpcServer, UnavailableCallsCarryThePushbackTrailer) {
  LoopbackServer server;
  server.engine.StopAccepting();
  auto stub = v1::IdempotencyService::NewStub(server.Channel());
  grpc::ClientContext context;
  v1::ClaimResponse response;
  const grpc::Status status = stub->Claim(&context, ClaimOf("k"), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReasonIn(status), "DRAINING");
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto pushback = trailers.find("grpc-retry-pushback-ms");
  ASSERT_NE(pushback, trailers.end());
  const int delay =
      std::stoi(std::string(pushback->second.data(), pushback->second.size()));
  EXPECT_GT(delay, 0);
  EXPECT_LT(delay, 1000);
}

TEST(RpcServer, RefusedFieldIsNamedInTheDetails) {
  LoopbackServer server;
  auto stub = v1::IdempotencyService::NewStub(server.Channel());
  grpc::ClientContext context;
  v1::ClaimResponse response;
  const grpc::Status status =
      stub->Claim(&context, ClaimOf(std::string(256, 'k')), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReasonIn(status), "INVALID_FIELD");
  google::rpc::Status details;
  google::rpc::BadRequest bad;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  ASSERT_EQ(details.details_size(), 2);
  ASSERT_TRUE(details.details(1).UnpackTo(&bad));
  EXPECT_EQ(bad.field_violations(0).field(), "key");
  EXPECT_EQ(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"),
            0U);
}

// What a client that does not check its own strings sends.
template <typename Request, typename Response>
std::string CodeAndReason(const LoopbackServer& server, const std::string& key,
                          grpc::Status (v1::IdempotencyService::Stub::*method)(
                              grpc::ClientContext*, const Request&,
                              Response*)) {
  auto stub = v1::IdempotencyService::NewStub(server.Channel());
  grpc::ClientContext context;
  Request request;
  Response response;
  request.set_scope("payments");
  request.set_key(key);
  const grpc::Status status = (*stub.*method)(&context, request, &response);
  return std::to_string(status.error_code()) + " " + ReasonIn(status);
}

TEST(RpcServer, RefusesStringsThatAreNotUtf8) {
  LoopbackServer server;
  server.RunLanesInThreads();
  using Stub = v1::IdempotencyService::Stub;
  // An overlong form, a surrogate, a stray byte and a cut-off character.
  for (const char* key : {"\xc0\x80", "\xed\xa0\x80", "\xff", "a\xe2\x82"}) {
    EXPECT_EQ(CodeAndReason(server, key, &Stub::Claim), "13 INTERNAL");
    EXPECT_EQ(CodeAndReason(server, key, &Stub::Finalize), "13 INTERNAL");
    EXPECT_EQ(CodeAndReason(server, key, &Stub::Lookup), "13 INTERNAL");
    EXPECT_EQ(CodeAndReason(server, key, &Stub::Release), "13 INTERNAL");
  }
  EXPECT_EQ(server.script.items, 0);
}

grpc::Status FinalizeBody(const LoopbackServer& server, std::size_t size) {
  auto stub = v1::IdempotencyService::NewStub(server.Channel());
  grpc::ClientContext context;
  v1::FinalizeRequest request;
  v1::FinalizeResponse response;
  request.set_scope("payments");
  request.set_key("k");
  request.set_claim_token(kToken);
  request.mutable_response()->set_body(std::string(size, 'b'));
  return stub->Finalize(&context, request, &response);
}

TEST(RpcServer, TakesMessagesUpTo4MiB) {
  LoopbackServer server;
  server.RunLanesInThreads();
  EXPECT_TRUE(FinalizeBody(server, 4 * limits::kMiB - 1024).ok());
  EXPECT_EQ(FinalizeBody(server, 4 * limits::kMiB).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(server.script.items, 1);
}

// The server's clock passes the caller's deadline long before real time does.
TEST(RpcServer, CallersDeadlineReachesTheEngine) {
  LoopbackServer server;
  ClaimInBackground claim(server.Channel(), seconds(20));
  server.AwaitCall();
  server.clock.Advance(seconds(21));
  server.RunLanesOnce();
  const grpc::Status status = claim.Await();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(ReasonIn(status), "DEADLINE_EXCEEDED");
  EXPECT_EQ(server.script.items, 0);
}

// The store has failed, so that the lane leaves it alone and only looks for
// calls whose caller has gone.
TEST(RpcServer, CallOfACallerThatWentAwayReachesNoStore) {
  LoopbackServer server;
  server.script.failure = absl::UnavailableError("away");
  ClaimInBackground claim(server.Channel(), seconds(20));
  server.AwaitCall();
  server.RunLanesOnce();
  const int tried = server.script.items;
  claim.Cancel();
  EXPECT_EQ(claim.Await().error_code(), grpc::StatusCode::CANCELLED);
  while (server.metrics.cancelled_in_queue == 0) server.RunLanesOnce();
  EXPECT_EQ(server.script.items, tried);
  EXPECT_TRUE(server.engine.idle());
}

TEST(LibraryLog, TakesErrorsOfGrpcAndNotOfCallersMessages) {
  LoopbackServer server;
  SendLibraryLogsTo(&server.log);
  EXPECT_EQ(
      CodeAndReason(server, "\xff", &v1::IdempotencyService::Stub::Lookup),
      "13 INTERNAL");
  EXPECT_THAT(server.log.lines(), IsEmpty());
  EXPECT_FALSE(
      RpcServer::Start({.listen = server.address()}, {}, server.parts()).ok());
  SendLibraryLogsTo(nullptr);
  ASSERT_THAT(server.log.lines(), SizeIs(1));
  EXPECT_THAT(server.log.lines().front(), HasSubstr("Address already in use"));
}

TEST(RpcServerShutdown, LetsCallsInHandEnd) {
  LoopbackServer server;
  ClaimInBackground claim(server.Channel(), seconds(60));
  server.AwaitCall();
  std::thread shutdown([&] { server.server->Shutdown(kNever); });
  server.RunLanesOnce();
  EXPECT_TRUE(claim.Await().ok());
  EXPECT_TRUE(claim.response().has_claimed());
  shutdown.join();
}

TEST(RpcServerShutdown, CancelsWhatOutlastsItsGrace) {
  LoopbackServer server;
  server.script.failure = absl::UnavailableError("away");
  ClaimInBackground claim(server.Channel(), seconds(60));
  server.AwaitCall();
  server.RunLanesOnce();
  std::thread shutdown([&] { server.server->Shutdown(milliseconds(0)); });
  EXPECT_FALSE(claim.Await().ok());
  while (server.metrics.cancelled_in_queue == 0) server.RunLanesOnce();
  shutdown.join();
}

TEST(RpcServerShutdown, IsDoneOnce) {
  LoopbackServer server;
  server.server->Shutdown(kNever);
  server.server->Shutdown(kNever);
}

TEST(RpcServer, TellsWhenTheCertificateItServesExpires) {
  EXPECT_EQ(LoopbackServer().server->certificate_not_after(), std::nullopt);
  const auto folder = TempFolder::Make();
  ASSERT_TRUE(folder.ok()) << folder.status();
  const ServerOptions options = {
      .tls = {.tls_certificate = (*folder)->path() + "/server.crt",
              .tls_key = (*folder)->path() + "/server.key"}};
  const absl::Time now = absl::FromTimeT(absl::ToTimeT(absl::Now()));
  const TestAuthority authority("authority");
  const auto write = [&](int days) {
    const IssuedCertificate issued =
        authority.Issue({.not_after = now + absl::Hours(24 * days)});
    ReplaceFile(options.tls.tls_certificate, issued.certificate);
    ReplaceFile(options.tls.tls_key, issued.key);
  };
  write(20);
  const LoopbackServer tls(options);
  EXPECT_EQ(tls.server->certificate_not_after(), now + absl::Hours(24 * 20));
  write(30);
  tls.server->LookAtCertificates(now);
  tls.server->LookAtCertificates(now);
  EXPECT_EQ(tls.server->certificate_not_after(), now + absl::Hours(24 * 30));
}

}  // namespace
}  // namespace idempotency
