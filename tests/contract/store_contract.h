// What every Store must do, as behaviour. One suite, StoreContract, is spread
// over the files of this folder and is run for each store that there is: a
// fake that is not under contract is a rumour.
#ifndef IDEMPOTENCY_TESTS_CONTRACT_STORE_CONTRACT_H_
#define IDEMPOTENCY_TESTS_CONTRACT_STORE_CONTRACT_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/errors.h"
#include "server/core/reaper.h"
#include "server/core/store.h"
#include "server/core/types.h"

namespace idempotency {

// A row of evidence as it is kept.
struct Evidence {
  std::int32_t status_code = 0;
  std::int64_t count = 0;
};

// One database with the coordinator's tables, empty when it is made.
class ContractDatabase {
 public:
  virtual ~ContractDatabase() = default;

  // A lane's store, of this replica or of another one.
  virtual std::unique_ptr<Store> MakeStore() = 0;
  virtual std::unique_ptr<Sweeper> MakeSweeper() = 0;
  // Moves the times of one record back, as if `by` had passed for it alone.
  virtual void Age(const RecordId& id, absl::Duration by) = 0;
  // The same for all evidence.
  virtual void AgeEvidence(absl::Duration by) = 0;
  virtual std::vector<Evidence> EvidenceOf(const RecordId& id) = 0;
  // Adds a policy, and the rule of a scope, to the fleet's tables.
  virtual void AddPolicy(const Policy& policy) = 0;
  virtual void AddScope(const std::string& scope, const ScopePolicy& rule) = 0;
};

struct StoreUnderContract {
  const char* name;
  std::unique_ptr<ContractDatabase> (*make)();
};

inline void PrintTo(const StoreUnderContract& store, std::ostream* out) {
  *out << store.name;
}

class StoreContract : public testing::TestWithParam<StoreUnderContract> {
 protected:
  static constexpr absl::Duration kLease = absl::Minutes(5);
  static constexpr absl::Duration kRetention = absl::Hours(24);

  void SetUp() override;

  ContractDatabase& database() { return *database_; }
  Store& store() { return *store_; }
  // Of another replica.
  Store& other_store() { return *other_store_; }

  void Age(const RecordId& id, absl::Duration by) { database_->Age(id, by); }
  void LetTheLeaseLapse() { Age(Id(), kLease + absl::Seconds(1)); }
  SweepReport Sweep(int limit = 1000);

  static RecordId Id(const std::string& key = "key") {
    return {"contract", key};
  }
  static Uuid Token(std::uint32_t number);
  static Policy TakeOver();
  static Policy Hold();
  static Policy HoldServerErrors();
  static Policy Permanent();

  static ClaimCommand ClaimBy(std::uint32_t token,
                              const Policy& policy = TakeOver());
  static ClaimCommand ClaimBy(std::uint32_t token, const RecordId& id);
  static FinalizeCommand FinalizeBy(std::uint32_t token,
                                    const Response& response);
  static ReleaseCommand ReleaseBy(std::uint32_t token, Disposition how);
  static Response Answer(std::int32_t status_code,
                         const std::string& body = "body");

  // One call in a batch of its own.
  static ClaimAnswer SendOne(Store& store, const ClaimCommand& command);
  static absl::StatusOr<FinalizeOutcome> SendOne(
      Store& store, const FinalizeCommand& command);
  static absl::StatusOr<ReleaseOutcome> SendOne(Store& store,
                                                const ReleaseCommand& command);
  static absl::StatusOr<LookupOutcome> SendOne(Store& store,
                                               const LookupCommand& command);

  absl::StatusOr<ClaimOutcome> Claim(const ClaimCommand& command) {
    return SendOne(store(), command).outcome;
  }
  absl::StatusOr<FinalizeOutcome> Finalize(std::uint32_t token,
                                           const Response& response) {
    return SendOne(store(), FinalizeBy(token, response));
  }
  absl::StatusOr<ReleaseOutcome> Release(std::uint32_t token, Disposition how) {
    return SendOne(store(), ReleaseBy(token, how));
  }
  absl::StatusOr<LookupOutcome> Lookup(const RecordId& id = Id()) {
    return SendOne(store(), LookupCommand{id});
  }

  // Fail the test where the outcome is another one.
  Claimed MustClaim(const ClaimCommand& command);
  FinalizeOutcome MustFinalize(std::uint32_t token, const Response& response);
  Record MustLookup(const RecordId& id = Id());

 private:
  std::unique_ptr<ContractDatabase> database_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Store> other_store_;
};

template <typename Item>
std::vector<const Item*> PointersTo(const std::vector<Item>& items) {
  std::vector<const Item*> pointers;
  pointers.reserve(items.size());
  for (const Item& item : items) pointers.push_back(&item);
  return pointers;
}

// ---- What an answer is.

template <typename Outcome>
testing::AssertionResult Is(const absl::StatusOr<ClaimOutcome>& answer) {
  if (answer.ok() && std::holds_alternative<Outcome>(*answer)) {
    return testing::AssertionSuccess();
  }
  if (!answer.ok()) return testing::AssertionFailure() << answer.status();
  return testing::AssertionFailure() << "outcome number " << answer->index();
}

// A decision that was refused for `reason`.
template <typename Answer>
testing::AssertionResult IsRefused(const absl::StatusOr<Answer>& answer,
                                   Reason reason) {
  if (answer.ok()) return testing::AssertionFailure() << "not refused";
  if (!HasReason(answer.status()) || ReasonOf(answer.status()) != reason) {
    return testing::AssertionFailure() << answer.status();
  }
  return testing::AssertionSuccess();
}

// A time that is left, and was `full` a moment ago.
testing::AssertionResult IsNearly(absl::Duration left, absl::Duration full);

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_CONTRACT_STORE_CONTRACT_H_
