#include "server/store/postgres/migrator.h"

#include <string>
#include <utility>

#include "server/store/postgres/connection.h"
#include "server/store/postgres/migrations.h"
#include "server/store/postgres/pg_row.h"

namespace idempotency {
namespace {

// How often a step is sent whose outcome was lost or that met a lock.
constexpr int kAttemptsMax = 3;

constexpr char kOperation[] = "migrate";

// Whoever migrates holds this lock until its transaction ends. The number is
// arbitrary, and the same in every release.
constexpr char kWaitForOthers[] =
    "SET LOCAL lock_timeout = '60s';"
    "SET LOCAL statement_timeout = '60s';"
    "SELECT pg_advisory_xact_lock(7306371594205911401)";

// A change of the schema must not make the servers in operation queue up
// behind it for long.
constexpr char kBoundLocks[] =
    "SET LOCAL lock_timeout = '2s';"
    "SET LOCAL statement_timeout = 0";

constexpr Statement kFindSchema = {
    "find_schema", "SELECT to_regclass('idempotency_schema') IS NOT NULL",
    Effect::kRead, Plan::kFresh};

constexpr Statement kReadSchema = {"read_schema", R"sql(
SELECT version, major
FROM idempotency_schema
ORDER BY version
)sql",
                                   Effect::kRead, Plan::kFresh};

bool HasSchema(pqxx::transaction_base& transaction) {
  const pqxx::result found = transaction.exec(std::string(kFindSchema.sql));
  return PgRow(found[0]).Bool(0);
}

bool IsApplied(pqxx::transaction_base& transaction, int version) {
  if (!HasSchema(transaction)) return false;
  const pqxx::result found =
      transaction.exec("SELECT FROM idempotency_schema WHERE version = " +
                       std::to_string(version));
  return !found.empty();
}

// Answers whether it was this call that applied it.
absl::StatusOr<bool> Apply(Connection& connection, const Migration& migration) {
  absl::Status status;
  for (int attempt = 0; attempt < kAttemptsMax; ++attempt) {
    bool applied = false;
    status = connection.Transact(
        kOperation, [&](pqxx::transaction_base& transaction) {
          transaction.exec(std::string(kWaitForOthers));
          if (IsApplied(transaction, migration.version)) {
            return absl::OkStatus();
          }
          transaction.exec(std::string(kBoundLocks));
          transaction.exec(std::string(migration.up));
          applied = true;
          return absl::OkStatus();
        });
    if (status.ok()) return applied;
    const bool may_help = status.code() == absl::StatusCode::kUnknown ||
                          status.code() == absl::StatusCode::kAborted;
    if (!may_help) break;
  }
  return status;
}

absl::Status NeedsMigration(std::string_view what) {
  return absl::FailedPreconditionError(std::string(what).append(
      ": start the server with --migrate, or apply the files of "
      "migrations/ as their README.md says"));
}

}  // namespace

absl::StatusOr<int> Migrate(const ConnectionOptions& options,
                            const Clock& clock) {
  Connection connection(options, clock, Connection::Settings::kAsTheyAre);
  int count = 0;
  for (const Migration& migration : EmbeddedMigrations()) {
    const absl::StatusOr<bool> applied = Apply(connection, migration);
    if (!applied.ok()) return applied.status();
    if (*applied) ++count;
  }
  return count;
}

absl::Status CheckSchema(const ConnectionOptions& options, const Clock& clock) {
  Connection connection(options, clock);
  return CheckSchema(connection);
}

absl::Status CheckSchema(StatementRunner& runner) {
  const absl::StatusOr<pqxx::result> found = runner.Run(kFindSchema, {});
  if (!found.ok()) return found.status();
  if (!PgRow((*found)[0]).Bool(0)) {
    return NeedsMigration("the database has no idempotency schema");
  }
  const absl::StatusOr<pqxx::result> applied = runner.Run(kReadSchema, {});
  if (!applied.ok()) return applied.status();
  const auto known = static_cast<int>(EmbeddedMigrations().size());
  int applied_known = 0;
  for (const pqxx::row& fields : *applied) {
    PgRow row(fields);
    const int version = row.Int4(0);
    const bool major = row.Bool(1);
    if (version <= known) {
      ++applied_known;
    } else if (major || !row.ok()) {
      return absl::FailedPreconditionError(
          "the database has schema step " + std::to_string(version) +
          ", which needs a newer server: this one knows steps up to " +
          std::to_string(known) +
          "; run the newer release, or roll the step back with its "
          ".down.sql file");
    }
  }
  if (applied_known < known) {
    return NeedsMigration(
        "the database's idempotency schema is older than "
        "this server");
  }
  return absl::OkStatus();
}

}  // namespace idempotency
