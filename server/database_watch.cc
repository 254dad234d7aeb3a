#include "server/database_watch.h"

#include <chrono>
#include <utility>

#include "absl/status/statusor.h"

namespace idempotency {
namespace {

// A changed policy must reach every replica within 5 s.
constexpr absl::Duration kRest = absl::Seconds(2);
constexpr absl::Duration kRestWhileAway = absl::Milliseconds(500);
// A sound database answers within the timeouts of a statement or a connect.
constexpr std::chrono::seconds kStuckAfter{5};

}  // namespace

DatabaseWatch::DatabaseWatch(Parts parts)
    : parts_(std::move(parts)), migrated_(parts_.migrate == nullptr) {}

absl::Duration DatabaseWatch::Look() {
  looking_since_ = parts_.clock.Now();
  const absl::Status status = LookOnce();
  looking_since_ = SteadyTime::max();
  parts_.serving(status.ok());
  if (status.ok()) {
    if (!served_) {
      parts_.log.Write(Severity::kInfo,
                       parts_.activity + ": the database answers", {});
    }
    served_ = true;
    last_error_.clear();
    return kRest;
  }
  // The same error twice is no news.
  const std::string error = status.ToString();
  if (error != last_error_) {
    parts_.log.Write(Severity::kError,
                     "not " + parts_.activity + ": the database can't be used",
                     ErrorField(status));
  }
  last_error_ = error;
  served_ = false;
  // The database that comes back may be another one.
  schema_checked_ = false;
  return kRestWhileAway;
}

bool DatabaseWatch::IsStuck() const {
  const SteadyTime since = looking_since_;
  return since != SteadyTime::max() && parts_.clock.Now() - since > kStuckAfter;
}

absl::Status DatabaseWatch::LookOnce() {
  if (!migrated_) {
    const absl::Status status = parts_.migrate();
    if (!status.ok()) return status;
    migrated_ = true;
  }
  if (!schema_checked_) {
    const absl::Status status = parts_.check_schema();
    if (!status.ok()) return status;
    schema_checked_ = true;
  }
  if (parts_.check_durability != nullptr) {
    const absl::Status status = parts_.check_durability();
    if (!status.ok()) return status;
  }
  absl::StatusOr<FleetRules> rules = parts_.store->ReadRules();
  if (!rules.ok()) return rules.status();
  parts_.rules.Set(*std::move(rules));
  return absl::OkStatus();
}

}  // namespace idempotency
