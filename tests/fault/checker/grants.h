// The grants of one record, as the log of changes has them.
#ifndef IDEMPOTENCY_TESTS_FAULT_CHECKER_GRANTS_H_
#define IDEMPOTENCY_TESTS_FAULT_CHECKER_GRANTS_H_

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/time/time.h"
#include "server/core/types.h"
#include "tests/fault/checker/run.h"

namespace idempotency::fault {

struct LoggedGrant {
  absl::Time created_at{};  // names the life of the key
  absl::Time claimed_at{};
  std::int32_t freed_count = 0;  // n of its downstream key
  OnServerError on_server_error = OnServerError::kRelease;
  bool recorded = false;  // it ended with a recorded response
  // How many changes of the key the log has before it, and when the clock was
  // furthest at the grants among them.
  std::size_t changes_before = 0;
  absl::Time claimed_before = absl::InfinitePast();
};

// By fencing token.
using LoggedGrants = std::map<std::int64_t, LoggedGrant>;

LoggedGrants GrantsOf(const KeyHistory& key);

// Do the two fencing tokens belong to different lives of the key? No, where the
// log does not know one of them.
bool AreOfTwoLives(const LoggedGrants& grants, std::int64_t one,
                   std::int64_t other);

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CHECKER_GRANTS_H_
