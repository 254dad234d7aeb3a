// The files of migrations/, compiled into the program.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_MIGRATIONS_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_MIGRATIONS_H_

#include <span>
#include <string_view>

namespace idempotency {

struct Migration {
  int version;
  std::string_view name;
  std::string_view up;
  std::string_view down;
};

// By version: 1, 2, 3 and so on without a gap.
std::span<const Migration> EmbeddedMigrations();

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_MIGRATIONS_H_
