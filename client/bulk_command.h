// The four calls as commands of the stream `Bulk`: what differs between them.
// For async_client.cc and bulk_stream.cc; not installed.
#ifndef IDEMPOTENCY_CLIENT_BULK_COMMAND_H_
#define IDEMPOTENCY_CLIENT_BULK_COMMAND_H_

#include "idempotency/v1/idempotency.pb.h"

namespace idempotency::internal {

// Whether every string may be in a message. One that is not UTF-8 makes the
// server refuse the whole message, with the commands of others.
bool IsText(const v1::ClaimRequest& request);
bool IsText(const v1::FinalizeRequest& request);
bool IsText(const v1::LookupRequest& request);
bool IsText(const v1::ReleaseRequest& request);

// Of a Finalize's headers.
bool NamesAreText(const v1::Response& response);

// Without a copy: TakeRequestOut() before `command` ends.
void LendRequest(v1::ClaimRequest& request, v1::Command& command);
void LendRequest(v1::FinalizeRequest& request, v1::Command& command);
void LendRequest(v1::LookupRequest& request, v1::Command& command);
void LendRequest(v1::ReleaseRequest& request, v1::Command& command);
void TakeRequestOut(v1::Command& command);

// False: the result is not the answer of that call.
bool TakeAnswer(v1::Result& result, v1::ClaimResponse& answer);
bool TakeAnswer(v1::Result& result, v1::FinalizeResponse& answer);
bool TakeAnswer(v1::Result& result, v1::LookupResponse& answer);
bool TakeAnswer(v1::Result& result, v1::ReleaseResponse& answer);

}  // namespace idempotency::internal

#endif  // IDEMPOTENCY_CLIENT_BULK_COMMAND_H_
