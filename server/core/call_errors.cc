#include "server/core/call_errors.h"

#include <utility>

#include "server/core/errors.h"

namespace idempotency {

bool CallerIsGone(const Call& call) {
  return call.context.cancelled && call.context.cancelled();
}

bool IsLost(const Call& call) {
  return call.setback.code() == absl::StatusCode::kUnknown;
}

bool IsWaiter(const Call& call) {
  return call.seen != nullptr && !IsLost(call);
}

void Answer(Call& call, const absl::Status& error) {
  std::visit([&](auto& request) { std::move(request.done)(error); },
             call.request);
}

absl::Status Unavailable() {
  return MakeError(Reason::kStoreUnavailable,
                   "the database can't be used just now; try again");
}

absl::Status Draining() {
  return MakeError(Reason::kDraining,
                   "this replica is shutting down; try again on another one");
}

absl::Status OutOfTime(const Call& call) {
  switch (call.setback.code()) {
    case absl::StatusCode::kOk:
      return MakeError(Reason::kDeadlineExceeded,
                       "the deadline passed before the database was asked");
    case absl::StatusCode::kUnknown:
      return MakeError(Reason::kOutcomeUnknown,
                       "the database's answer was lost; send the same call "
                       "again with the same claim token");
    default:
      return Unavailable();
  }
}

}  // namespace idempotency
