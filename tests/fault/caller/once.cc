#include "tests/fault/caller/once.h"

#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/async_client.h"

namespace idempotency::fault {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFinishTimeout{1500};

class Operation {
 public:
  Operation(Self& self, const Key& key)
      : self_(self), claim_(self.NewClaim(key, "once")) {}

  void Run() {
    idempotency::Operation operation{.scope = claim_.scope(),
                                     .key = claim_.key(),
                                     .request_hash = claim_.request_hash(),
                                     .policy = claim_.policy(),
                                     .owner = claim_.owner()};
    operation.lease = self_.Between(200, 900);
    operation.renew = self_.Chance(80);
    operation.max_run_time = self_.Between(500, 3000);
    operation.wait = milliseconds(0);
    if (claim_.has_wait()) operation.wait = self_.Between(50, 1500);
    operation.claim_timeout = self_.Between(400, 1500);
    operation.finalize_timeout = self_.Between(300, 1000);
    auto& onces = self_.world().onces;
    RunOnce& once = *onces[static_cast<std::size_t>(
        self_.Below(static_cast<int>(onces.size())))];
    const auto function = [this](Execution& execution) {
      return Execute(execution);
    };
    const auto resolve = [this](Execution& execution) {
      return Resolve(execution);
    };
    const RunResult result = self_.Chance(40)
                                 ? once.Run(operation, function)
                                 : once.Run(operation, function, resolve);
    if (result.outcome == RunOutcome::kReplayed) {
      self_.SawFinal(claim_.key());
    }
  }

 private:
  absl::StatusOr<WalletAnswer> Ask(const Execution& execution,
                                   WalletVerb verb) {
    // Its claim token is RunOnce's own affair.
    return self_.AskWallet({.verb = verb,
                            .scope = claim_.scope(),
                            .key = claim_.key(),
                            .downstream = execution.downstream_key(),
                            .fencing = execution.fencing_token()});
  }

  FunctionResult Execute(Execution& execution) {
    if (self_.Chance(30)) {
      execution.SaveCheckpoint(absl::StrCat("at ", self_.Below(100)))
          .IgnoreError();
    }
    if (self_.Chance(50)) self_.SleepFor(self_.Between(10, 1200));
    if (execution.abandoned() == nullptr && self_.Chance(8)) {
      return NothingHappened{absl::FailedPreconditionError("declined")};
    }
    if (!execution.permitted() && self_.Chance(60)) {
      return OutcomeUnknown{absl::AbortedError("the claim is lost")};
    }
    const auto answer = Ask(execution, WalletVerb::kCharge);
    if (!answer.ok()) return OutcomeUnknown{answer.status()};
    if (*answer == WalletAnswer::kRefused) {
      return OutcomeUnknown{absl::AbortedError("refused for good")};
    }
    if (self_.Chance(20)) self_.SleepFor(self_.Between(10, 800));
    if (self_.Chance(4)) throw std::runtime_error("no more");
    if (self_.Chance(6)) return Respond(500, "broken");
    return Executed{ResponseTo(execution.downstream_key(), claim_.owner())};
  }

  Resolution Resolve(Execution& execution) {
    const auto found = Ask(execution, WalletVerb::kFind);
    if (!found.ok()) return StillUnknown{found.status()};
    switch (*found) {
      case WalletAnswer::kExecuted:
      case WalletAnswer::kDuplicate:
        return WasExecuted{ResponseTo(execution.downstream_key(), "")};
      case WalletAnswer::kAbsent:
        return NeverExecuted{};
      case WalletAnswer::kRefused:
        break;
    }
    return StillUnknown{absl::AbortedError("refused for good")};
  }

  Self& self_;
  const v1::ClaimRequest claim_;
};

}  // namespace

std::vector<std::unique_ptr<RunOnce>> MakeOnces(
    Recorder& recorder, const std::vector<std::string>& servers) {
  std::vector<std::unique_ptr<RunOnce>> onces;
  for (const BulkUse bulk : {BulkUse::kNever, BulkUse::kAlways}) {
    grpc::ChannelArguments arguments;
    arguments.SetLoadBalancingPolicyName("round_robin");
    RunOnceOptions options;
    options.client.bulk = bulk;
    options.finish_timeout = kFinishTimeout;
    onces.push_back(std::make_unique<RunOnce>(
        std::make_shared<AsyncClient>(
            recorder.Connect(TargetOf(servers), arguments), options.client),
        options));
  }
  return onces;
}

void RunOneOnce(Self& self, const Key& key) { Operation(self, key).Run(); }

}  // namespace idempotency::fault
