// How calls are answered that no statement settles.
#ifndef IDEMPOTENCY_SERVER_CORE_CALL_ANSWERS_H_
#define IDEMPOTENCY_SERVER_CORE_CALL_ANSWERS_H_

#include <variant>

#include "absl/status/status.h"
#include "server/core/call.h"
#include "server/core/errors.h"

namespace idempotency {

inline void AnswerWithError(Call& call, const absl::Status& error) {
  std::visit([&](auto& request) { std::move(request.done)(error); },
             call.request);
}

inline bool CallerIsGone(const Call& call) {
  return call.context.cancelled && call.context.cancelled();
}

// May the call have been carried out?
inline bool IsLost(const Call& call) {
  return call.setback.code() == absl::StatusCode::kUnknown;
}

// A claim that once was told InProgress, which is an answer that holds, and
// has had no statement since that may have granted it.
inline bool IsWaiter(const Call& call) {
  return call.seen != nullptr && !IsLost(call);
}

inline absl::Status Draining() {
  return MakeError(Reason::kDraining,
                   "this replica is shutting down; try again on another one");
}

// What a call is told whose time is up.
inline absl::Status OutOfTime(const Call& call) {
  switch (call.setback.code()) {
    case absl::StatusCode::kOk:
      return MakeError(Reason::kDeadlineExceeded,
                       "the deadline passed before the database was asked");
    case absl::StatusCode::kUnknown:
      return MakeError(Reason::kOutcomeUnknown,
                       "the database's answer was lost; send the same call "
                       "again with the same claim token");
    default:
      return MakeError(Reason::kStoreUnavailable,
                       "the database can't be used just now; try again");
  }
}

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_CALL_ANSWERS_H_
