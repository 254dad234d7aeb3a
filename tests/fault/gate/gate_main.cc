// fault-gate --target=PORT [--behind=postgres|grpc]
//
// A network in front of a server on 127.0.0.1 that can go bad. Prints
// `port N`, where clients connect, then answers each line of its standard input
// (gate_commands.h) with a line. Ends, and resets all connections, with the end
// of its input.
#include <cstdio>
#include <iostream>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "tests/fault/gate/gate_commands.h"
#include "tests/support/tcp_gate.h"

ABSL_FLAG(int, target, 0, "port of the server");
ABSL_FLAG(std::string, behind, "postgres",
          "what the server speaks, postgres or grpc: for the end of an answer");

namespace idempotency::fault {
namespace {

int Run() {
  const std::string named = absl::GetFlag(FLAGS_behind);
  if (named != "postgres" && named != "grpc") {
    std::cerr << "--behind is postgres or grpc\n";
    return 2;
  }
  const Behind behind = named == "grpc" ? Behind::kGrpc : Behind::kPostgres;
  const auto gate = TcpGate::Make(absl::GetFlag(FLAGS_target));
  if (!gate.ok()) {
    std::cerr << gate.status() << "\n";
    return 2;
  }
  std::cout << "port " << (*gate)->port() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << RunGateCommand(**gate, behind, line) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace idempotency::fault

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("A bad network in front of a server.");
  absl::ParseCommandLine(argc, argv);
  return idempotency::fault::Run();
}
