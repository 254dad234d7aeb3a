#include "client/operation.h"

namespace idempotency {

v1::Response MakeResponse(int status_code, std::string_view body,
                          std::string_view content_type) {
  v1::Response response;
  response.set_status_code(status_code);
  response.set_body(body.data(), body.size());
  if (!content_type.empty()) {
    v1::Header* const header = response.add_headers();
    header->set_name("content-type");
    header->set_value(content_type.data(), content_type.size());
  }
  return response;
}

FunctionResult Respond(int status_code, std::string_view body,
                       std::string_view content_type) {
  return Executed{MakeResponse(status_code, body, content_type)};
}

std::string_view NameOf(RunOutcome outcome) {
  switch (outcome) {
    case RunOutcome::kExecuted:
      return "Executed";
    case RunOutcome::kReplayed:
      return "Replayed";
    case RunOutcome::kResolved:
      return "Resolved";
    case RunOutcome::kWinner:
      return "Winner";
    case RunOutcome::kInProgress:
      return "InProgress";
    case RunOutcome::kMismatch:
      return "Mismatch";
    case RunOutcome::kInDoubt:
      return "InDoubt";
    case RunOutcome::kUnavailable:
      return "Unavailable";
    case RunOutcome::kHungUp:
      return "HungUp";
    case RunOutcome::kNothingHappened:
      return "NothingHappened";
    case RunOutcome::kUnknown:
      return "Unknown";
    case RunOutcome::kConflict:
      return "Conflict";
  }
  return "?";
}

}  // namespace idempotency
