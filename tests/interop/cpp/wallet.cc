#include "tests/interop/cpp/wallet.h"

#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace idempotency::interop {

Said Wallet::Charge(nlohmann::json payment, const Execution& execution,
                    const std::string& order) {
  {
    const std::lock_guard lock(mu_);
    ++asked_[payment.at("account").get<std::string>()];
  }
  const std::size_t dash = order.find('-');
  const std::string what = order.substr(0, dash);
  int number = 0;
  if (dash != std::string::npos) {
    (void)absl::SimpleAtoi(order.substr(dash + 1), &number);
  }

  Said said;
  if (what == "throw") throw std::runtime_error("the wallet hung up");
  if (what == "nothing") {
    return {.status = 503,
            .answer = {{"error", "the wallet refused to begin"}},
            .nothing_happened = true};
  }
  if (what == "decline" || what == "error") {
    return {.status = number, .answer = {{"error", what}}};
  }
  if (what == "slow") {
    std::this_thread::sleep_for(std::chrono::milliseconds(number));
  }
  if (what == "long") payment["receipt"] = std::string(number, 'x');
  if (what == "receipts") said.receipts = number;
  // Asked before what cannot be undone.
  if (!execution.permitted()) {
    throw std::runtime_error("the claim was lost while the wallet was slow");
  }
  payment["payment"] = absl::StrCat("charge-", execution.fencing_token());
  payment["wallet_key"] = execution.downstream_key();
  said.answer = std::move(payment);
  return said;
}

int Wallet::Asked(const std::string& account) const {
  const std::lock_guard lock(mu_);
  const auto asked = asked_.find(account);
  return asked == asked_.end() ? 0 : asked->second;
}

}  // namespace idempotency::interop
