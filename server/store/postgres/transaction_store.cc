#include "server/store/postgres/transaction_store.h"

#include <exception>
#include <string>
#include <utility>

#include "server/core/optimistic_store.h"
#include "server/store/postgres/fleet_rules.h"
#include "server/store/postgres/migrator.h"
#include "server/store/postgres/pg_row.h"
#include "server/store/postgres/record_table.h"
#include "server/store/postgres/sqlstate.h"
#include "server/store/postgres/statement_runner.h"

namespace idempotency {
namespace {

// pg_row.h reads no other bytea_output.
constexpr Statement kDescribeSession = {"describe_session", R"sql(
SELECT
  current_setting('server_encoding') = 'UTF8'
    AND current_setting('bytea_output') = 'hex',
  CASE WHEN current_setting('transaction_isolation') = 'read committed' THEN 0
    ELSE (extract(epoch FROM statement_timestamp() - now()) * 1000000)::bigint
  END,
  concat_ws('.', current_database(),
            (SELECT relnamespace::regnamespace FROM pg_class
             WHERE oid = to_regclass('idempotency_records')))
)sql",
                                        Effect::kRead, Plan::kFresh};

class TransactionRunner final : public StatementRunner {
 public:
  TransactionRunner(pqxx::dbtransaction& transaction,
                    PreparedStatements* prepared)
      : transaction_(transaction), prepared_(prepared) {}

  absl::StatusOr<pqxx::result> Run(const Statement& statement,
                                   const Parameters& parameters) override {
    try {
      if (!begun_) pqxx_compat::Begin(transaction_);
      begun_ = true;
      if (prepared_ != nullptr && statement.plan == Plan::kKept) {
        return prepared_->Run(transaction_, statement, parameters);
      }
      return pqxx_compat::RunUnnamed(transaction_, std::string(statement.sql),
                                     parameters);
    } catch (const pqxx::argument_error&) {
      // libpqxx 6 itself keeps account of what is prepared.
      return Note({.status = {}, .stale_statement = true});
    } catch (...) {
      // Nothing is committed here, so that a lost answer leaves nothing.
      return Note(FailureOfCurrentException(statement.name, Phase::kRead));
    }
  }

 private:
  absl::Status Note(const Failure& failure) {
    if (!failure.stale_statement) return failure.status;
    if (prepared_ != nullptr) prepared_->Forget(transaction_);
    return absl::AbortedError("a prepared statement was of no use any more");
  }

  pqxx::dbtransaction& transaction_;
  PreparedStatements* const prepared_;
  bool begun_ = false;
};

// What libpq knows, without asking the database. Empty if the session is gone.
std::string EncodingOf(const pqxx::dbtransaction& transaction) {
  try {
    return transaction.conn().get_client_encoding();
  } catch (const std::exception&) {
    return "";
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> MakeTransactionStore(
    pqxx::dbtransaction& transaction, PreparedStatements* prepared,
    const Clock& clock, Metrics& metrics) {
  const std::string encoding = EncodingOf(transaction);
  if (encoding.empty()) {
    return absl::UnavailableError("the connection was lost");
  }
  // In another one, the bytes of a key would be stored as other ones.
  if (encoding != "UTF8") {
    return absl::FailedPreconditionError("client_encoding must be UTF8");
  }
  return std::make_unique<OptimisticStore>(
      std::make_unique<PgRecordTable>(
          std::make_unique<TransactionRunner>(transaction, prepared)),
      clock, metrics);
}

absl::StatusOr<RulesWithin> ReadRulesWithin(pqxx::dbtransaction& transaction) {
  TransactionRunner runner(transaction, nullptr);
  const absl::StatusOr<pqxx::result> session = runner.Run(kDescribeSession, {});
  if (!session.ok()) return session.status();
  PgRow row((*session)[0]);
  const bool usable = row.Bool(0);
  const absl::Duration age = absl::Microseconds(row.Int8(1));
  std::string schema(row.Text(2));
  if (!row.ok()) {
    return absl::InternalError("describe_session: an unexpected answer");
  }
  if (!usable) {
    return absl::FailedPreconditionError(
        "the database must have the encoding UTF8, and bytea_output must be "
        "hex");
  }
  if (absl::Status status = CheckSchema(runner); !status.ok()) return status;
  absl::StatusOr<FleetRules> rules = ReadFleetRules(runner);
  if (!rules.ok()) return rules.status();
  return RulesWithin{
      .rules = *std::move(rules), .age_max = age, .schema = std::move(schema)};
}

void Abort(pqxx::dbtransaction& transaction) {
  try {
    transaction.abort();
  } catch (const std::exception&) {
    // Committed, or in doubt: it has ended otherwise, by the caller's doing.
  }
}

}  // namespace idempotency
