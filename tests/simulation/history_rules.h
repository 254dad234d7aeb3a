// The checker's own idea of a record's state.
#ifndef IDEMPOTENCY_TESTS_SIMULATION_HISTORY_RULES_H_
#define IDEMPOTENCY_TESTS_SIMULATION_HISTORY_RULES_H_

#include "absl/time/time.h"
#include "server/core/types.h"

namespace idempotency {

inline bool IsUnfinished(const Record& record) {
  return record.state == RecordState::kUnfinished;
}

inline bool CountsAsNone(const Record* row, absl::Time now) {
  return row == nullptr ||
         (row->expires_at <= now && !(row->held && IsUnfinished(*row)));
}

inline bool IsGivenUp(const Record& record) {
  return record.gave_up != GaveUp::kNo;
}

inline bool IsOver(const Record& record, absl::Time now) {
  return IsGivenUp(record) || record.lease_expires_at <= now;
}

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_HISTORY_RULES_H_
