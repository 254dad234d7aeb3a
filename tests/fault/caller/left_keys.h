// What callers have left unfinished, asked for when all faults are over: each
// key has to be had. That it was so is the checker's to say.
#ifndef IDEMPOTENCY_TESTS_FAULT_CALLER_LEFT_KEYS_H_
#define IDEMPOTENCY_TESTS_FAULT_CALLER_LEFT_KEYS_H_

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/fault/caller/routes.h"

namespace idempotency::fault {

struct LeftKey {
  std::string scope{};
  std::string key{};
  std::string request_hash{};
  std::chrono::milliseconds lease_left{0};  // not above 0: it is over
};

// A line for each: scope, key and hash in hexadecimal, and the milliseconds,
// separated by tabs. INVALID_ARGUMENT names a line that is none.
absl::StatusOr<std::vector<LeftKey>> ReadLeftKeys(const std::string& path);

// Looks every key up and claims it, again while there is no decision for some
// seconds. Where the lease runs on for up to `lease_max` the claim waits for
// its end; a held record is claimed once more with resolve_in_doubt.
void AskForLeftKeys(const Routes& routes, std::vector<LeftKey> keys,
                    std::chrono::milliseconds lease_max);

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CALLER_LEFT_KEYS_H_
