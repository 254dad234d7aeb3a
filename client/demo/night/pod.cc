#include "client/demo/night/pod.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/demo/night/story.h"
#include "client/request_hash.h"

namespace idempotency::night {
namespace {

// What the payment is answered with, whoever found out about the charge.
v1::Response ResponseOf(const PayRequest& request, const LedgerEntry& entry) {
  return MakeResponse(201, absl::StrCat("{\"order\":\"", request.order(),
                                        "\",\"paid\":", entry.amount(),
                                        ",\"payment\":\"", entry.id(), "\"}"));
}

std::string HashOf(const PayRequest& request) {
  return RequestHash(
      {.method = "POST",
       .target = "/payments",
       .content_type = "",
       .body = absl::StrCat(request.order(), " ", request.amount())});
}

PayResponse ToApp(const v1::Response& response) {
  PayResponse answer;
  answer.set_status_code(response.status_code());
  answer.set_body(response.body());
  return answer;
}

PayResponse Problem(int status_code, const std::string& what) {
  PayResponse answer;
  answer.set_status_code(status_code);
  answer.set_body(what);
  return answer;
}

// What the caller is told where there is no response.
PayResponse ProblemOf(const RunResult& result) {
  switch (result.outcome) {
    case RunOutcome::kInProgress: {
      PayResponse answer = Problem(409, "in progress, come back");
      answer.set_retry_after_ms(
          std::chrono::ceil<milliseconds>(result.retry_after).count());
      return answer;
    }
    case RunOutcome::kMismatch:
      return Problem(422, "this key belongs to another payment");
    case RunOutcome::kInDoubt:
    case RunOutcome::kConflict:
      return Problem(409, "it is not known what became of the payment");
    case RunOutcome::kUnknown:
      return Problem(504, "the wallet did not answer");
    default:
      return Problem(503, result.status.ToString());
  }
}

}  // namespace

PodService::PodService(const Options& options, const Timeline& timeline)
    : options_(options),
      timeline_(timeline),
      wallet_(options.wallet, kWalletTimeout),
      once_(options.coordinator.empty()
                ? nullptr
                : RunOnce::Connect(options.coordinator)) {}

grpc::Status PodService::Pay(grpc::ServerContext* /*context*/,
                             const PayRequest* request, PayResponse* response) {
  *response = once_ == nullptr ? Charge(*request) : ChargeOnce(*request);
  return grpc::Status::OK;
}

PayResponse PodService::Charge(const PayRequest& request) {
  const auto entry = CallWallet(request, "");
  if (!entry.ok()) return Problem(504, "the wallet did not answer");
  return ToApp(ResponseOf(request, *entry));
}

PayResponse PodService::ChargeOnce(const PayRequest& request) {
  const RunResult result = once_->Run(
      {.scope = "payments",
       .key = request.idempotency_key(),
       .request_hash = HashOf(request),
       .policy = "payment",
       .owner = options_.name,
       .lease = kLease,
       .wait = milliseconds(0)},
      [&](Execution& execution) { return Execute(request, execution); },
      [&](Execution& execution) { return AskWallet(request, execution); });
  timeline_.Say(
      absl::StrCat("RunOnce says: ", std::string(NameOf(result.outcome))));
  if (!result.has_response()) return ProblemOf(result);
  PayResponse answer = ToApp(result.response);
  answer.set_replayed(result.outcome == RunOutcome::kReplayed);
  return answer;
}

FunctionResult PodService::Execute(const PayRequest& request,
                                   Execution& execution) {
  if (!execution.permitted()) {
    return NothingHappened{absl::AbortedError("the claim is lost")};
  }
  timeline_.Say(
      absl::StrCat("is granted the claim, attempt ", execution.attempt()));
  const auto entry = CallWallet(request, execution.downstream_key());
  if (!entry.ok()) return OutcomeUnknown{entry.status()};
  return Executed{ResponseOf(request, *entry)};
}

Resolution PodService::AskWallet(const PayRequest& request,
                                 Execution& execution) {
  timeline_.Say(absl::StrCat("takes over what ", execution.abandoned()->owner(),
                             " abandoned, and asks the wallet about it"));
  const auto found = wallet_.Find(execution.downstream_key());
  if (!found.ok()) return StillUnknown{found.status()};
  // Should a charge with this key still be on its way: ours has the same key,
  // and only one of them will count.
  if (!*found) return NeverExecuted{};
  return WasExecuted{ResponseOf(request, **found)};
}

absl::StatusOr<LedgerEntry> PodService::CallWallet(
    const PayRequest& request, const std::string& idempotency_key) {
  timeline_.Say(absl::StrCat("asks the wallet to charge ", request.amount()));
  auto entry = wallet_.Charge(request.amount(), idempotency_key);
  if (!entry.ok()) {
    timeline_.Say(absl::StrCat("has no answer from the wallet: ",
                               entry.status().message()));
  }
  return entry;
}

}  // namespace idempotency::night
