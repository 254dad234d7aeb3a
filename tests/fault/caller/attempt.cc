#include "tests/fault/caller/attempt.h"

#include <type_traits>

#include "absl/strings/str_cat.h"
#include "client/status.h"
#include "tests/integration/fault_calls.h"

namespace idempotency::fault {
namespace {

using std::chrono::milliseconds;

constexpr int kSendsMax = 4;
constexpr milliseconds kExpiryMax{6000};
// More than the servers of a fault run keep.
constexpr std::size_t kLongBodyBytes = 20'000;
constexpr int kManyHeaders = 65;
// Of a response by somebody who does not know whether anything was charged.
constexpr int kUncharged = 402;

template <typename Request>
milliseconds TimeoutOf(Self& self, const Request&) {
  return self.Timeout();
}
milliseconds TimeoutOf(Self& self, const v1::ClaimRequest& claim) {
  const bool has_time_to_wait = self.Chance(80);
  return self.Timeout() +
         (has_time_to_wait ? MillisecondsOf(claim.wait()) : milliseconds(0));
}

}  // namespace

Attempt::Attempt(Self& self, Key key)
    : self_(self),
      key_(std::move(key)),
      route_(&self.AnyRoute()),
      claim_(self.NewClaim(key_, route_->name())) {}

template <typename Request>
auto Attempt::Send(const Request& request) {
  for (int sends = 1;; ++sends) {
    self_.Pace();
    const bool on_its_way = sends == 1 && !Chance(15);
    Route& route = on_its_way ? *route_ : self_.AnyRoute();
    auto answer = route.Send(request, TimeoutOf(self_, request));
    const bool known = answer.ok() || !IsUnanswered(answer.status());
    if constexpr (std::is_same_v<Request, v1::ClaimRequest>) {
      if (!route.sends_once() || !known) claims_settled_ = false;
    }
    if (known || sends == kSendsMax || self_.stopped() || Chance(10)) {
      return answer;
    }
    self_.SleepFor(self_.Between(5, 120));
  }
}

absl::StatusOr<v1::ClaimResponse> Attempt::Claim() {
  auto answer = Send(claim_);
  if (answer.ok() && answer->has_in_doubt() && Chance(70)) {
    claim_.set_resolve_in_doubt(true);
    answer = Send(claim_);
  }
  if (answer.ok() && answer->has_claimed() && Chance(10)) {
    // As if the answer had been lost; perhaps with another lease.
    if (Chance(50))
      *claim_.mutable_lease() = DurationOf(self_.Between(100, 900));
    answer = Send(claim_);
  }
  return answer;
}

void Attempt::Run() {
  const bool repeats_late = Chance(8);
  if (repeats_late) claims_settled_ = false;
  const auto answer = Claim();
  if (repeats_late) self_.Remember(claim_);
  if (!answer.ok() || self_.stopped()) return;
  if (answer->has_claimed()) return Own(answer->claimed());
  if (answer->has_replay()) self_.SawFinal(key_.name);
  if (Chance(answer->has_replay() ? 6 : 20)) return MeddleAsAnother();
  if (Chance(15)) LookUp();
}

void Attempt::AskAboutNothing() {
  claim_.set_key(absl::StrCat("nothing-", claim_.claim_token()));
  LookUp();
  GiveUp(v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED);
  Send(FinalizeOf(claim_, kUncharged, "nothing")).status().IgnoreError();
  claim_.set_renew_fencing_token(1);
  Send(claim_).status().IgnoreError();
  claim_.clear_renew_fencing_token();
  claim_.set_policy("fault_unknown");
  Send(claim_).status().IgnoreError();
}

void Attempt::Own(const v1::Claimed& claimed) {
  claimed_ = claimed;
  lease_ = MillisecondsOf(claimed.lease());
  if (claimed.has_abandoned() && SettleAbandoned()) return;
  if (self_.stopped()) return;
  if (Chance(self_.world().mix.late)) return PayLate();
  const int plan = self_.Below(100);
  if (plan < 35) return Pay();
  if (plan < 51) return FailWithServerError();
  if (plan < 65) return GiveUp(v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED);
  if (plan < 74) return RefuseForGood();
  if (plan < 87) {
    if (!Charge()) return;
    return GiveUp(v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN);
  }
  Vanish();
}

bool Attempt::SettleAbandoned() {
  const auto found = AskWallet(
      claims_settled_ && Chance(30) ? WalletVerb::kRefuse : WalletVerb::kFind);
  if (!found.ok()) {
    GiveUp(v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN);
    return true;
  }
  switch (*found) {
    case WalletAnswer::kExecuted:
    case WalletAnswer::kDuplicate:
      Finalize(Result());
      return true;
    case WalletAnswer::kRefused:
      WasRefused();
      return true;
    case WalletAnswer::kAbsent:
      break;
  }
  return false;
}

void Attempt::Pay() {
  if (Chance(self_.world().mix.renewals) && !Renew()) return;
  if (!Charge()) return;
  if (Chance(15)) self_.SleepFor(Part(5, 60));
  if (Chance(self_.world().mix.renewals) && !Renew()) return;
  Finalize(Result());
}

void Attempt::PayLate() {
  if (Chance(15)) return PayAtExpiry();
  const bool before = Chance(50);
  if (before) self_.SleepFor(Part(90, 200));
  if (self_.stopped()) return;
  // Some look first whether they still own the key, and some do not.
  if (Chance(40) && !Renew()) return;
  if (!Charge()) return;
  if (!before) self_.SleepFor(Part(90, 200));
  if (self_.stopped()) return;
  Finalize(Result());
}

// Comes back when its record expires, and perhaps is there still.
void Attempt::PayAtExpiry() {
  const milliseconds left = UntilExpiry();
  // It never does, or too late.
  if (left > kExpiryMax) return Pay();
  if (!Charge()) return;
  self_.SleepFor(left + self_.Between(-20, 60));
  if (self_.stopped()) return;
  Finalize(Result());
}

void Attempt::FailWithServerError() {
  if (Chance(60) && !Charge()) return;
  v1::FinalizeRequest failed =
      FinalizeOf(claim_, Chance(50) ? 503 : 500, "no answer");
  Send(failed).status().IgnoreError();
  if (Chance(20)) Send(failed).status().IgnoreError();
  if (self_.stopped() || !Chance(35)) return;
  // The truth follows.
  self_.SleepFor(Part(1, 40));
  if (Charge()) Finalize(Result());
}

void Attempt::RefuseForGood() {
  const auto answer = AskWallet(WalletVerb::kRefuse);
  if (!answer.ok()) {
    return GiveUp(v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN);
  }
  if (*answer == WalletAnswer::kRefused) return WasRefused();
  Finalize(Result());
}

void Attempt::Vanish() {
  if (Chance(50)) AskWallet(WalletVerb::kCharge).status().IgnoreError();
}

bool Attempt::Renew() {
  v1::ClaimRequest renewal = claim_;
  renewal.clear_wait();
  renewal.set_renew_fencing_token(claimed_.fencing_token() +
                                  (Chance(3) ? 1 : 0));
  if (Chance(60)) {
    renewal.set_checkpoint(absl::StrCat("renewed by ", key_.name));
    renewal.set_checkpoint_number(self_.Below(3));
  }
  if (Chance(50))
    *renewal.mutable_lease() = DurationOf(self_.Between(200, 900));
  const bool settled = claims_settled_;
  const auto answer = Send(renewal);
  // A renewal acquires nothing, however late it comes.
  claims_settled_ = settled;
  if (Chance(5)) self_.Remember(renewal);
  return answer.ok() || IsUnanswered(answer.status()) || Chance(30);
}

bool Attempt::Charge() {
  const auto answer = AskWallet(WalletVerb::kCharge);
  if (!answer.ok()) {
    // It may have been charged: nobody is to think that it was not.
    if (Chance(80)) GiveUp(v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN);
    return false;
  }
  if (*answer != WalletAnswer::kRefused) return true;
  WasRefused();
  return false;
}

void Attempt::Finalize(v1::Response response) {
  // A claim of its own that came late may have begun the key anew, and there
  // nothing was charged.
  if (!claims_settled_ && UntilExpiry() <= milliseconds(0)) return;
  v1::FinalizeRequest finalize = FinalizeOf(claim_, 0, "");
  *finalize.mutable_response() = std::move(response);
  const auto answer = Send(finalize);
  if (self_.stopped()) return;
  if (!answer.ok()) return LookUp();
  if (Chance(12)) return InsistAfter(finalize);
  if (claims_settled_ && Chance(4)) self_.Remember(finalize);
}

void Attempt::InsistAfter(const v1::FinalizeRequest& finalized) {
  Send(finalized).status().IgnoreError();
  if (Chance(50)) {
    v1::FinalizeRequest other = finalized;
    other.mutable_response()->set_body("a second response");
    Send(other).status().IgnoreError();
  }
  if (Chance(30)) GiveUp(v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN);
  if (Chance(30)) Claim().status().IgnoreError();
}

void Attempt::GiveUp(Disposition disposition) {
  const v1::ReleaseRequest release = ReleaseOf(claim_, disposition);
  Send(release).status().IgnoreError();
  // A key that is freed once more by a late release, after a late claim: see
  // "What it does not promise" in the README.
  if (disposition == v1::ReleaseRequest::DISPOSITION_NEVER_EXECUTED) return;
  if (self_.stopped()) return;
  if (Chance(4)) self_.Remember(release);
  if (Chance(10)) Send(release).status().IgnoreError();
  // An attempt that has ended: its token must not get anywhere.
  if (Chance(10)) Send(claim_).status().IgnoreError();
  if (Chance(8)) {
    Send(FinalizeOf(claim_, kUncharged, "late")).status().IgnoreError();
  }
}

void Attempt::WasRefused() {
  GiveUp(claims_settled_ ? v1::ReleaseRequest::DISPOSITION_NEVER_EXECUTED
                         : v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN);
}

void Attempt::MeddleAsAnother() {
  if (Chance(50)) {
    Send(FinalizeOf(claim_, kUncharged, "not the owner's"))
        .status()
        .IgnoreError();
  } else {
    GiveUp(v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN);
  }
}

void Attempt::LookUp() { Send(LookupOf(claim_)).status().IgnoreError(); }

absl::StatusOr<WalletAnswer> Attempt::AskWallet(WalletVerb verb) {
  return self_.AskWallet({.verb = verb,
                          .scope = claim_.scope(),
                          .key = claim_.key(),
                          .downstream = claimed_.downstream_key(),
                          .token = claim_.claim_token(),
                          .fencing = claimed_.fencing_token()});
}

// Two attempts that find one charge may word the answer alike, or not.
v1::Response Attempt::Result() {
  v1::Response response =
      ResponseTo(claimed_.downstream_key(),
                 Chance(50) ? claim_.claim_token() : std::string());
  if (Chance(10)) response.set_status_code(200);
  if (Chance(20)) *response.add_headers() = response.headers(0);
  if (Chance(2)) response.mutable_body()->append(kLongBodyBytes, '.');
  if (Chance(2)) {
    while (response.headers_size() < kManyHeaders) {
      *response.add_headers() = response.headers(0);
    }
  }
  if (Chance(2)) {
    response.clear_body();
    response.set_body_omitted(true);
  }
  return response;
}

milliseconds Attempt::UntilExpiry() const {
  if (!claimed_.has_expires_at()) return milliseconds::max();
  const auto expiry = std::chrono::seconds(claimed_.expires_at().seconds()) +
                      std::chrono::nanoseconds(claimed_.expires_at().nanos());
  return std::chrono::duration_cast<milliseconds>(
      expiry - std::chrono::system_clock::now().time_since_epoch());
}

milliseconds Attempt::Part(int hundredths_min, int hundredths_max) {
  return lease_ * self_.Between(hundredths_min, hundredths_max).count() / 100;
}

}  // namespace idempotency::fault
