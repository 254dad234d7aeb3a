#ifndef IDEMPOTENCY_TESTS_SUPPORT_REPLICA_H_
#define IDEMPOTENCY_TESTS_SUPPORT_REPLICA_H_

#include <grpcpp/channel.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "idempotency/v1/idempotency.grpc.pb.h"
#include "tests/support/server_process.h"

namespace idempotency {

// One replica: the built server, or the program that the environment names in
// IDEMPOTENCY_TEST_SERVER, as a process of its own, on a loopback port, with a
// channel to it. It is killed when this object is destroyed and when
// the test dies.
//
// Thread-safe but for Restart, beside which nothing else may run.
class Replica {
 public:
  struct Options {
    // A libpq URI. Empty: the server's private cluster; then give --data_dir.
    std::string database;
    bool migrate = true;
    // Flags beside --listen, --database and --migrate, such as "--lanes=2".
    std::vector<std::string> flags;
    // NAME=value, over the test's own environment.
    std::vector<std::string> environment;
    // Start returns once it serves, and not as soon as it runs.
    bool wait_until_serving = true;
    // Of client(); its credentials are those of every channel.
    ClientOptions client;
  };

  // An error carries the end of what the server has logged.
  static absl::StatusOr<std::unique_ptr<Replica>> Start(Options options);
  static absl::StatusOr<std::unique_ptr<Replica>> Start(
      const std::string& database);

  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  // Waits until grpc.health.v1 says so for the whole server. An error once the
  // process has ended, and after `timeout`.
  absl::Status WaitUntilServing(
      std::chrono::milliseconds timeout = std::chrono::seconds(60)) const;
  absl::Status WaitUntilNotServing(
      std::chrono::milliseconds timeout = std::chrono::seconds(60)) const;

  // It keeps its port, also over Restart.
  int port() const { return port_; }
  std::string target() const;  // 127.0.0.1:port
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  // Without retries of any kind: each call is sent once.
  v1::IdempotencyService::Stub& stub() const { return *stub_; }
  Client& client() const { return *client_; }
  // A further connection of its own to this replica, without gRPC's retries.
  std::shared_ptr<grpc::Channel> NewChannel() const;

  void Terminate() { process_->Terminate(); }  // SIGTERM: drains
  void Kill() { process_->Kill(); }            // SIGKILL
  void Stop() { process_->Pause(); }           // SIGSTOP
  void Continue() { process_->Resume(); }      // SIGCONT
  absl::StatusOr<ServerProcess::Exit> WaitForExit(
      std::chrono::milliseconds timeout = std::chrono::seconds(60)) const {
    return process_->WaitForExit(timeout);
  }
  bool running() const { return process_->running(); }

  // Kills the process if it still runs, starts a new one with the same options
  // at the same port, and waits as Start does. The log begins anew.
  absl::Status Restart();

  // What it has written so far, to standard output and error; and by line.
  std::string Log() const { return process_->Output(); }
  std::vector<std::string> LogLines() const;
  absl::StatusOr<std::string> WaitForLogLine(
      const std::string& text,
      std::chrono::milliseconds timeout = std::chrono::seconds(60)) const {
    return process_->WaitForLine(text, timeout);
  }
  ServerProcess& process() const { return *process_; }

 private:
  Replica(Options options, int port);

  absl::Status StartProcess();
  absl::Status WaitForHealth(bool serving,
                             std::chrono::milliseconds timeout) const;

  const Options options_;
  const int port_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::IdempotencyService::Stub> stub_;
  const std::unique_ptr<Client> client_;
  std::unique_ptr<ServerProcess> process_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SUPPORT_REPLICA_H_
