#include "server/core/evidence.h"

#include "absl/status/status.h"
#include "server/core/limits.h"

namespace idempotency {
namespace {

// What is told of evidence that could not be written: whatever the reason, it
// may be possible later.
absl::Status NotKept(const absl::Status& status) {
  const bool transient = status.code() == absl::StatusCode::kUnavailable ||
                         status.code() == absl::StatusCode::kUnknown ||
                         status.code() == absl::StatusCode::kAborted;
  return transient ? status
                   : absl::UnavailableError("the evidence can't be written");
}

}  // namespace

void KeepEvidence(RecordTable& table, Batch<FinalizeCommand> finalizes,
                  const std::vector<std::size_t>& refused, Metrics& metrics,
                  std::vector<absl::StatusOr<FinalizeOutcome>>& answers) {
  if (refused.empty()) return;
  std::vector<Conflict> conflicts;
  conflicts.reserve(refused.size());
  std::vector<const Conflict*> items;
  for (const std::size_t i : refused) {
    conflicts.push_back({.id = finalizes[i]->id,
                         .claim_token = finalizes[i]->claim_token,
                         .response_digest = finalizes[i]->response_digest,
                         .status_code = finalizes[i]->response.status_code});
    items.push_back(&conflicts.back());
  }
  absl::StatusOr<std::vector<bool>> kept = table.KeepConflicts(items);
  if (kept.ok() && kept->size() != items.size()) {
    kept = absl::UnknownError("another number of conflicts was kept");
  }
  for (std::size_t k = 0; k < refused.size(); ++k) {
    if (!kept.ok()) {
      answers[refused[k]] = NotKept(kept.status());
      continue;
    }
    Count(conflicts[k].status_code < limits::kServerErrorMin
              ? metrics.conflicts
              : metrics.conflicts_server_error);
    if (!(*kept)[k]) Count(metrics.conflicts_not_kept);
  }
}

}  // namespace idempotency
