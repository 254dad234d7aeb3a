// Requests and answers of the coordinator as events of a history.
#ifndef IDEMPOTENCY_TESTS_FAULT_CALLER_EVENTS_H_
#define IDEMPOTENCY_TESTS_FAULT_CALLER_EVENTS_H_

#include <string>

#include "absl/status/status.h"
#include "idempotency/v1/idempotency.pb.h"
#include "tests/fault/checker/history.h"

namespace idempotency::fault {

// What the request says; op, t, path and deadline are the caller's to fill in.
CallEvent CallOf(const v1::ClaimRequest& request);
CallEvent CallOf(const v1::FinalizeRequest& request);
CallEvent CallOf(const v1::LookupRequest& request);
CallEvent CallOf(const v1::ReleaseRequest& request);

// What the answer says; op and t are the caller's to fill in.
AnswerEvent AnswerOf(const v1::ClaimResponse& response);
AnswerEvent AnswerOf(const v1::FinalizeResponse& response);
AnswerEvent AnswerOf(const v1::LookupResponse& response);
AnswerEvent AnswerOf(const v1::ReleaseResponse& response);
AnswerEvent AnswerOf(const absl::Status& error);

// What was answered, in a word: "claimed"; "took_over" where it was
// told of an abandoned attempt; "CLAIM_SUPERSEDED"; the code of an
// error without a reason.
std::string WordOf(const AnswerEvent& answer);

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CALLER_EVENTS_H_
