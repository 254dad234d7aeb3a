#include "client/operation.h"

#include <openssl/asn1.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

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

bool IsUtf8(const std::string& text) {
  constexpr unsigned long kSurrogateFirst = 0xd800;
  constexpr unsigned long kSurrogateLast = 0xdfff;
  constexpr unsigned long kLast = 0x10ffff;
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  const auto* const end = bytes + text.size();
  while (bytes != end) {
    const std::ptrdiff_t left = std::min<std::ptrdiff_t>(end - bytes, 8);
    unsigned long code = 0;
    const int size = UTF8_getc(bytes, static_cast<int>(left), &code);
    if (size <= 0 || code > kLast ||
        (code >= kSurrogateFirst && code <= kSurrogateLast)) {
      return false;
    }
    bytes += size;
  }
  return true;
}

absl::Status CheckText(const Operation& operation) {
  const std::pair<const char*, const std::string&> texts[] = {
      {"scope", operation.scope},
      {"key", operation.key},
      {"policy", operation.policy},
      {"owner", operation.owner}};
  for (const auto& [name, text] : texts) {
    if (!IsUtf8(text)) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is not UTF-8"));
    }
  }
  return absl::OkStatus();
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
    case RunOutcome::kInvalid:
      return "Invalid";
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

bool HasNoCoordinator(const RunResult& result) {
  if (result.outcome != RunOutcome::kUnavailable) return false;
  switch (result.status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    // An outage that lasts soon leaves no room, since each claim that was not
    // answered is still given back in the background.
    case absl::StatusCode::kResourceExhausted:
      return true;
    default:
      return false;
  }
}

}  // namespace idempotency
