#include <gtest/gtest.h>

#include <string>

#include "server/core/policies.h"
#include "tests/contract/store_contract.h"

namespace idempotency {
namespace {

TEST_P(StoreContract, TheRulesHoldThePolicyDefault) {
  const auto rules = store().ReadRules();
  ASSERT_TRUE(rules.ok()) << rules.status();
  ASSERT_TRUE(rules->policies.contains("default"));
  const Policy& policy = rules->policies.at("default");
  EXPECT_EQ(policy.name, "default");
  EXPECT_EQ(policy.lease, absl::Seconds(30));
  EXPECT_EQ(policy.max_lease, absl::Hours(1));
  EXPECT_EQ(policy.retention, absl::Hours(24));
  EXPECT_EQ(policy.on_abandoned, OnAbandoned::kTakeOver);
  EXPECT_EQ(policy.on_server_error, OnServerError::kRelease);
  EXPECT_FALSE(rules->downstream_namespace.is_nil());
}

TEST_P(StoreContract, EveryReplicaHasTheSameDownstreamNamespace) {
  EXPECT_EQ(store().ReadRules()->downstream_namespace,
            other_store().ReadRules()->downstream_namespace);
}

TEST_P(StoreContract, ANewPolicyIsReadAsItWasWritten) {
  Policy policy = Permanent();
  policy.name = "every column";
  policy.lease = absl::Milliseconds(1'500);
  policy.retention_after_finalize = absl::Hours(24 * 400);
  policy.on_abandoned = OnAbandoned::kHold;
  policy.on_server_error = OnServerError::kRecord;
  database().AddPolicy(policy);
  database().AddPolicy(HoldServerErrors());
  const auto rules = store().ReadRules();
  ASSERT_TRUE(rules.ok()) << rules.status();
  EXPECT_EQ(rules->policies.at("every column"), policy);
  EXPECT_EQ(rules->policies.at(HoldServerErrors().name), HoldServerErrors());
}

TEST_P(StoreContract, ScopesAreReadAsTheyWereWritten) {
  database().AddScope("payments", {.policy = "default", .enforced = true});
  database().AddScope("orders/create", {.policy = "default"});
  const auto rules = store().ReadRules();
  ASSERT_TRUE(rules.ok()) << rules.status();
  ASSERT_EQ(rules->scopes.size(), 2u);
  EXPECT_TRUE(rules->scopes.at("payments").enforced);
  EXPECT_FALSE(rules->scopes.at("orders/create").enforced);
  EXPECT_EQ(rules->scopes.at("orders/create").policy, "default");
}

TEST_P(StoreContract, ALookupOfNothingFindsNothing) {
  EXPECT_TRUE(IsRefused(Lookup(), Reason::kRecordNotFound));
}

TEST_P(StoreContract, ALookupShowsTheStateAsCallersSeeIt) {
  MustClaim(ClaimBy(1));
  EXPECT_EQ(Lookup()->state, VisibleState::kInProgress);
  LetTheLeaseLapse();
  EXPECT_EQ(Lookup()->state, VisibleState::kInDoubt);
  MustFinalize(1, Answer(200));
  EXPECT_EQ(Lookup()->state, VisibleState::kFinalized);
}

TEST_P(StoreContract, ALookupChangesNothing) {
  MustClaim(ClaimBy(1));
  EXPECT_EQ(MustLookup(), MustLookup());
}

}  // namespace
}  // namespace idempotency
