#include "tests/integration/fault_calls.h"

#include <google/protobuf/util/message_differencer.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "client/status.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kHashBytes = 32;

template <typename Request, typename Response>
absl::StatusOr<Response> SendOnce(
    Stub& stub,
    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                 Response*),
    const Request& request, milliseconds timeout) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  Response response;
  const absl::Status status =
      ToAbslStatus((stub.*method)(&context, request, &response));
  if (!status.ok()) return status;
  return response;
}

}  // namespace

void RequireOk(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

unsigned SeedOfRun() {
  const char* const given = std::getenv("IDEMPOTENCY_SEED");
  const unsigned seed = given != nullptr
                            ? static_cast<unsigned>(std::atoi(given))
                            : std::random_device()();
  std::cout << "IDEMPOTENCY_SEED=" << seed << "\n";
  return seed;
}

bool IsLongRun() { return std::getenv("IDEMPOTENCY_LONG") != nullptr; }

std::unique_ptr<Replica> StartReplica(const std::string& database,
                                      std::vector<std::string> flags) {
  Replica::Options options;
  options.database = database;
  options.flags = std::move(flags);
  return Require(Replica::Start(std::move(options)));
}

google::protobuf::Duration DurationOf(milliseconds duration) {
  google::protobuf::Duration proto;
  proto.set_seconds(duration.count() / 1000);
  proto.set_nanos(static_cast<std::int32_t>(duration.count() % 1000) *
                  1'000'000);
  return proto;
}

milliseconds MillisecondsOf(const google::protobuf::Duration& duration) {
  return milliseconds(duration.seconds() * 1000 + duration.nanos() / 1'000'000);
}

std::string RandomKey() { return NewClaimToken(); }

v1::ClaimRequest ClaimOf(const std::string& key, const std::string& policy) {
  v1::ClaimRequest claim;
  claim.set_scope(kFaultScope);
  claim.set_key(key);
  std::string hash = key;
  hash.resize(kHashBytes, '#');
  claim.set_request_hash(hash);
  claim.set_claim_token(NewClaimToken());
  claim.set_policy(policy);
  return claim;
}

v1::ClaimRequest ClaimFor(milliseconds lease, const std::string& key,
                          const std::string& policy) {
  v1::ClaimRequest claim = ClaimOf(key, policy);
  *claim.mutable_lease() = DurationOf(lease);
  return claim;
}

v1::ClaimRequest ByAnother(v1::ClaimRequest claim) {
  claim.set_claim_token(NewClaimToken());
  return claim;
}

v1::Response ResponseOf(int status_code, const std::string& body) {
  v1::Response response;
  response.set_status_code(status_code);
  v1::Header& header = *response.add_headers();
  header.set_name("x-binary");
  header.set_value(std::string("\0\xff", 2));
  response.set_body(body);
  return response;
}

v1::FinalizeRequest FinalizeOf(const v1::ClaimRequest& claim, int status_code,
                               const std::string& body) {
  v1::FinalizeRequest finalize;
  finalize.set_scope(claim.scope());
  finalize.set_key(claim.key());
  finalize.set_claim_token(claim.claim_token());
  *finalize.mutable_response() = ResponseOf(status_code, body);
  return finalize;
}

v1::ReleaseRequest ReleaseOf(const v1::ClaimRequest& claim,
                             v1::ReleaseRequest::Disposition disposition) {
  v1::ReleaseRequest release;
  release.set_scope(claim.scope());
  release.set_key(claim.key());
  release.set_claim_token(claim.claim_token());
  release.set_disposition(disposition);
  return release;
}

v1::LookupRequest LookupOf(const v1::ClaimRequest& claim) {
  v1::LookupRequest lookup;
  lookup.set_scope(claim.scope());
  lookup.set_key(claim.key());
  return lookup;
}

absl::StatusOr<v1::ClaimResponse> Send(Stub& stub,
                                       const v1::ClaimRequest& request,
                                       milliseconds timeout) {
  return SendOnce(stub, &Stub::Claim, request, timeout);
}

absl::StatusOr<v1::FinalizeResponse> Send(Stub& stub,
                                          const v1::FinalizeRequest& request,
                                          milliseconds timeout) {
  return SendOnce(stub, &Stub::Finalize, request, timeout);
}

absl::StatusOr<v1::ReleaseResponse> Send(Stub& stub,
                                         const v1::ReleaseRequest& request,
                                         milliseconds timeout) {
  return SendOnce(stub, &Stub::Release, request, timeout);
}

absl::StatusOr<v1::LookupResponse> Send(Stub& stub,
                                        const v1::LookupRequest& request,
                                        milliseconds timeout) {
  return SendOnce(stub, &Stub::Lookup, request, timeout);
}

std::string Decided(const absl::Status& status) {
  const std::string reason = ErrorReasonOf(status);
  if (!reason.empty()) return reason;
  // Without a server behind it: only the message tells why.
  if (absl::IsUnavailable(status)) return status.ToString();
  return absl::StatusCodeToString(status.code());
}

std::string Decided(const absl::StatusOr<v1::ClaimResponse>& response) {
  if (!response.ok()) return Decided(response.status());
  switch (response->outcome_case()) {
    case v1::ClaimResponse::kClaimed:
      return "Claimed";
    case v1::ClaimResponse::kReplay:
      return "Replay";
    case v1::ClaimResponse::kInProgress:
      return "InProgress";
    case v1::ClaimResponse::kMismatch:
      return "Mismatch";
    case v1::ClaimResponse::kInDoubt:
      return "InDoubt";
    case v1::ClaimResponse::OUTCOME_NOT_SET:
      break;
  }
  return "no outcome";
}

std::string Decided(const absl::StatusOr<v1::FinalizeResponse>& response) {
  if (!response.ok()) return Decided(response.status());
  return v1::FinalizeResponse::Result_Name(response->result());
}

std::string Decided(const absl::StatusOr<v1::ReleaseResponse>& response) {
  if (!response.ok()) return Decided(response.status());
  return response->released() ? "released" : "not released";
}

std::string Decided(const absl::StatusOr<v1::LookupResponse>& response) {
  if (!response.ok()) return Decided(response.status());
  return v1::Record::State_Name(response->record().state());
}

absl::StatusOr<v1::ClaimResponse> ClaimPatiently(Stub& stub,
                                                 const v1::ClaimRequest& claim,
                                                 milliseconds patience) {
  const steady_clock::time_point end = steady_clock::now() + patience;
  for (;;) {
    absl::StatusOr<v1::ClaimResponse> response = Send(stub, claim);
    const bool again = response.ok() ? response->has_in_progress()
                                     : absl::IsUnavailable(response.status());
    if (!again || steady_clock::now() > end) return response;
    std::this_thread::sleep_for(
        response.ok() ? MillisecondsOf(response->in_progress().retry_after())
                      : milliseconds(50));
  }
}

std::vector<std::string> MissingReplays(Stub& stub,
                                        const std::vector<Recorded>& recorded) {
  std::vector<std::string> missing;
  for (const Recorded& one : recorded) {
    const auto again = ClaimPatiently(stub, ByAnother(one.claim));
    if (!again.ok() || !again->has_replay()) {
      missing.push_back(absl::StrCat(one.claim.key(), ": ", Decided(again)));
    } else if (again->replay().response().SerializeAsString() !=
               one.response.SerializeAsString()) {
      missing.push_back(absl::StrCat(one.claim.key(), ": another response"));
    }
  }
  return missing;
}

bool IsUnserved(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

std::string ThroughPort(const std::string& uri, int port) {
  const std::size_t slash = uri.rfind('/');
  const std::size_t colon = uri.rfind(':', slash);
  return absl::StrCat(uri.substr(0, colon + 1), port, uri.substr(slash));
}

}  // namespace idempotency
