// The owner of a claim as a process of its own, which the test stops and
// wakes: claims, says so, and finalizes when it gets SIGUSR1.
//
//   paused_owner TARGET KEY POLICY LEASE_MS STATUS

#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "client/client.h"
#include "tests/integration/fault_calls.h"

namespace idempotency {
namespace {

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

int Run(const std::string& target, const std::string& key,
        const std::string& policy, int lease_ms, int status) {
  sigset_t go_on;
  sigemptyset(&go_on);
  sigaddset(&go_on, SIGUSR1);
  sigprocmask(SIG_BLOCK, &go_on, nullptr);

  const auto client = Client::Connect(target);
  v1::ClaimRequest claim =
      ClaimFor(std::chrono::milliseconds(lease_ms), key, policy);
  claim.set_owner("paused");
  claim.set_checkpoint("the card was asked");
  Say("claim: " + Decided(client->Claim(claim)) + " " + claim.claim_token());

  int signal_number = 0;
  sigwait(&go_on, &signal_number);
  Say("finalize: " +
      Decided(client->Finalize(FinalizeOf(claim, status, "the owner's"))));
  return 0;
}

}  // namespace
}  // namespace idempotency

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  return idempotency::Run(argv[1], argv[2], argv[3], std::atoi(argv[4]),
                          std::atoi(argv[5]));
}
