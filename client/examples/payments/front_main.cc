// idempotency-payments-front: starts the pods of the payments example and
// stands before them. See front.h.

#include <httplib.h>
#include <signal.h>
#include <sys/socket.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/examples/payments/front.h"
#include "client/examples/payments/pods.h"

ABSL_FLAG(int, port, 8080, "Port of 127.0.0.1 to listen on.");
ABSL_FLAG(std::vector<std::string>, pod_ports, {},
          "Ports for the pods, one each, separated by commas.");
ABSL_FLAG(std::string, program, "", "idempotency-payments, for the pods.");
ABSL_FLAG(std::string, page, "", "Folder of the page.");
ABSL_FLAG(std::string, coordinator, "127.0.0.1:50051",
          "HOST:PORT of the coordinator.");
ABSL_FLAG(std::string, channel, "", "HOST:PORT of the wallet.");

namespace idempotency::payments {
namespace {

// pod-a, pod-b and so on.
std::vector<Pod> PodsOfFlags() {
  std::vector<Pod> pods;
  for (const std::string& port : absl::GetFlag(FLAGS_pod_ports)) {
    Pod pod;
    pod.name = absl::StrCat(
        "pod-", std::string(1, static_cast<char>('a' + pods.size())));
    if (!absl::SimpleAtoi(port, &pod.port)) return {};
    pod.command = {
        absl::GetFlag(FLAGS_program), absl::StrCat("--name=", pod.name),
        absl::StrCat("--port=", port),
        absl::StrCat("--coordinator=", absl::GetFlag(FLAGS_coordinator)),
        absl::StrCat("--channel=", absl::GetFlag(FLAGS_channel))};
    pods.push_back(pod);
  }
  return pods;
}

int Fail(const std::string& why) {
  std::fprintf(stderr, "idempotency-payments-front: %s\n", why.c_str());
  return 1;
}

int Run() {
  sigset_t end_signals;
  sigemptyset(&end_signals);
  sigaddset(&end_signals, SIGINT);
  sigaddset(&end_signals, SIGTERM);
  sigset_t blocked = end_signals;
  sigaddset(&blocked, SIGCHLD);
  // Before any thread is made.
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);

  Pods pods(PodsOfFlags());
  if (pods.pods().empty()) return Fail("--pod_ports has no ports");
  Front front({.coordinator = absl::GetFlag(FLAGS_coordinator),
               .channel = absl::GetFlag(FLAGS_channel),
               .page = absl::GetFlag(FLAGS_page)},
              pods);
  httplib::Server server;
  // In place of httplib's own option, with which two programs can have the
  // same port and get each other's requests.
  server.set_socket_options([](int socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  if (!front.AddTo(server)) return Fail("--page is no folder");
  const int port = absl::GetFlag(FLAGS_port);
  if (!server.bind_to_port("127.0.0.1", port)) {
    return Fail(absl::StrCat("cannot listen on 127.0.0.1:", port));
  }
  // A browser's idle connections hold threads, and the end up.
  server.set_keep_alive_timeout(1);
  std::thread serving([&] { server.listen_after_bind(); });
  // A stop() that comes before has no effect.
  while (!server.is_running()) std::this_thread::yield();
  pods.Supervise(end_signals);
  server.stop();
  serving.join();
  return 0;
}

}  // namespace
}  // namespace idempotency::payments

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "The front door of the payments example: starts its pods, balances the "
      "load over them, shows the page.");
  absl::ParseCommandLine(argc, argv);
  return idempotency::payments::Run();
}
