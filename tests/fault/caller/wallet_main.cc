// fault-wallet --ledger=FILE --socket=PATH [--seed=N]
//
// Prints `ready` once it can be asked; ends as stop_signal.h says.
#include <cstdio>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "tests/fault/caller/stop_signal.h"
#include "tests/fault/caller/wallet.h"

ABSL_FLAG(std::string, ledger, "", "where the effects are written down");
ABSL_FLAG(std::string, socket, "", "where callers ask, a unix socket");
ABSL_FLAG(std::uint64_t, seed, 1, "which answers are late or lost");

namespace idempotency::fault {
namespace {

int Run() {
  StopSignal stop;
  auto wallet = Wallet::Open(absl::GetFlag(FLAGS_ledger));
  if (!wallet.ok()) {
    std::fprintf(stderr, "%s\n", wallet.status().ToString().c_str());
    return 2;
  }
  const auto server =
      WalletServer::Start(**wallet, {.socket_path = absl::GetFlag(FLAGS_socket),
                                     .seed = absl::GetFlag(FLAGS_seed)});
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", server.status().ToString().c_str());
    return 2;
  }
  std::puts("ready");
  std::fflush(stdout);
  stop.Wait();
  return 0;
}

}  // namespace
}  // namespace idempotency::fault

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "A payment channel that charges once for each downstream key.");
  absl::ParseCommandLine(argc, argv);
  return idempotency::fault::Run();
}
