// The fleet's rules, read from their tables.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_FLEET_RULES_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_FLEET_RULES_H_

#include "absl/status/statusor.h"
#include "server/core/policies.h"
#include "server/store/postgres/statement_runner.h"

namespace idempotency {

// Blocks for three statements. One row that can't be followed, whether a
// policy out of bounds, a word of a newer server or a namespace that is no
// UUID, is FAILED_PRECONDITION for all: rules are never applied in part.
absl::StatusOr<FleetRules> ReadFleetRules(StatementRunner& runner);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_FLEET_RULES_H_
