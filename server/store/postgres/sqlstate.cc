#include "server/store/postgres/sqlstate.h"

#include <cstddef>
#include <exception>
#include <pqxx/pqxx>
#include <string>

#include "server/core/errors.h"
#include "server/store/postgres/conninfo.h"

namespace idempotency {
namespace {

enum class Meaning {
  kLost,         // the answer is missing: a write may have happened
  kUnavailable,  // without effect; the connection goes
  kExhausted,    // without effect; the connection stays
  kContended,
  kStale,
  kCorrupt,
  kRefused,  // without effect, and it would be refused again
};

struct Row {
  std::string_view prefix;  // of the SQLSTATE
  Meaning meaning;
};

// The first row that fits holds. An error that PostgreSQL reports means that
// the statement was rolled back, but for the few that end the connection
// while a commit may be under way.
constexpr Row kMeanings[] = {
    {"08", Meaning::kLost},
    {"0A000", Meaning::kStale},  // "cached plan must not change result type"
    {"25006", Meaning::kUnavailable},
    {"25P03", Meaning::kLost},
    {"26000", Meaning::kStale},
    {"40003", Meaning::kLost},
    {"40", Meaning::kContended},
    {"42P05", Meaning::kStale},
    {"53300", Meaning::kUnavailable},
    {"53", Meaning::kExhausted},
    {"55P03", Meaning::kContended},
    {"57014", Meaning::kContended},
    {"57P03", Meaning::kUnavailable},
    {"57P", Meaning::kLost},
    {"58", Meaning::kExhausted},
    {"XX001", Meaning::kCorrupt},
    {"XX002", Meaning::kCorrupt},
};

Meaning MeaningOf(std::string_view sqlstate) {
  for (const Row& row : kMeanings) {
    if (sqlstate.substr(0, row.prefix.size()) == row.prefix) return row.meaning;
  }
  return Meaning::kRefused;
}

absl::Status StatusOf(absl::StatusCode code, std::string_view operation,
                      std::string_view what) {
  const std::string message = std::string(operation).append(": ").append(what);
  return absl::Status(code, message);
}

absl::StatusCode LostCode(Phase phase) {
  return phase == Phase::kWrite ? absl::StatusCode::kUnknown
                                : absl::StatusCode::kUnavailable;
}

absl::StatusCode CodeOfMeaning(Meaning meaning, Phase phase) {
  switch (meaning) {
    case Meaning::kLost:
      return LostCode(phase);
    case Meaning::kUnavailable:
    case Meaning::kExhausted:
      return absl::StatusCode::kUnavailable;
    case Meaning::kContended:
      return absl::StatusCode::kAborted;
    case Meaning::kStale:
    case Meaning::kCorrupt:
    case Meaning::kRefused:
      break;
  }
  return absl::StatusCode::kInternal;
}

// Neither an error of PostgreSQL's nor a lost connection: what was done before
// it was thrown is not known.
Failure FailureOfUnknownKind(std::string_view operation, Phase phase) {
  const absl::StatusCode code = phase == Phase::kWrite
                                    ? absl::StatusCode::kUnknown
                                    : absl::StatusCode::kInternal;
  return {.status = StatusOf(code, operation, "an unexpected failure")};
}

}  // namespace

Failure FailureOfSqlState(std::string_view operation, std::string_view sqlstate,
                          Phase phase) {
  const Meaning meaning = MeaningOf(sqlstate);
  const std::string what = std::string("SQLSTATE ").append(sqlstate);
  Failure failure;
  failure.discard = meaning == Meaning::kLost ||
                    meaning == Meaning::kUnavailable ||
                    meaning == Meaning::kStale;
  failure.stale_statement = meaning == Meaning::kStale;
  failure.status =
      meaning == Meaning::kCorrupt
          ? MakeError(Reason::kRecordCorrupt,
                      std::string(operation).append(": ").append(what))
          : StatusOf(CodeOfMeaning(meaning, phase), operation, what);
  return failure;
}

Failure FailureOfLostConnection(std::string_view operation, Phase phase) {
  return {.status =
              StatusOf(LostCode(phase), operation, "the connection was lost")};
}

Failure FailureOfUnconfirmedWrite(std::string_view operation) {
  return {.status = StatusOf(absl::StatusCode::kUnknown, operation,
                             "the commit was not confirmed (SQLSTATE 01000)")};
}

Failure FailureOfCurrentException(std::string_view operation, Phase phase) {
  // The order matters. In libpqxx 6 those for class 40 are no sql_error and
  // have no SQLSTATE; 42501 has an empty one even in 7.10.
  try {
    throw;
  } catch (const pqxx::in_doubt_error&) {
    return FailureOfLostConnection(operation, phase);
  } catch (const pqxx::statement_completion_unknown&) {
    return FailureOfSqlState(operation, "40003", phase);
  } catch (const pqxx::serialization_failure&) {
    return FailureOfSqlState(operation, "40001", phase);
  } catch (const pqxx::deadlock_detected&) {
    return FailureOfSqlState(operation, "40P01", phase);
  } catch (const pqxx::transaction_rollback&) {
    return FailureOfSqlState(operation, "40000", phase);
  } catch (const pqxx::too_many_connections&) {
    return FailureOfSqlState(operation, "53300", phase);
  } catch (const pqxx::broken_connection& error) {
    if (phase != Phase::kConnect) {
      return FailureOfLostConnection(operation, phase);
    }
    return {.status = StatusOf(absl::StatusCode::kUnavailable, operation,
                               ConnectFailureCause(error.what()))};
  } catch (const pqxx::insufficient_privilege&) {
    return FailureOfSqlState(operation, "42501", phase);
  } catch (const pqxx::sql_error& error) {
    if (error.sqlstate().empty()) return FailureOfUnknownKind(operation, phase);
    return FailureOfSqlState(operation, error.sqlstate(), phase);
  } catch (const pqxx::failure& error) {
    if (phase == Phase::kConnect) {
      return {.status = StatusOf(absl::StatusCode::kUnavailable, operation,
                                 ConnectFailureCause(error.what()))};
    }
    return FailureOfUnknownKind(operation, phase);
  } catch (...) {
    return FailureOfUnknownKind(operation, phase);
  }
}

bool IsUnconfirmedWriteNotice(std::string_view notice) {
  // "WARNING:  01000: canceling the wait for synchronous replication ..."
  constexpr std::string_view kAfterSeverity = ":  ";
  const std::size_t end = notice.find(kAfterSeverity);
  if (end == std::string_view::npos) return false;
  const std::string_view rest = notice.substr(end + kAfterSeverity.size());
  return rest.substr(0, 6) == "01000:" || rest.substr(0, 6) == "57P01:";
}

}  // namespace idempotency
