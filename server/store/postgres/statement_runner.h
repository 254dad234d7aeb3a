// What the statements of the store run in: a connection of the store's own, or
// a transaction of somebody else's.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_STATEMENT_RUNNER_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_STATEMENT_RUNNER_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/store/postgres/pqxx_compat.h"

namespace idempotency {

enum class Effect { kRead, kWrite };

// kKept: prepared once and its plan kept, for the hot path. kFresh: planned at
// each execution. kInOrder: likewise, and may walk an index in its order, which
// the session's settings do not allow.
enum class Plan { kKept, kFresh, kInOrder };

struct Statement {
  std::string_view name;  // of the operation, for errors; unique
  std::string_view sql;
  Effect effect;
  Plan plan;
};

// Parameters in PostgreSQL's binary format, none of them NULL.
using Parameters = std::vector<std::string>;

// Not thread-safe. Errors are those of store.h.
class StatementRunner {
 public:
  virtual ~StatementRunner() = default;

  virtual absl::StatusOr<pqxx::result> Run(const Statement& statement,
                                           const Parameters& parameters) = 0;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_STATEMENT_RUNNER_H_
