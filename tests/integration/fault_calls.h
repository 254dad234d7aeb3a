// Requests, single calls and what was decided, for the tests that break things
// around the server.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_FAULT_CALLS_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_FAULT_CALLS_H_

#include <grpcpp/client_context.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "idempotency/v1/idempotency.grpc.pb.h"
#include "tests/support/replica.h"

namespace idempotency {

inline constexpr char kFaultScope[] = "faults";
inline constexpr std::chrono::milliseconds kCallTimeout{10'000};

// The value, or an exception with the status, which fails the test. Only on
// the test's own thread.
template <typename T>
T Require(absl::StatusOr<T> value) {
  if (!value.ok()) throw std::runtime_error(value.status().ToString());
  return *std::move(value);
}
void RequireOk(const absl::Status& status);

// What the environment asks of a run: IDEMPOTENCY_SEED, else a random one, and
// printed, so that the run can be repeated; and IDEMPOTENCY_LONG.
unsigned SeedOfRun();
bool IsLongRun();

// A replica that serves; an exception if it does not come to that.
std::unique_ptr<Replica> StartReplica(const std::string& database,
                                      std::vector<std::string> flags = {});

google::protobuf::Duration DurationOf(std::chrono::milliseconds duration);
std::chrono::milliseconds MillisecondsOf(
    const google::protobuf::Duration& duration);

// A key that no other test has.
std::string RandomKey();

// A claim with a new claim token, and the hash that belongs to the key.
v1::ClaimRequest ClaimOf(const std::string& key,
                         const std::string& policy = "");
v1::ClaimRequest ClaimFor(std::chrono::milliseconds lease,
                          const std::string& key,
                          const std::string& policy = "");
// The same request by another caller: a claim token of its own.
v1::ClaimRequest ByAnother(v1::ClaimRequest claim);

v1::Response ResponseOf(int status_code, const std::string& body);
v1::FinalizeRequest FinalizeOf(const v1::ClaimRequest& claim, int status_code,
                               const std::string& body);
v1::ReleaseRequest ReleaseOf(const v1::ClaimRequest& claim,
                             v1::ReleaseRequest::Disposition disposition);
v1::LookupRequest LookupOf(const v1::ClaimRequest& claim);

// Each sends the call once, without any retry.
using Stub = v1::IdempotencyService::StubInterface;
absl::StatusOr<v1::ClaimResponse> Send(
    Stub& stub, const v1::ClaimRequest& request,
    std::chrono::milliseconds timeout = kCallTimeout);
absl::StatusOr<v1::FinalizeResponse> Send(
    Stub& stub, const v1::FinalizeRequest& request,
    std::chrono::milliseconds timeout = kCallTimeout);
absl::StatusOr<v1::ReleaseResponse> Send(
    Stub& stub, const v1::ReleaseRequest& request,
    std::chrono::milliseconds timeout = kCallTimeout);
absl::StatusOr<v1::LookupResponse> Send(
    Stub& stub, const v1::LookupRequest& request,
    std::chrono::milliseconds timeout = kCallTimeout);

// What was decided, in a word: "Claimed", "RESULT_RECORDED", "released",
// "STATE_FINALIZED"; for an error its reason, or its code where it has
// none, with the message of an UNAVAILABLE that no server made.
std::string Decided(const absl::Status& status);
std::string Decided(const absl::StatusOr<v1::ClaimResponse>& response);
std::string Decided(const absl::StatusOr<v1::FinalizeResponse>& response);
std::string Decided(const absl::StatusOr<v1::ReleaseResponse>& response);
std::string Decided(const absl::StatusOr<v1::LookupResponse>& response);

// Claims until the answer is neither InProgress nor UNAVAILABLE, at most for
// `patience`.
absl::StatusOr<v1::ClaimResponse> ClaimPatiently(
    Stub& stub, const v1::ClaimRequest& claim,
    std::chrono::milliseconds patience = std::chrono::seconds(20));

// A response whose Finalize was acknowledged.
struct Recorded {
  v1::ClaimRequest claim;
  v1::Response response;
};

// Claims each key once more and returns what is wrong with the answers: empty
// when each replays its response byte for byte.
std::vector<std::string> MissingReplays(Stub& stub,
                                        const std::vector<Recorded>& recorded);

// Whether the status is that of a call that cannot be served for the time
// being, at whichever end that was found.
bool IsUnserved(const absl::Status& status);

// The database URI `uri` with another port of 127.0.0.1.
std::string ThroughPort(const std::string& uri, int port);

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_FAULT_CALLS_H_
