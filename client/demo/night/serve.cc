#include "client/demo/night/serve.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace idempotency::night {
namespace {

sigset_t EndSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

// Whole or not at all: who sees the file may read it.
bool WriteFile(const std::string& file, const std::string& text) {
  const std::string draft = file + ".draft";
  std::ofstream stream(draft);
  stream << text << std::endl;
  return stream.good() && std::rename(draft.c_str(), file.c_str()) == 0;
}

}  // namespace

void BlockEndSignals() {
  const sigset_t signals = EndSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

absl::Status Serve(grpc::Service& service, const std::string& address_file,
                   const Timeline& timeline) {
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return absl::UnavailableError("no port to listen on");

  const std::string address = absl::StrCat("127.0.0.1:", port);
  timeline.Say(absl::StrCat("is up at ", address, ", process ", getpid()));
  if (!WriteFile(address_file, address)) {
    return absl::UnavailableError(absl::StrCat("cannot write ", address_file));
  }
  const sigset_t signals = EndSignals();
  int signal = 0;
  sigwait(&signals, &signal);
  server->Shutdown(std::chrono::system_clock::now());
  return absl::OkStatus();
}

}  // namespace idempotency::night
