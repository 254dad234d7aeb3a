#include "tests/support/replica.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <atomic>
#include <cstdlib>
#include <sstream>
#include <thread>
#include <utility>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/support/port.h"

namespace idempotency {
namespace {

using grpc::health::v1::HealthCheckResponse;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kCheckTimeout{1000};
constexpr milliseconds kCheckPause{10};
// A server that comes back is found at once, and not after gRPC's seconds.
constexpr int kReconnectPauseMs = 50;
// gRPC's name for it misleads: it bounds an attempt to connect from below.
constexpr int kConnectTimeoutMs = 10'000;

std::shared_ptr<grpc::Channel> Connect(
    const std::string& target,
    const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  static std::atomic<int> channels{0};
  grpc::ChannelArguments arguments;
  // Channels of equal arguments would share one connection.
  arguments.SetInt("idempotency.test_channel", ++channels);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectPauseMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectPauseMs);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  return grpc::CreateCustomChannel(
      target, credentials ? credentials : grpc::InsecureChannelCredentials(),
      arguments);
}

std::string TargetOf(int port) { return "127.0.0.1:" + std::to_string(port); }

std::string ServerProgram() {
  const char* const other = std::getenv("IDEMPOTENCY_TEST_SERVER");
  return other != nullptr ? other : IDEMPOTENCY_SERVER_PROGRAM;
}

std::string LogEnd(const ServerProcess& process) {
  constexpr std::size_t kShown = 4000;
  const std::string log = process.Output();
  return log.size() > kShown ? log.substr(log.size() - kShown) : log;
}

}  // namespace

Replica::Replica(Options options, int port)
    : options_(std::move(options)),
      port_(port),
      channel_(Connect(TargetOf(port), options_.client.credentials)),
      stub_(v1::IdempotencyService::NewStub(channel_)),
      client_(std::make_unique<Client>(channel_, options_.client)) {}

absl::StatusOr<std::unique_ptr<Replica>> Replica::Start(Options options) {
  std::unique_ptr<Replica> replica(new Replica(std::move(options), FreePort()));
  const absl::Status status = replica->StartProcess();
  if (!status.ok()) return status;
  return replica;
}

absl::StatusOr<std::unique_ptr<Replica>> Replica::Start(
    const std::string& database) {
  Options options;
  options.database = database;
  return Start(std::move(options));
}

absl::Status Replica::StartProcess() {
  ServerProcess::Options process{.program = ServerProgram(),
                                 .arguments = {"--listen=" + target()},
                                 .environment = options_.environment,
                                 .output_file = {}};
  if (!options_.database.empty()) {
    process.arguments.push_back("--database=" + options_.database);
  }
  if (options_.migrate) process.arguments.push_back("--migrate");
  process.arguments.insert(process.arguments.end(), options_.flags.begin(),
                           options_.flags.end());
  absl::StatusOr<std::unique_ptr<ServerProcess>> started =
      ServerProcess::Start(std::move(process));
  if (!started.ok()) return started.status();
  process_ = *std::move(started);
  return options_.wait_until_serving ? WaitUntilServing() : absl::OkStatus();
}

absl::Status Replica::Restart() {
  process_.reset();
  return StartProcess();
}

absl::Status Replica::WaitUntilServing(milliseconds timeout) const {
  return WaitForHealth(true, timeout);
}

absl::Status Replica::WaitUntilNotServing(milliseconds timeout) const {
  return WaitForHealth(false, timeout);
}

absl::Status Replica::WaitForHealth(bool serving, milliseconds timeout) const {
  const auto stub = grpc::health::v1::Health::NewStub(channel_);
  const steady_clock::time_point end = steady_clock::now() + timeout;
  std::string last;
  while (steady_clock::now() < end) {
    if (!process_->running()) {
      return absl::FailedPreconditionError("the server has ended: " +
                                           LogEnd(*process_));
    }
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCheckTimeout);
    // A call that fails at once drives no connection forward; gRPC itself looks
    // after it every five seconds only.
    context.set_wait_for_ready(true);
    HealthCheckResponse response;
    const grpc::Status status = stub->Check(&context, {}, &response);
    if (status.ok() &&
        (response.status() == HealthCheckResponse::SERVING) == serving) {
      return absl::OkStatus();
    }
    last = status.ok()
               ? HealthCheckResponse::ServingStatus_Name(response.status())
               : status.error_message();
    std::this_thread::sleep_for(kCheckPause);
  }
  return absl::DeadlineExceededError("health stayed " + last + ": " +
                                     LogEnd(*process_));
}

std::string Replica::target() const { return TargetOf(port_); }

std::shared_ptr<grpc::Channel> Replica::NewChannel() const {
  return Connect(target(), options_.client.credentials);
}

std::vector<std::string> Replica::LogLines() const {
  std::istringstream log(Log());
  std::vector<std::string> lines;
  for (std::string line; std::getline(log, line);) {
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace idempotency
