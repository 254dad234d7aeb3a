// The fleet's rules: named policies, and which policy a scope has.
#ifndef IDEMPOTENCY_SERVER_CORE_POLICIES_H_
#define IDEMPOTENCY_SERVER_CORE_POLICIES_H_

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/mutex.h"
#include "server/core/types.h"

namespace idempotency {

struct ScopePolicy {
  std::string policy{};
  bool enforced = false;  // naming another policy is refused
};

// One reading of the tables `ttl_policies`, `scope_policies` and
// `idempotency_settings`. A plain value.
struct FleetRules {
  std::map<std::string, Policy, std::less<>> policies{};
  std::map<std::string, ScopePolicy, std::less<>> scopes{};
  Uuid downstream_namespace{};
};

// The rule of `scope`: its own, else that of the longest prefix that ends at a
// '/', else the policy `default`, not enforced.
ScopePolicy RuleForScope(const FleetRules& rules, std::string_view scope);

// The policy that a Claim in `scope` which names `requested` (empty: none) is
// granted under. Errors: UNKNOWN_POLICY, POLICY_NOT_ALLOWED.
absl::StatusOr<Policy> ResolvePolicy(const FleetRules& rules,
                                     std::string_view scope,
                                     std::string_view requested);

// OK when `policy` keeps the rules that the tables state as CHECKs, else an
// error that says which one it breaks.
absl::Status CheckPolicy(const Policy& policy);

// The latest reading, shared by everybody who needs it. Thread-safe.
class FleetRulesCache {
 public:
  // Null until the first Set(): nothing may be granted before.
  std::shared_ptr<const FleetRules> Get() const;
  void Set(FleetRules rules);

 private:
  mutable Mutex mutex_;
  std::shared_ptr<const FleetRules> rules_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_POLICIES_H_
