#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_POSTGRES_BINARIES_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_POSTGRES_BINARIES_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace idempotency {

// The programs of one installed PostgreSQL server.
struct PostgresBinaries {
  // Holds `postgres` and `initdb`.
  std::string folder;
  // 15, 17, ...
  int major = 0;
};

// Finds PostgreSQL's server programs: in `folder` if that is not empty, else
// the newest of those that the system's packages installed, else those in
// PATH, else where pg_config points. With `major`, programs of that major
// version are preferred to newer ones.
//
// NOT_FOUND names what to install. Starts a program to ask for its version.
absl::StatusOr<PostgresBinaries> FindPostgresBinaries(const std::string& folder,
                                                      std::optional<int> major);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_POSTGRES_BINARIES_H_
