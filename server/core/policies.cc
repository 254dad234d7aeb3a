#include "server/core/policies.h"

#include <utility>

#include "absl/time/time.h"
#include "server/core/errors.h"
#include "server/core/limits.h"

namespace idempotency {
namespace {

constexpr std::string_view kDefaultPolicy = "default";

}  // namespace

ScopePolicy RuleForScope(const FleetRules& rules, std::string_view scope) {
  while (true) {
    const auto rule = rules.scopes.find(scope);
    if (rule != rules.scopes.end()) return rule->second;
    const std::size_t slash = scope.rfind('/');
    if (slash == std::string_view::npos) break;
    scope = scope.substr(0, slash);
  }
  return {.policy = std::string(kDefaultPolicy), .enforced = false};
}

absl::StatusOr<Policy> ResolvePolicy(const FleetRules& rules,
                                     std::string_view scope,
                                     std::string_view requested) {
  const ScopePolicy rule = RuleForScope(rules, scope);
  if (requested.empty()) requested = rule.policy;
  const auto policy = rules.policies.find(requested);
  if (rule.enforced && requested != rule.policy) {
    return MakeError(Reason::kPolicyNotAllowed,
                     "policy: this scope's policy is enforced; leave the "
                     "field empty or name the scope's own policy");
  }
  if (policy == rules.policies.end()) {
    return MakeError(Reason::kUnknownPolicy,
                     "policy: no policy of this name exists; add it to "
                     "ttl_policies or leave the field empty");
  }
  return policy->second;
}

absl::Status CheckPolicy(const Policy& policy) {
  const absl::Duration longest = absl::FromChrono(limits::kDurationMax);
  if (policy.lease < absl::FromChrono(limits::kLeaseMin) ||
      policy.lease > policy.max_lease || policy.max_lease > longest) {
    return absl::FailedPreconditionError(
        "a policy needs 100 ms <= lease <= max_lease <= 100 years");
  }
  for (const auto& period :
       {policy.retention, policy.retention_after_finalize}) {
    if (period.has_value() &&
        (*period <= absl::ZeroDuration() || *period > longest)) {
      return absl::FailedPreconditionError(
          "a policy's retention lies above 0 and within 100 years");
    }
  }
  if (policy.retention.has_value() &&
      policy.retention_after_finalize.has_value()) {
    return absl::FailedPreconditionError(
        "retention_after_finalize goes only with a permanent retention");
  }
  return absl::OkStatus();
}

std::shared_ptr<const FleetRules> FleetRulesCache::Get() const {
  MutexLock lock(mutex_);
  return rules_;
}

void FleetRulesCache::Set(FleetRules rules) {
  auto fresh = std::make_shared<const FleetRules>(std::move(rules));
  MutexLock lock(mutex_);
  rules_ = std::move(fresh);
}

}  // namespace idempotency
