#include "client/bulk_command.h"

#include <algorithm>

#include "client/operation.h"

namespace idempotency::internal {
namespace {

template <typename Request>
bool RecordIsText(const Request& request) {
  return IsUtf8(request.scope()) && IsUtf8(request.key());
}

}  // namespace

bool NamesAreText(const v1::Response& response) {
  return std::all_of(
      response.headers().begin(), response.headers().end(),
      [](const v1::Header& header) { return IsUtf8(header.name()); });
}

bool IsText(const v1::ClaimRequest& request) {
  return RecordIsText(request) && IsUtf8(request.claim_token()) &&
         IsUtf8(request.policy()) && IsUtf8(request.owner());
}

bool IsText(const v1::FinalizeRequest& request) {
  return RecordIsText(request) && IsUtf8(request.claim_token()) &&
         NamesAreText(request.response());
}

bool IsText(const v1::LookupRequest& request) { return RecordIsText(request); }

bool IsText(const v1::ReleaseRequest& request) {
  return RecordIsText(request) && IsUtf8(request.claim_token());
}

void LendRequest(v1::ClaimRequest& request, v1::Command& command) {
  command.unsafe_arena_set_allocated_claim(&request);
}

void LendRequest(v1::FinalizeRequest& request, v1::Command& command) {
  command.unsafe_arena_set_allocated_finalize(&request);
}

void LendRequest(v1::LookupRequest& request, v1::Command& command) {
  command.unsafe_arena_set_allocated_lookup(&request);
}

void LendRequest(v1::ReleaseRequest& request, v1::Command& command) {
  command.unsafe_arena_set_allocated_release(&request);
}

void TakeRequestOut(v1::Command& command) {
  switch (command.command_case()) {
    case v1::Command::kClaim:
      command.unsafe_arena_release_claim();
      break;
    case v1::Command::kFinalize:
      command.unsafe_arena_release_finalize();
      break;
    case v1::Command::kLookup:
      command.unsafe_arena_release_lookup();
      break;
    case v1::Command::kRelease:
      command.unsafe_arena_release_release();
      break;
    case v1::Command::COMMAND_NOT_SET:
      break;
  }
}

bool TakeAnswer(v1::Result& result, v1::ClaimResponse& answer) {
  if (!result.has_claim()) return false;
  answer.Swap(result.mutable_claim());
  return true;
}

bool TakeAnswer(v1::Result& result, v1::FinalizeResponse& answer) {
  if (!result.has_finalize()) return false;
  answer.Swap(result.mutable_finalize());
  return true;
}

bool TakeAnswer(v1::Result& result, v1::LookupResponse& answer) {
  if (!result.has_lookup()) return false;
  answer.Swap(result.mutable_lookup());
  return true;
}

bool TakeAnswer(v1::Result& result, v1::ReleaseResponse& answer) {
  if (!result.has_release()) return false;
  answer.Swap(result.mutable_release());
  return true;
}

}  // namespace idempotency::internal
