// The yardstick of the service's CPU: the same gRPC methods and messages with
// the same settings, but without validation, engine or database.
#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/synchronization/mutex.h"
#include "idempotency/v1/idempotency.grpc.pb.h"

ABSL_FLAG(std::string, listen, "127.0.0.1:0",
          "Address and port; port 0 takes a free one, which is printed.");

// Read by jemalloc when the process starts; the server's own choice.
extern "C" {
extern const char* malloc_conf;
const char* malloc_conf = "narenas:2,dirty_decay_ms:1000";
}

namespace idempotency::benchmark {
namespace {

class EchoService final : public v1::IdempotencyService::CallbackService {
 public:
  EchoService() {
    v1::Claimed* claimed = claimed_.mutable_claimed();
    claimed->set_fencing_token(1'700'000'000'000'000);
    claimed->set_attempt(1);
    claimed->mutable_lease()->set_seconds(30);
    claimed->mutable_lease_expires_at()->set_seconds(1'700'000'030);
    claimed->mutable_lease_expires_at()->set_nanos(123'456'000);
    claimed->mutable_expires_at()->set_seconds(1'700'086'430);
    claimed->mutable_expires_at()->set_nanos(123'456'000);
    claimed->set_downstream_key("6f1c1f4e-3f0a-5d8b-9a52-0d6c3be1a7f4");
    recorded_.set_result(v1::FinalizeResponse::RESULT_RECORDED);
    *recorded_.mutable_expires_at() = claimed->expires_at();
  }

  grpc::ServerUnaryReactor* Claim(grpc::CallbackServerContext* context,
                                  const v1::ClaimRequest*,
                                  v1::ClaimResponse* response) override {
    *response = claimed_;
    return Finished(context);
  }

  grpc::ServerUnaryReactor* Finalize(grpc::CallbackServerContext* context,
                                     const v1::FinalizeRequest*,
                                     v1::FinalizeResponse* response) override {
    *response = recorded_;
    return Finished(context);
  }

 private:
  static grpc::ServerUnaryReactor* Finished(
      grpc::CallbackServerContext* context) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  v1::ClaimResponse claimed_;
  v1::FinalizeResponse recorded_;
};

int Serve(const std::string& address) {
  // Blocked before gRPC makes its threads, so that only sigwait sees them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const size_t colon = address.rfind(':');
  EchoService service;
  grpc::ServerBuilder builder;
  int port = 0;
  // As the server: what they change, they change for every call.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 16 * 1024);
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 25'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 0);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    std::cerr << "echo_server: cannot listen on " << address << std::endl;
    return 1;
  }
  std::cout << address.substr(0, colon) << ":" << port << std::endl;
  int signal = 0;
  sigwait(&signals, &signal);
  server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  return 0;
}

}  // namespace
}  // namespace idempotency::benchmark

int main(int argc, char** argv) {
  // Abseil as distributed looks for lock cycles through one global spin lock.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  absl::SetProgramUsageMessage(
      "Answers every Claim with Claimed and every Finalize with "
      "RESULT_RECORDED.");
  absl::ParseCommandLine(argc, argv);
  return idempotency::benchmark::Serve(absl::GetFlag(FLAGS_listen));
}
