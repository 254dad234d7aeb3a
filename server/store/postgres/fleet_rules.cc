#include "server/store/postgres/fleet_rules.h"

#include <optional>
#include <string>
#include <utility>

#include "server/store/postgres/pg_row.h"
#include "server/store/postgres/statements.h"

namespace idempotency {
namespace {

std::optional<OnAbandoned> ParseOnAbandoned(std::string_view text) {
  if (text == "take_over") return OnAbandoned::kTakeOver;
  if (text == "hold") return OnAbandoned::kHold;
  return std::nullopt;
}

std::optional<OnServerError> ParseOnServerError(std::string_view text) {
  if (text == "release") return OnServerError::kRelease;
  if (text == "record") return OnServerError::kRecord;
  if (text == "hold") return OnServerError::kHold;
  return std::nullopt;
}

absl::Status BadPolicy(std::string_view name, std::string_view why) {
  return absl::FailedPreconditionError(std::string("ttl_policies, policy \"")
                                           .append(name)
                                           .append("\": ")
                                           .append(why));
}

std::optional<absl::Duration> DurationOf(std::optional<std::int64_t> micros) {
  if (!micros.has_value()) return std::nullopt;
  return absl::Microseconds(*micros);
}

// In the order of kReadPolicies.
absl::StatusOr<Policy> ReadPolicy(PgRow row) {
  Policy policy;
  policy.name = row.Text(0);
  policy.lease = absl::Microseconds(row.Int8(1));
  policy.max_lease = absl::Microseconds(row.Int8(2));
  policy.retention = DurationOf(row.OptionalInt8(3));
  policy.retention_after_finalize = DurationOf(row.OptionalInt8(4));
  const auto on_abandoned = ParseOnAbandoned(row.Text(5));
  const auto on_server_error = ParseOnServerError(row.Text(6));
  if (!row.ok() || !on_abandoned.has_value() || !on_server_error.has_value()) {
    return BadPolicy(policy.name,
                     "it says something this server does not know");
  }
  policy.on_abandoned = *on_abandoned;
  policy.on_server_error = *on_server_error;
  if (absl::Status status = CheckPolicy(policy); !status.ok()) {
    return BadPolicy(policy.name, std::string_view(status.message().data(),
                                                   status.message().size()));
  }
  return policy;
}

absl::Status ReadScopes(StatementRunner& runner, FleetRules& rules) {
  const absl::StatusOr<pqxx::result> result =
      runner.Run(statements::kReadScopes, {});
  if (!result.ok()) return result.status();
  for (const pqxx::row& fields : *result) {
    PgRow row(fields);
    rules.scopes[std::string(row.Text(0))] = {
        .policy = std::string(row.Text(1)), .enforced = row.Bool(2)};
    if (!row.ok()) {
      return absl::FailedPreconditionError(
          "scope_policies has a row that this server cannot read");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadPolicies(StatementRunner& runner, FleetRules& rules) {
  const absl::StatusOr<pqxx::result> result =
      runner.Run(statements::kReadPolicies, {});
  if (!result.ok()) return result.status();
  for (const pqxx::row& fields : *result) {
    absl::StatusOr<Policy> policy = ReadPolicy(PgRow(fields));
    if (!policy.ok()) return policy.status();
    std::string name = policy->name;
    rules.policies[std::move(name)] = *std::move(policy);
  }
  if (rules.policies.count("default") == 0) {
    return BadPolicy("default", "it is missing");
  }
  return absl::OkStatus();
}

absl::Status ReadNamespace(StatementRunner& runner, FleetRules& rules) {
  const absl::StatusOr<pqxx::result> result =
      runner.Run(statements::kReadNamespace, {});
  if (!result.ok()) return result.status();
  std::optional<Uuid> found;
  if (!result->empty()) found = ParseUuid(PgRow((*result)[0]).Text(0));
  if (!found.has_value() || found->is_nil()) {
    return absl::FailedPreconditionError(
        "idempotency_settings has no UUID as downstream_namespace: restore "
        "the one in your backup, since all downstream keys derive from it");
  }
  rules.downstream_namespace = *found;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FleetRules> ReadFleetRules(StatementRunner& runner) {
  FleetRules rules;
  // Scopes before policies: a policy that a scope names when it is read is
  // still there afterwards, since its row protects it.
  for (const auto read : {ReadScopes, ReadPolicies, ReadNamespace}) {
    if (absl::Status status = read(runner, rules); !status.ok()) {
      return status;
    }
  }
  return rules;
}

}  // namespace idempotency
