#include "tests/fault/checker/grants.h"

#include <algorithm>

namespace idempotency::fault {

LoggedGrants GrantsOf(const KeyHistory& key) {
  LoggedGrants grants;
  absl::Time claimed = absl::InfinitePast();
  for (std::size_t i = 0; i < key.changes.size(); ++i) {
    const Change& change = key.changes[i];
    const Record& record = change.row.record;
    // A Release that frees the key raises the count for the next grant.
    const auto [grant, is_new] = grants.try_emplace(
        record.fencing_token,
        LoggedGrant{.created_at = record.created_at,
                    .claimed_at = record.claimed_at,
                    .freed_count = record.freed_count,
                    .on_server_error = record.policy.on_server_error,
                    .changes_before = i,
                    .claimed_before = claimed});
    claimed = std::max(claimed, record.claimed_at);
    grant->second.recorded |= record.state == RecordState::kFinal;
  }
  return grants;
}

bool AreOfTwoLives(const LoggedGrants& grants, std::int64_t one,
                   std::int64_t other) {
  const auto first = grants.find(one);
  const auto second = grants.find(other);
  return first != grants.end() && second != grants.end() &&
         first->second.created_at != second->second.created_at;
}

}  // namespace idempotency::fault
