#include "server/store/postgres/durability.h"

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace idempotency {
namespace {

constexpr Statement kReadDurability = {"read_durability", R"sql(
SELECT
  current_setting('fsync'),
  current_setting('synchronous_commit'),
  current_setting('synchronous_standby_names')
)sql",
                                       Effect::kRead, Plan::kFresh};

absl::Status NotDurable(const std::string& event, const std::string& reason) {
  return absl::FailedPreconditionError(
      absl::StrCat("acknowledged records may be lost in a ", event, ": ",
                   reason, ", or ask for less with --require_durability"));
}

absl::Status CheckCrash(const std::string& fsync, const std::string& commit) {
  if (fsync != "on") {
    return NotDurable("crash", "set PostgreSQL's fsync to on");
  }
  if (commit == "off") {
    return NotDurable("crash",
                      "set synchronous_commit to on for the server's role");
  }
  return absl::OkStatus();
}

absl::Status CheckFailover(const std::string& commit,
                           const std::string& standbys) {
  if (standbys.empty()) {
    return NotDurable("failover",
                      "name a standby in synchronous_standby_names");
  }
  // With remote_write, the standby's machine must not crash beside.
  if (commit != "on" && commit != "remote_apply") {
    return NotDurable("failover",
                      "set synchronous_commit to on or remote_apply for the "
                      "server's role");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckDurability(StatementRunner& runner, Durability required) {
  if (required == Durability::kAny) return absl::OkStatus();
  const absl::StatusOr<pqxx::result> found = runner.Run(kReadDurability, {});
  if (!found.ok()) return found.status();
  const pqxx::row settings = (*found)[0];
  const std::string& commit = settings[1].c_str();
  if (absl::Status status = CheckCrash(settings[0].c_str(), commit);
      !status.ok() || required == Durability::kCrash) {
    return status;
  }
  return CheckFailover(commit, settings[2].c_str());
}

}  // namespace idempotency
