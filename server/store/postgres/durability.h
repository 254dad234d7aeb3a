// What a database has to promise about writes that it acknowledged.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_DURABILITY_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_DURABILITY_H_

#include <string>

#include "absl/status/status.h"

namespace idempotency {

enum class Durability {
  kAny,    // whatever it is set to
  kCrash,  // they outlive a crash of the database's machine
  // They outlive the loss of the primary too: each waited until a synchronous
  // standby had it.
  kFailover,
};

// PostgreSQL's settings of these names, as a session has them.
struct DurabilitySettings {
  std::string fsync;
  std::string full_page_writes;
  std::string synchronous_commit;
  std::string synchronous_standby_names;
};

// Whether they keep what is required. FAILED_PRECONDITION names the setting
// that is in the way and what to set.
absl::Status CheckDurability(const DurabilitySettings& settings,
                             Durability required);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_DURABILITY_H_
