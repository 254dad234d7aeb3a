// Databases, commands and records for the tests of the PostgreSQL store.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_PG_SAMPLES_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_PG_SAMPLES_H_

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/core/clock.h"
#include "server/core/store.h"
#include "server/core/types.h"
#include "server/store/postgres/migrator.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {

inline const SystemClock& SampleClock() {
  static const SystemClock clock;
  return clock;
}

// A new database on the shared server, with the schema.
inline ConnectionOptions MigratedDatabase() {
  const absl::StatusOr<std::string> uri = TempPostgres::SharedDatabase();
  EXPECT_TRUE(uri.ok()) << uri.status();
  ConnectionOptions options;
  if (!uri.ok()) return options;
  options.uri = *uri;
  const absl::StatusOr<int> applied = Migrate(options, SampleClock());
  EXPECT_TRUE(applied.ok()) << applied.status();
  return options;
}

// The rows of `sql`, columns separated by tabs.
inline std::string Sql(const ConnectionOptions& options,
                       const std::string& sql) {
  const absl::StatusOr<std::string> rows =
      TempPostgres::RunAt(options.uri, sql);
  EXPECT_TRUE(rows.ok()) << rows.status();
  return rows.ok() ? *rows : std::string();
}

// Asks again until it holds, for at most ten seconds.
inline bool Eventually(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// In whole microseconds, as the database keeps them.
inline absl::Time Now() {
  return absl::FromUnixMicros(absl::ToUnixMicros(absl::Now()));
}

inline Uuid Token(int number) {
  Uuid uuid;
  uuid.bytes[0] = 0xc1;
  uuid.bytes[14] = static_cast<std::uint8_t>(number / 256);
  uuid.bytes[15] = static_cast<std::uint8_t>(number % 256);
  return uuid;
}

inline Policy SamplePolicy() {
  return {.name = "default",
          .lease = absl::Seconds(30),
          .max_lease = absl::Hours(1),
          .retention = absl::Hours(24)};
}

inline ClaimCommand Claim(RecordId id, int token = 1) {
  ClaimCommand claim;
  claim.id = std::move(id);
  claim.request_hash = std::string(32, 'h');
  claim.claim_token = Token(token);
  claim.policy = SamplePolicy();
  return claim;
}

inline FinalizeCommand Finalize(RecordId id, int token = 1) {
  FinalizeCommand finalize;
  finalize.id = std::move(id);
  finalize.claim_token = Token(token);
  finalize.response = {
      .status_code = 200, .headers = "header", .body = std::string(200, 'b')};
  finalize.response_digest = std::string(32, 'd');
  return finalize;
}

template <typename Item>
std::vector<const Item*> Pointers(const std::vector<Item>& items) {
  std::vector<const Item*> pointers;
  for (const Item& item : items) pointers.push_back(&item);
  return pointers;
}

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_PG_SAMPLES_H_
