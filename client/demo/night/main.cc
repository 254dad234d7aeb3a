// idempotency-night: the processes of one night in a payment service, played by
// client/demo/night.sh. See kUsage.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/demo/night/app.h"
#include "client/demo/night/ledger.h"
#include "client/demo/night/pod.h"
#include "client/demo/night/serve.h"
#include "client/demo/night/story.h"
#include "client/demo/night/wallet.h"

ABSL_FLAG(std::int64_t, began_ms, 0,
          "When the run began, in milliseconds since 1970; 0: now.");
ABSL_FLAG(std::string, address_file, "",
          "wallet, pod: gets HOST:PORT once it serves.");
ABSL_FLAG(std::string, ledger, "", "wallet: the file of its charges.");
ABSL_FLAG(
    int, unanswered, 0,
    "wallet: so many charges, the first ones, are made and not answered.");
ABSL_FLAG(int, answer_after_ms, 0,
          "wallet: between a charge and its answer, in milliseconds.");
ABSL_FLAG(bool, forgetful, false,
          "wallet: takes no notice of idempotency keys and finds nothing.");
ABSL_FLAG(std::string, name, "pod", "pod: its name.");
ABSL_FLAG(std::string, wallet, "", "pod: HOST:PORT of the wallet.");
ABSL_FLAG(std::string, coordinator, "none",
          "pod: HOST:PORT of the coordinator; none: each call charges.");
ABSL_FLAG(std::vector<std::string>, pods, {},
          "app: NAME=HOST:PORT of each pod, separated by commas.");
ABSL_FLAG(std::string, key, "", "app: the payment's idempotency key.");
ABSL_FLAG(std::string, order, "1842", "app: what is paid for.");
ABSL_FLAG(std::int64_t, amount, 200, "app: how much.");
ABSL_FLAG(int, tries, idempotency::night::kAppTries,
          "app: how often it tries at most.");
ABSL_FLAG(std::string, answers, "", "app: gets a line for each try.");

namespace idempotency::night {
namespace {

constexpr char kUsage[] =
    "The processes of one night in a payment service.\n"
    "  idempotency-night wallet   the payment channel, with a ledger\n"
    "  idempotency-night pod      the payment service\n"
    "  idempotency-night app      pays, and tries again\n"
    "All listen at 127.0.0.1 only. client/demo/night.sh plays them.";

constexpr int kBadUsage = 2;

int Exit(const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "idempotency-night: %s\n", status.ToString().c_str());
  return 1;
}

int RunWallet(const Timeline& timeline) {
  auto ledger = Ledger::Open(absl::GetFlag(FLAGS_ledger));
  if (!ledger.ok()) return Exit(ledger.status());
  WalletService wallet(
      *std::move(ledger),
      {.unanswered = absl::GetFlag(FLAGS_unanswered),
       .answer_after = milliseconds(absl::GetFlag(FLAGS_answer_after_ms)),
       .forgetful = absl::GetFlag(FLAGS_forgetful)},
      timeline);
  return Exit(Serve(wallet, absl::GetFlag(FLAGS_address_file), timeline));
}

int RunPod(const Timeline& timeline) {
  std::string coordinator = absl::GetFlag(FLAGS_coordinator);
  if (coordinator == "none") coordinator.clear();
  PodService pod({.name = absl::GetFlag(FLAGS_name),
                  .wallet = absl::GetFlag(FLAGS_wallet),
                  .coordinator = std::move(coordinator)},
                 timeline);
  return Exit(Serve(pod, absl::GetFlag(FLAGS_address_file), timeline));
}

int RunApp(const Timeline& timeline) {
  const AppOptions options = {.pods = absl::GetFlag(FLAGS_pods),
                              .key = absl::GetFlag(FLAGS_key),
                              .order = absl::GetFlag(FLAGS_order),
                              .amount = absl::GetFlag(FLAGS_amount),
                              .tries = absl::GetFlag(FLAGS_tries),
                              .answers_file = absl::GetFlag(FLAGS_answers)};
  if (options.pods.empty()) {
    return Exit(absl::InvalidArgumentError("--pods names none"));
  }
  return PayPatiently(options, timeline) ? 0 : 1;
}

int Run(int argc, char** argv) {
  absl::SetProgramUsageMessage(kUsage);
  const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
  const std::string role = words.size() == 2 ? words[1] : "";
  const std::int64_t began_ms = absl::GetFlag(FLAGS_began_ms);
  const Timeline timeline(
      role == "pod" ? absl::GetFlag(FLAGS_name) : role,
      began_ms == 0 ? absl::Now() : absl::FromUnixMillis(began_ms));
  if (role == "app") return RunApp(timeline);
  if (role == "wallet" || role == "pod") {
    BlockEndSignals();
    return role == "pod" ? RunPod(timeline) : RunWallet(timeline);
  }
  std::fprintf(stderr, "%s\n", kUsage);
  return kBadUsage;
}

}  // namespace
}  // namespace idempotency::night

int main(int argc, char** argv) { return idempotency::night::Run(argc, argv); }
