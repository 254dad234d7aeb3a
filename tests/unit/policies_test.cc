#include "server/core/policies.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "server/core/errors.h"

namespace idempotency {
namespace {

Policy ValidPolicy(std::string name) {
  return {.name = std::move(name),
          .lease = absl::Seconds(30),
          .max_lease = absl::Hours(1),
          .retention = absl::Hours(24)};
}

FleetRules Rules() {
  FleetRules rules;
  for (const char* name : {"default", "payment", "order"}) {
    rules.policies[name] = ValidPolicy(name);
  }
  rules.scopes["payments"] = {.policy = "payment", .enforced = true};
  rules.scopes["orders"] = {.policy = "order", .enforced = false};
  rules.scopes["payments/refunds/small"] = {.policy = "order"};
  return rules;
}

TEST(PoliciesTest, AScopeHasItsOwnRule) {
  EXPECT_EQ(RuleForScope(Rules(), "payments").policy, "payment");
  EXPECT_EQ(RuleForScope(Rules(), "payments/refunds/small").policy, "order");
}

TEST(PoliciesTest, TheLongestPrefixAtASlashRules) {
  EXPECT_EQ(RuleForScope(Rules(), "payments/refunds").policy, "payment");
  EXPECT_TRUE(RuleForScope(Rules(), "payments/refunds").enforced);
  EXPECT_EQ(RuleForScope(Rules(), "payments/refunds/small/x").policy, "order");
  EXPECT_FALSE(RuleForScope(Rules(), "payments/refunds/small/x").enforced);
}

TEST(PoliciesTest, APrefixThatEndsWithinASegmentDoesNotRule) {
  EXPECT_EQ(RuleForScope(Rules(), "paymentsX").policy, "default");
  EXPECT_EQ(RuleForScope(Rules(), "payment").policy, "default");
  EXPECT_EQ(RuleForScope(Rules(), "payments.x/y").policy, "default");
}

TEST(PoliciesTest, AScopeWithoutRuleMayNameAnyPolicy) {
  EXPECT_EQ(ResolvePolicy(Rules(), "forms", "")->name, "default");
  EXPECT_EQ(ResolvePolicy(Rules(), "forms", "payment")->name, "payment");
}

TEST(PoliciesTest, AScopesPolicyIsADefaultUnlessItIsEnforced) {
  EXPECT_EQ(ResolvePolicy(Rules(), "orders/create", "")->name, "order");
  EXPECT_EQ(ResolvePolicy(Rules(), "orders/create", "default")->name,
            "default");
  EXPECT_EQ(ResolvePolicy(Rules(), "payments/x", "")->name, "payment");
  EXPECT_EQ(ResolvePolicy(Rules(), "payments/x", "payment")->name, "payment");
  EXPECT_EQ(ReasonOf(ResolvePolicy(Rules(), "payments/x", "order").status()),
            Reason::kPolicyNotAllowed);
}

TEST(PoliciesTest, AnUnknownNameIsRefused) {
  EXPECT_EQ(ReasonOf(ResolvePolicy(Rules(), "forms", "nosuch").status()),
            Reason::kUnknownPolicy);
  EXPECT_EQ(ReasonOf(ResolvePolicy(Rules(), "forms", "Payment").status()),
            Reason::kUnknownPolicy);
  EXPECT_EQ(ReasonOf(ResolvePolicy(FleetRules{}, "forms", "").status()),
            Reason::kUnknownPolicy);
}

TEST(PoliciesTest, AValidPolicyPassesTheCheck) {
  EXPECT_TRUE(CheckPolicy(ValidPolicy("p")).ok());
  Policy permanent = ValidPolicy("p");
  permanent.retention.reset();
  EXPECT_TRUE(CheckPolicy(permanent).ok());
  permanent.retention_after_finalize = absl::Hours(1);
  EXPECT_TRUE(CheckPolicy(permanent).ok());
}

TEST(PoliciesTest, ALeaseHasItsBounds) {
  Policy policy = ValidPolicy("p");
  policy.lease = absl::Milliseconds(100);
  EXPECT_TRUE(CheckPolicy(policy).ok());
  policy.lease = absl::Milliseconds(99);
  EXPECT_FALSE(CheckPolicy(policy).ok());
  policy.lease = policy.max_lease + absl::Microseconds(1);
  EXPECT_FALSE(CheckPolicy(policy).ok());
  policy.max_lease = absl::InfiniteDuration();
  EXPECT_FALSE(CheckPolicy(policy).ok());
}

TEST(PoliciesTest, ARetentionIsPositiveAndFinite) {
  Policy policy = ValidPolicy("p");
  for (const absl::Duration wrong :
       {absl::ZeroDuration(), absl::Seconds(-1), absl::InfiniteDuration()}) {
    policy.retention = wrong;
    EXPECT_FALSE(CheckPolicy(policy).ok()) << absl::FormatDuration(wrong);
  }
}

TEST(PoliciesTest, OnlyAPermanentPolicyHasARetentionAfterFinalize) {
  Policy policy = ValidPolicy("p");
  policy.retention_after_finalize = absl::Hours(1);
  EXPECT_FALSE(CheckPolicy(policy).ok());
  policy.retention.reset();
  EXPECT_TRUE(CheckPolicy(policy).ok());
  policy.retention_after_finalize = absl::ZeroDuration();
  EXPECT_FALSE(CheckPolicy(policy).ok());
}

TEST(PoliciesTest, TheCacheIsEmptyUntilTheFirstReading) {
  FleetRulesCache cache;
  EXPECT_EQ(cache.Get(), nullptr);
  cache.Set(Rules());
  const auto first = cache.Get();
  cache.Set(FleetRules{});
  EXPECT_EQ(first->policies.size(), 3u) << "a reading in use does not change";
  EXPECT_TRUE(cache.Get()->policies.empty());
}

}  // namespace
}  // namespace idempotency
