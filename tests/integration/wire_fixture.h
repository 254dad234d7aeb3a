// What the tests over the wire share: a replica with a database of its own,
// calls that are sent once, unary or through Bulk, and judgements of what came
// back.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_WIRE_FIXTURE_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_WIRE_FIXTURE_H_

#include <google/protobuf/duration.pb.h>
#include <google/protobuf/timestamp.pb.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"
#include "idempotency/v1/idempotency.pb.h"
#include "tests/support/replica.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {

// An answer with everything that came with it.
template <typename Message>
struct Reply {
  grpc::Status status;
  Message message;
  std::optional<std::string> pushback;  // the trailer grpc-retry-pushback-ms

  const Message* operator->() const { return &message; }
};

using ClaimReply = Reply<v1::ClaimResponse>;
using FinalizeReply = Reply<v1::FinalizeResponse>;
using LookupReply = Reply<v1::LookupResponse>;
using ReleaseReply = Reply<v1::ReleaseResponse>;

// The error is one that the service made: this code, this reason in the one
// ErrorInfo, a BadRequest that names `field` and nothing else (or none), and
// RetryInfo with the pushback trailer if and only if it is UNAVAILABLE.
testing::AssertionResult IsRefusal(const grpc::Status& status,
                                   const std::optional<std::string>& pushback,
                                   grpc::StatusCode code,
                                   const std::string& reason,
                                   const std::string& field = "");
template <typename Message>
testing::AssertionResult IsRefusal(const Reply<Message>& reply,
                                   grpc::StatusCode code,
                                   const std::string& reason,
                                   const std::string& field = "") {
  if (reply.status.ok()) {
    return testing::AssertionFailure()
           << "OK, want " << reason << ": " << reply.message.ShortDebugString();
  }
  return IsRefusal(reply.status, reply.pushback, code, reason, field);
}
// The commonest of them.
template <typename Message>
testing::AssertionResult IsInvalid(const Reply<Message>& reply,
                                   const std::string& field) {
  return IsRefusal(reply, grpc::StatusCode::INVALID_ARGUMENT, "INVALID_FIELD",
                   field);
}
template <typename Message>
testing::AssertionResult IsRefusedAs(const Reply<Message>& reply,
                                     const std::string& reason) {
  return IsRefusal(reply,
                   reason == "RECORD_NOT_FOUND"
                       ? grpc::StatusCode::NOT_FOUND
                       : grpc::StatusCode::FAILED_PRECONDITION,
                   reason);
}

std::chrono::nanoseconds ToNanos(const google::protobuf::Duration& duration);
std::chrono::nanoseconds ToNanos(const google::protobuf::Timestamp& time);
google::protobuf::Duration ToProto(std::chrono::nanoseconds duration);

// UUIDv5 of the namespace over length-framed scope, key and decimal count,
// made without the server's code.
std::string ExpectedDownstreamKey(const std::string& name_space,
                                  const std::string& scope,
                                  const std::string& key, int freed_count);

// The trailer grpc-retry-pushback-ms of a call that has ended.
std::optional<std::string> PushbackOf(const grpc::ClientContext& context);

// The same from the details, for results of Bulk, which have no trailers.
std::optional<std::string> PushbackIn(const grpc::Status& status);

// Each sends the call once, as a command of Bulk where the environment says
// IDEMPOTENCY_TEST_CALLS=bulk. Without a timeout it has no deadline.
using Timeout = std::optional<std::chrono::milliseconds>;
inline constexpr std::chrono::milliseconds kPatience{10'000};
ClaimReply SendTo(const Replica& replica, const v1::ClaimRequest& request,
                  Timeout timeout = kPatience);
FinalizeReply SendTo(const Replica& replica, const v1::FinalizeRequest& request,
                     Timeout timeout = kPatience);
ReleaseReply SendTo(const Replica& replica, const v1::ReleaseRequest& request,
                    Timeout timeout = kPatience);
LookupReply SendTo(const Replica& replica, const v1::LookupRequest& request,
                   Timeout timeout = kPatience);

// Tests of one replica, that of the test suite.
class WireTest : public testing::Test {
 protected:
  static constexpr char kScope[] = "tests/wire";

  // With a database of the shared PostgreSQL.
  static void SetUpTestSuite();
  static void TearDownTestSuite();
  // For suites that need another one, or flags.
  static void StartReplica(const std::string& database,
                           std::vector<std::string> flags = {});

  static Replica& replica() { return *replica_; }
  static const std::string& database() { return *database_; }

  // Runs SQL in the replica's database; fails the test if that fails.
  static std::string Sql(const std::string& sql);

  // A key that no other test of this run has.
  static std::string NewKey();
  // Claims `key` with a new claim token and one request hash for all.
  static v1::ClaimRequest ClaimFor(const std::string& key);
  // The same, again and again by somebody else.
  static v1::ClaimRequest ByAnother(v1::ClaimRequest claim);
  static v1::ClaimRequest WithLease(v1::ClaimRequest claim,
                                    std::chrono::milliseconds lease);
  static v1::FinalizeRequest FinalizeOf(const v1::ClaimRequest& claim,
                                        int status_code,
                                        const std::string& body = "");
  static v1::ReleaseRequest ReleaseOf(
      const v1::ClaimRequest& claim,
      v1::ReleaseRequest::Disposition disposition);
  static v1::LookupRequest LookupOf(const v1::ClaimRequest& claim);

  template <typename Request>
  static auto Send(const Request& request) {
    return SendTo(replica(), request);
  }

  // These fail the test unless the answer is of this kind.
  static v1::Claimed Granted(const v1::ClaimRequest& request);
  static v1::Replay Replayed(const v1::ClaimRequest& request);
  static v1::InDoubt InDoubtOf(const v1::ClaimRequest& request);
  static v1::Record RecordOf(const v1::ClaimRequest& claim);
  static v1::FinalizeResponse Finalized(const v1::FinalizeRequest& request);

  // Asks the database's clock until the claim's lease is over, the record is
  // gone, or whatever else `reached` looks for; fails the test if it does not
  // come about within kPatience.
  static void WaitUntil(const std::function<bool()>& reached);
  static void WaitForLeaseEnd(const v1::ClaimRequest& claim);
  static void WaitForAbsence(const v1::ClaimRequest& claim);

  // A policy of that name, there as soon as this returns. `columns` follow the
  // name: lease, max_lease, retention, on_abandoned, on_server_error.
  static void AddPolicy(const std::string& name, const std::string& values);

 private:
  static std::unique_ptr<std::string> database_;
  static std::unique_ptr<Replica> replica_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_WIRE_FIXTURE_H_
