// The log of one record by itself.

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "tests/fault/checker/order_rules.h"
#include "tests/support/record_rules.h"

namespace idempotency::fault {
namespace {

class LogCheck {
 public:
  LogCheck(const States& states, Findings& findings)
      : states_(states), findings_(findings) {}

  void Run() {
    for (std::size_t i = 1; i < states_.count(); ++i) CheckOneChange(i);
  }

 private:
  void Violate(const std::string& number, const std::string& what) {
    findings_.Violate(number, states_.id(), what);
  }

  void CheckOneChange(std::size_t i) {
    const Change& change = states_.ChangeTo(i);
    const auto [before, after] = states_.StepTo(i);
    const bool inserted = change.kind == ChangeKind::kInsert;
    if (inserted != (before == nullptr) ||
        (before != nullptr && before->version != change.old_version)) {
      Violate("S17", "the log has a gap, or the table went back, before " +
                         states_.NameOf(i));
    }
    const absl::Time decided = states_.DecidedBy(i);
    absl::Time now = decided;
    if (after != nullptr &&
        (before == nullptr || before->fencing_token != after->fencing_token)) {
      now = std::min(now, after->claimed_at);
      CheckGrant(before, *after);
    }
    const auto broken = [&](const std::string& promise,
                            const std::string& what) {
      Violate(promise, what + ": " + states_.NameOf(i));
    };
    CheckChange(before, after, now, AskedFor(after), broken);
    CheckTimes(before, after, decided, broken);
  }

  Asked AskedFor(const Record* after) const {
    Asked asked;
    if (after == nullptr) return asked;
    for (const Operation* operation :
         states_.OperationsOf(after->claim_token)) {
      asked.resolves |= operation->call.resolve;
      asked.never_executed |=
          operation->call.disposition == SaidDisposition::kNeverExecuted;
    }
    return asked;
  }

  void CheckGrant(const Record* before, const Record& after) {
    // Where no row is left, fencing tokens come from the database's clock
    // alone, and it may have stepped back.
    if (before == nullptr && after.claimed_at < claimed_at_) {
      fencing_token_ = 0;
      owners_.clear();
      claimed_at_ = absl::InfinitePast();
    }
    claimed_at_ = std::max(claimed_at_, after.claimed_at);
    if (after.fencing_token < fencing_token_) {
      Violate("S2", "fencing token " + std::to_string(after.fencing_token) +
                        " was granted after " + std::to_string(fencing_token_));
    }
    fencing_token_ = std::max(fencing_token_, after.fencing_token);
    const auto [owner, is_new] =
        owners_.emplace(after.fencing_token, after.claim_token);
    if (!is_new) {
      Violate("S1", "fencing token " + std::to_string(after.fencing_token) +
                        " was granted to " + FormatUuid(owner->second) +
                        " and then to " + FormatUuid(after.claim_token));
    }
  }

  const States& states_;
  Findings& findings_;
  std::map<std::int64_t, Uuid> owners_{};  // by fencing token
  std::int64_t fencing_token_ = 0;
  // The furthest that the clock was at a grant.
  absl::Time claimed_at_ = absl::InfinitePast();
};

}  // namespace

void CheckLog(const States& states, Findings& findings) {
  LogCheck(states, findings).Run();
}

}  // namespace idempotency::fault
