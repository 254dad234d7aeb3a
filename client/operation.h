// An operation that is to be executed once, and what can become of it.
#ifndef IDEMPOTENCY_CLIENT_OPERATION_H_
#define IDEMPOTENCY_CLIENT_OPERATION_H_

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "idempotency/v1/idempotency.pb.h"

namespace idempotency {

struct Operation {
  // As in the Claim, with the limits of the contract.
  std::string scope;
  std::string key;
  std::string request_hash;  // see request_hash.h
  std::string policy = {};   // empty: the scope's
  std::string owner = {};    // who is asking, for people

  // Of the claim. Unset: the policy's.
  std::optional<std::chrono::milliseconds> lease = std::nullopt;
  // Whether the lease is renewed while the function runs, and for how long
  // after the grant at most. Unset: ten leases.
  bool renew = true;
  std::optional<std::chrono::milliseconds> max_run_time = std::nullopt;
  // How long to wait for another owner's end; zero: not at all.
  std::chrono::milliseconds wait{30'000};
  // How long the coordinator may take to answer a claim, beside what it waits
  // (at most 5 s a claim), or a lookup.
  std::chrono::milliseconds claim_timeout{5'000};
  // How long the result is held back for the answer to Finalize or Release.
  // They are sent on for one lease if need be.
  std::chrono::milliseconds finalize_timeout{5'000};
};

// ------------------------------------------------- what the function says

// Executed: record this response and answer with it. A status of 500 or more
// is recorded only where the policy says so; otherwise the next one takes over.
struct Executed {
  v1::Response response;
};
// This attempt did nothing: the claim is given back, and the next one starts
// afresh. (One that had taken over speaks for itself only: what it was told of
// the earlier attempt stays.)
struct NothingHappened {
  absl::Status why;
};
// It may have happened, or half of it: whoever comes next is told.
struct OutcomeUnknown {
  absl::Status why;
};
using FunctionResult = std::variant<Executed, NothingHappened, OutcomeUnknown>;

// A status, a body, and its type unless that is empty.
v1::Response MakeResponse(int status_code, std::string_view body,
                          std::string_view content_type = "application/json");

// Executed, with that response.
FunctionResult Respond(int status_code, std::string_view body,
                       std::string_view content_type = "application/json");

// ---------------------------- what the channel says of an abandoned attempt

// It was executed: record this response and answer with it.
struct WasExecuted {
  v1::Response response;
};
// It was not: the function runs now if the claim still holds, with the same
// downstream key, so that an earlier attempt that wakes up late does no harm.
struct NeverExecuted {};
// The channel cannot tell: the operation stays in doubt.
struct StillUnknown {
  absl::Status why;
};
using Resolution = std::variant<WasExecuted, NeverExecuted, StillUnknown>;

// ------------------------------------------------------------- the result

enum class RunOutcome {
  // With a response:
  kExecuted,  // the function's
  kReplayed,  // recorded earlier
  kResolved,  // the resolver's
  kWinner,    // the function ran, but another attempt's response counts

  // Without, and the function did not run:
  kInvalid,      // the coordinator does not take such a request, or no function
  kInProgress,   // another owner still runs; ABORTED, with RetryInfo
  kMismatch,     // the key belongs to a different request
  kInDoubt,      // an abandoned attempt has to be resolved first
  kUnavailable,  // the coordinator could not be asked, or it refused, or the
                 // claim was lost before the function could start
  kHungUp,       // the caller went away before the claim was granted

  // Without, and the function ran:
  kNothingHappened,  // it said so
  kUnknown,          // it said so, threw, or its response cannot be recorded
  kConflict,         // its response was refused, and no other was found
};

// Whether gRPC can send it as a string.
bool IsUtf8(const std::string& text);
// INVALID_ARGUMENT unless every text in it is UTF-8.
absl::Status CheckText(const Operation& operation);

// "Executed", "InProgress" and so on.
std::string_view NameOf(RunOutcome outcome);

struct RunResult {
  RunOutcome outcome = RunOutcome::kUnavailable;
  // With has_response(). Body or headers may have been left out of the record;
  // the flags in it say so.
  v1::Response response = {};
  // Of kExecuted and kResolved: false when the record does not hold the
  // response, because the coordinator did not answer in time, or because its
  // status of 500 or more is not recorded by the policy.
  bool recorded = false;
  // OK with a response; else why there is none. The service's errors keep
  // their details (status.h).
  absl::Status status = absl::OkStatus();
  // Of kInProgress: when to come back.
  std::chrono::nanoseconds retry_after{0};

  bool has_response() const { return outcome <= RunOutcome::kWinner; }
};

// Whether there was no coordinator to be had for the Claim: it was UNAVAILABLE
// in any form, OUTCOME_UNKNOWN too, which may have been granted; or it did not
// answer in time; or this process has as many operations under way as
// RunOnceOptions allows. Any other error says something about the record.
bool HasNoCoordinator(const RunResult& result);

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_OPERATION_H_
