// How much of an answer is what somebody recorded: the part that may be long.
#ifndef IDEMPOTENCY_SERVER_CORE_RECORDED_BYTES_H_
#define IDEMPOTENCY_SERVER_CORE_RECORDED_BYTES_H_

#include <cstddef>
#include <variant>

#include "server/core/types.h"

namespace idempotency {

inline std::size_t RecordedBytes(const Response& response) {
  return response.headers.size() + response.body.size();
}
inline std::size_t RecordedBytes(const ClaimOutcome& outcome) {
  const auto* const replay = std::get_if<Replay>(&outcome);
  return replay == nullptr ? 0 : RecordedBytes(replay->response);
}
inline std::size_t RecordedBytes(const LookupOutcome& outcome) {
  return RecordedBytes(outcome.record.response);
}
inline std::size_t RecordedBytes(const FinalizeOutcome&) { return 0; }
inline std::size_t RecordedBytes(const ReleaseOutcome&) { return 0; }

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_RECORDED_BYTES_H_
