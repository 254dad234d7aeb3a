// What a connection asks of the database, as a connection string and as
// settings that can be checked.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_CONNINFO_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_CONNINFO_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/store/postgres/connection_options.h"

namespace idempotency {

// A setting of the session and its value as current_setting() shows it.
struct SessionSetting {
  std::string name;
  std::string value;
};

// What every session must have, or the store's guarantees or its speed are
// gone.
std::vector<SessionSetting> RequiredSettings(const ConnectionOptions& options);

// A libpq connection string: what the URI says, a bounded connect, a primary
// that can be written and, unless pooled, the required settings. A URI that
// libpq cannot read is INVALID_ARGUMENT; the error does not repeat it.
absl::StatusOr<std::string> MakeConninfo(const ConnectionOptions& options);

// Which database it is, for people: the host, port, database and user of the
// URI, and nothing of its secrets.
std::string DescribeDatabase(const ConnectionOptions& options);

// Why libpq could not connect, as one of a few fixed phrases. libpq's own text
// may hold the connection string.
std::string_view ConnectFailureCause(std::string_view libpq_message);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_CONNINFO_H_
