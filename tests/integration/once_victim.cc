// A payment that is executed once, by a process that kills itself at one of its
// steps, or gets to the end and says which they were and what it was answered.
//
//   once_victim TARGET KEY LEDGER SCENARIO STEP
//
// STEP is "charge made#1", the first step of that name, or empty.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/run_once.h"
#include "tests/integration/fault_calls.h"
#include "tests/integration/stepped_coordinator.h"
#include "tests/integration/wallet_ledger.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kLease{300};
constexpr seconds kPatience{20};

// What the process has done so far. Thread-safe.
class Steps {
 public:
  // `last`: which step kills the process.
  explicit Steps(std::string last) : last_(std::move(last)) {}

  void Take(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    taken_.push_back(absl::StrCat(name, "#", ++counts_[name]));
    if (taken_.back() == last_) Die();
    changed_.notify_all();
  }

  void WaitForARenewal() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, kPatience, [this] {
      return counts_["renewal's answer handled"] > 0;
    });
  }

  void Print() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const std::string& step : taken_) std::puts(("step: " + step).c_str());
  }

 private:
  [[noreturn]] void Die() {
    const std::string line = absl::StrCat("died: ", last_, "\n");
    if (write(STDOUT_FILENO, line.data(), line.size()) < 0) _exit(3);
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }

  const std::string last_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, int> counts_;
  std::vector<std::string> taken_;
};

class Payment {
 public:
  Payment(const std::string& target, std::string key, std::string ledger,
          Steps& steps)
      : key_(std::move(key)),
        ledger_(std::move(ledger)),
        steps_(steps),
        once_(std::make_shared<SteppedCoordinator>(
            AsyncClient::Connect(target),
            [&steps](const std::string& name) { steps.Take(name); })) {}

  RunResult Run(const std::string& scenario) {
    if (scenario == "pay") return RunOnceWith(&Payment::Pay);
    if (scenario == "decline") return RunOnceWith(&Payment::Decline);
    if (scenario == "unsure") return RunOnceWith(&Payment::BeUnsure);
    if (scenario == "late") return RunOnceWith(&Payment::BeLate, false);
    return {.status = absl::InvalidArgumentError("no such scenario")};
  }

 private:
  using Function = FunctionResult (Payment::*)(Execution&);

  RunResult RunOnceWith(Function function, bool renew = true) {
    const v1::ClaimRequest claim = ClaimOf(key_);
    const Operation operation{.scope = claim.scope(),
                              .key = claim.key(),
                              .request_hash = claim.request_hash(),
                              .policy = "payment",
                              .lease = kLease,
                              .renew = renew};
    return once_.Run(
        operation,
        [this, function](Execution& execution) {
          steps_.Take("function begins");
          FunctionResult result = (this->*function)(execution);
          steps_.Take("function ends");
          return result;
        },
        [this](Execution& execution) {
          steps_.Take("resolver begins");
          Resolution resolution = Resolve(execution);
          steps_.Take("resolver ends");
          return resolution;
        });
  }

  static v1::Response ResponseTo(const WalletLedger::Charge& charge) {
    return ResponseOf(201, "charged " + charge.id);
  }

  WalletLedger::Charge Charge(const Execution& execution) {
    steps_.Take("charge to be made");
    WalletLedger::Charge charge =
        ledger_.Make(execution.downstream_key(), key_);
    steps_.Take("charge made");
    return charge;
  }

  FunctionResult Pay(Execution& execution) {
    execution.SaveCheckpoint("about to charge").IgnoreError();
    const WalletLedger::Charge charge = Charge(execution);
    steps_.WaitForARenewal();
    return Executed{ResponseTo(charge)};
  }

  FunctionResult Decline(Execution&) {
    return NothingHappened{absl::FailedPreconditionError("no money")};
  }

  FunctionResult BeUnsure(Execution& execution) {
    Charge(execution);
    return OutcomeUnknown{absl::UnavailableError("the line went dead")};
  }

  // Another attempt of this process finds the charge and records it, after the
  // lease of this one.
  FunctionResult BeLate(Execution& execution) {
    Charge(execution);
    RunOnceWith(&Payment::Pay);
    return Executed{ResponseOf(201, "the late one's")};
  }

  Resolution Resolve(const Execution& execution) {
    const auto charge = ledger_.Find(execution.downstream_key());
    if (!charge.has_value()) return NeverExecuted{};
    return WasExecuted{ResponseTo(*charge)};
  }

  const std::string key_;
  WalletLedger ledger_;
  Steps& steps_;
  RunOnce once_;
};

int Run(const std::string& target, const std::string& key,
        const std::string& ledger, const std::string& scenario,
        const std::string& death) {
  Steps steps(death);
  RunResult result;
  {
    Payment payment(target, key, ledger, steps);
    result = payment.Run(scenario);
    steps.Take("answer there");
  }
  // All of them, since the end of a payment waits for its calls.
  steps.Print();
  std::printf(
      "answer: %s %s %s %s\n", std::string(NameOf(result.outcome)).c_str(),
      result.recorded ? "recorded" : "unrecorded",
      result.has_response()
          ? absl::WebSafeBase64Escape(result.response.SerializeAsString())
                .c_str()
          : "-",
      result.status.ToString().c_str());
  return 0;
}

}  // namespace
}  // namespace idempotency

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  return idempotency::Run(argv[1], argv[2], argv[3], argv[4], argv[5]);
}
