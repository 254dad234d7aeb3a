#include "server/store/postgres/durability.h"

#include "absl/strings/str_cat.h"

namespace idempotency {
namespace {

absl::Status NotDurable(const char* event, const char* remedy) {
  return absl::FailedPreconditionError(
      absl::StrCat("acknowledged records may be lost in a ", event, ": set ",
                   remedy, ", or ask for less with --require_durability"));
}

absl::Status CheckCrash(const DurabilitySettings& settings) {
  if (settings.fsync != "on") return NotDurable("crash", "fsync to on");
  if (settings.full_page_writes != "on") {
    return NotDurable("crash", "full_page_writes to on");
  }
  if (settings.synchronous_commit == "off") {
    return NotDurable("crash",
                      "synchronous_commit to on for the server's role");
  }
  return absl::OkStatus();
}

absl::Status CheckFailover(const DurabilitySettings& settings) {
  if (settings.synchronous_standby_names.empty()) {
    return NotDurable("failover", "synchronous_standby_names");
  }
  // With remote_write, the standby's machine must not crash beside.
  if (settings.synchronous_commit != "on" &&
      settings.synchronous_commit != "remote_apply") {
    return NotDurable("failover",
                      "synchronous_commit to on or remote_apply for the "
                      "server's role");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckDurability(const DurabilitySettings& settings,
                             Durability required) {
  if (required == Durability::kAny) return absl::OkStatus();
  const absl::Status crash = CheckCrash(settings);
  if (!crash.ok() || required == Durability::kCrash) return crash;
  return CheckFailover(settings);
}

}  // namespace idempotency
