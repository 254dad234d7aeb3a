#include "tests/fault/caller/once.h"

#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/async_client.h"

namespace idempotency::fault {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFinishTimeout{1500};

absl::StatusOr<WalletAnswer> Ask(Self& self, const v1::ClaimRequest& claim,
                                 const Execution& execution, WalletVerb verb) {
  // The claim token is RunOnce's own affair.
  return self.AskWallet({.verb = verb,
                         .scope = claim.scope(),
                         .key = claim.key(),
                         .downstream = execution.downstream_key(),
                         .fencing = execution.fencing_token()});
}

Operation OperationOf(Self& self, const v1::ClaimRequest& claim) {
  Operation operation{.scope = claim.scope(),
                      .key = claim.key(),
                      .request_hash = claim.request_hash(),
                      .policy = claim.policy(),
                      .owner = claim.owner()};
  operation.lease = self.Between(200, 900);
  operation.renew = self.Chance(80);
  operation.max_run_time = self.Between(500, 3000);
  operation.wait = milliseconds(0);
  if (claim.has_wait()) operation.wait = self.Between(50, 1500);
  operation.claim_timeout = self.Between(400, 1500);
  operation.finalize_timeout = self.Between(300, 1000);
  return operation;
}

}  // namespace

FunctionResult Execute(Self& self, const v1::ClaimRequest& claim,
                       Execution& execution) {
  if (self.Chance(30)) {
    execution.SaveCheckpoint(absl::StrCat("at ", self.Below(100)))
        .IgnoreError();
  }
  if (self.Chance(50)) self.SleepFor(self.Between(10, 1200));
  if (execution.abandoned() == nullptr && self.Chance(8)) {
    return NothingHappened{absl::FailedPreconditionError("declined")};
  }
  if (!execution.permitted() && self.Chance(60)) {
    return OutcomeUnknown{absl::AbortedError("the claim is lost")};
  }
  const auto answer = Ask(self, claim, execution, WalletVerb::kCharge);
  if (!answer.ok()) return OutcomeUnknown{answer.status()};
  if (*answer == WalletAnswer::kRefused) {
    return OutcomeUnknown{absl::AbortedError("refused for good")};
  }
  if (self.Chance(20)) self.SleepFor(self.Between(10, 800));
  if (self.Chance(4)) throw std::runtime_error("no more");
  if (self.Chance(6)) return Respond(500, "broken");
  return Executed{ResponseTo(execution.downstream_key(), claim.owner())};
}

Resolution Resolve(Self& self, const v1::ClaimRequest& claim,
                   Execution& execution) {
  const auto found = Ask(self, claim, execution, WalletVerb::kFind);
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

void RunOneOnce(Self& self, const Key& key) {
  const v1::ClaimRequest claim = self.NewClaim(key, "once");
  const auto function = [&](Execution& execution) {
    return Execute(self, claim, execution);
  };
  const auto resolve = [&](Execution& execution) {
    return Resolve(self, claim, execution);
  };
  auto& onces = self.world().onces;
  RunOnce& once = *onces[static_cast<std::size_t>(
      self.Below(static_cast<int>(onces.size())))];
  const Operation operation = OperationOf(self, claim);
  const RunResult result = self.Chance(40)
                               ? once.Run(operation, function)
                               : once.Run(operation, function, resolve);
  if (result.outcome == RunOutcome::kReplayed) self.SawFinal(key.name);
}

}  // namespace idempotency::fault
