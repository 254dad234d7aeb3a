// The service that middleware and sidecar are measured before: one handler,
// at /bare without and at /guarded behind the middleware.
#include <httplib.h>
#include <sys/socket.h>

#include <cstddef>
#include <iostream>
#include <limits>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/synchronization/mutex.h"
#include "client/http/httplib_adapter.h"
#include "client/http/middleware.h"
#include "client/run_once.h"
#include "tests/benchmark/workload.h"

ABSL_FLAG(std::string, coordinator, "127.0.0.1:50051",
          "Whom the middleware asks.");

namespace idempotency::benchmark {
namespace {

// A connection has a thread for as long as it lasts: those of 64 callers, and
// of the run before them where they are not seen to be gone yet.
constexpr std::size_t kThreads = 160;
// cpp-httplib's own is 5, which the sidecar's connections, one for each
// request, overflow: those are tried again a second later, or lost.
constexpr int kBacklog = 1024;

int Serve() {
  const auto once = RunOnce::Connect(absl::GetFlag(FLAGS_coordinator));
  HttpMiddleware middleware(*once);
  HttplibGuard guard(middleware);
  httplib::Server server;
  server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  server.set_keep_alive_max_count(std::numeric_limits<std::size_t>::max());
  // Else a body waits until the head before it is acknowledged.
  server.set_tcp_nodelay(true);
  socket_t listener = INVALID_SOCKET;
  server.set_socket_options([&](socket_t socket) {
    httplib::default_socket_options(socket);
    listener = socket;
  });

  const httplib::Server::Handler pay = [answer = RecordedResponse()](
                                           const httplib::Request&,
                                           httplib::Response& response) {
    response.status = answer.status_code();
    for (const v1::Header& header : answer.headers()) {
      response.set_header(header.name(), header.value());
    }
    response.body = answer.body();
  };
  server.Post("/bare", pay);
  server.Post(
      "/guarded",
      guard.Wrap({.scope = "benchmark/middleware", .required = true}, pay));
  const int port = server.bind_to_any_port("127.0.0.1");
  if (port < 0 || listen(listener, kBacklog) != 0) {
    std::cerr << "http_service: cannot listen" << std::endl;
    return 1;
  }
  std::cout << "127.0.0.1:" << port << std::endl;
  return server.listen_after_bind() ? 0 : 1;
}

}  // namespace
}  // namespace idempotency::benchmark

int main(int argc, char** argv) {
  // Abseil as distributed looks for lock cycles through one global spin lock.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  absl::SetProgramUsageMessage(
      "Answers every POST to /bare, and each once for its key to /guarded. "
      "Prints the address that it listens on.");
  absl::ParseCommandLine(argc, argv);
  return idempotency::benchmark::Serve();
}
