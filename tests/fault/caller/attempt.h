// One attempt, or what a caller takes for one: a claim token, from its claim to
// its end, by hand.
#ifndef IDEMPOTENCY_TESTS_FAULT_CALLER_ATTEMPT_H_
#define IDEMPOTENCY_TESTS_FAULT_CALLER_ATTEMPT_H_

#include <chrono>
#include <string>
#include <utility>

#include "tests/fault/caller/world.h"

namespace idempotency::fault {

// An owner may be slow, forgetful, wrong about who owns the key, or gone. But
// it says nothing of itself that is not true: what it was told to release as
// never executed, the wallet has refused for good.
//
// Not thread-safe.
class Attempt {
 public:
  Attempt(Self& self, Key key);

  // Returns early when all is to stop.
  void Run();

  // Calls about a key that nobody has claimed.
  void AskAboutNothing();

 private:
  using Disposition = v1::ReleaseRequest::Disposition;

  // On one way or the other, until an answer is known; at most a few times.
  template <typename Request>
  auto Send(const Request& request);
  absl::StatusOr<v1::ClaimResponse> Claim();

  void Own(const v1::Claimed& claimed);
  // Returns whether what the earlier attempt did is settled, or is to be left.
  bool SettleAbandoned();
  void Pay();
  void PayLate();
  void PayAtExpiry();
  void FailWithServerError();
  void RefuseForGood();
  void Vanish();

  // False: it is not the owner's any more, and it cares.
  bool Renew();
  // False: the attempt has ended.
  bool Charge();
  void Finalize(v1::Response response);
  void InsistAfter(const v1::FinalizeRequest& finalized);
  void GiveUp(Disposition disposition);
  // Free the key if that may be said, else give it up.
  void WasRefused();
  void MeddleAsAnother();
  void LookUp();

  absl::StatusOr<WalletAnswer> AskWallet(WalletVerb verb);
  v1::Response Result();
  // Of the lease.
  std::chrono::milliseconds Part(int hundredths_min, int hundredths_max);
  bool Chance(int hundredths) { return self_.Chance(hundredths); }

  Self& self_;
  const Key key_;
  Route* const route_;
  v1::ClaimRequest claim_;
  // No claim of this token is under way any more, or will be.
  bool claims_settled_ = true;
  v1::Claimed claimed_;
  std::chrono::milliseconds lease_{0};
};

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CALLER_ATTEMPT_H_
