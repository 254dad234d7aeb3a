#include "tests/integration/wire_fixture.h"

#include <openssl/sha.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "client/environment.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/client_context.h"
#include "tests/integration/bulk_call.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr char kDomain[] = "idempotency.v1";
constexpr milliseconds kPollPause{5};

std::string Framed(const std::string& part) {
  std::string framed;
  for (int shift = 56; shift >= 0; shift -= 8) {
    framed += static_cast<char>(std::uint64_t{part.size()} >> shift);
  }
  return framed + part;
}

std::string FromHex(const std::string& text) {
  std::string bytes;
  std::string digits;
  for (const char c : text) {
    if (c != '-') digits += c;
  }
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

struct Details {
  std::vector<google::rpc::ErrorInfo> infos;
  std::vector<google::rpc::BadRequest> bad_requests;
  std::vector<google::rpc::RetryInfo> retries;
  std::size_t others = 0;
};

Details Unpack(const google::rpc::Status& status) {
  Details details;
  for (const google::protobuf::Any& any : status.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad_request;
    google::rpc::RetryInfo retry;
    if (any.UnpackTo(&info)) {
      details.infos.push_back(info);
    } else if (any.UnpackTo(&bad_request)) {
      details.bad_requests.push_back(bad_request);
    } else if (any.UnpackTo(&retry)) {
      details.retries.push_back(retry);
    } else {
      ++details.others;
    }
  }
  return details;
}

// What is wrong with the fields that the error names, or nothing.
std::string FieldProblem(const Details& details, const std::string& field) {
  if (details.bad_requests.size() != (field.empty() ? 0u : 1u)) {
    return std::to_string(details.bad_requests.size()) + " BadRequests";
  }
  if (field.empty()) return "";
  const google::rpc::BadRequest& bad_request = details.bad_requests.front();
  if (bad_request.field_violations_size() != 1 ||
      bad_request.field_violations(0).field() != field ||
      bad_request.field_violations(0).description().empty()) {
    return "BadRequest " + bad_request.ShortDebugString() + ", want " + field;
  }
  return "";
}

// What is wrong with when to try again, or nothing.
std::string RetryProblem(const Details& details, bool unavailable,
                         const std::optional<std::string>& pushback) {
  if (details.retries.size() != (unavailable ? 1u : 0u)) {
    return std::to_string(details.retries.size()) + " RetryInfos";
  }
  if (pushback.has_value() != unavailable) {
    return pushback.has_value() ? "a pushback" : "no pushback";
  }
  if (!unavailable) return "";
  const nanoseconds delay = ToNanos(details.retries.front().retry_delay());
  if (delay <= nanoseconds(0) || delay > seconds(60)) {
    return "RetryInfo " + details.retries.front().ShortDebugString();
  }
  if (*pushback != std::to_string(delay / milliseconds(1))) {
    return "pushback " + *pushback + " beside RetryInfo " +
           details.retries.front().ShortDebugString();
  }
  return "";
}

// Are calls to be sent as commands of Bulk? The CMakeLists.txt runs programs a
// second time with that setting.
bool ThroughBulk() {
  const char* const calls = std::getenv("IDEMPOTENCY_TEST_CALLS");
  if (calls == nullptr) return false;
  EXPECT_EQ(std::string(calls), "bulk");
  return true;
}

// Sends one call and keeps all that comes back.
template <typename Request, typename Response>
Reply<Response> SendOnce(grpc::Status (v1::IdempotencyService::Stub::*method)(
                             grpc::ClientContext*, const Request&, Response*),
                         const Replica& replica, const Request& request,
                         Timeout timeout) {
  grpc::ClientContext context;
  if (timeout.has_value()) {
    context.set_deadline(std::chrono::system_clock::now() + *timeout);
  }
  Reply<Response> reply;
  if (ThroughBulk()) {
    reply.status =
        CallThroughBulk(replica.stub(), context, request, reply.message);
    reply.pushback = PushbackIn(reply.status);
    return reply;
  }
  reply.status = (replica.stub().*method)(&context, request, &reply.message);
  reply.pushback = PushbackOf(context);
  return reply;
}

template <typename Message>
void ExpectOk(const Reply<Message>& reply) {
  EXPECT_TRUE(reply.status.ok())
      << reply.status.error_code() << ": " << reply.status.error_message();
}

}  // namespace

testing::AssertionResult IsRefusal(const grpc::Status& status,
                                   const std::optional<std::string>& pushback,
                                   grpc::StatusCode code,
                                   const std::string& reason,
                                   const std::string& field) {
  testing::AssertionResult failure = testing::AssertionFailure();
  failure << status.error_code() << " '" << status.error_message() << "': ";
  if (status.error_code() != code) return failure << "want code " << code;
  google::rpc::Status packed;
  if (status.error_details().empty() ||
      !packed.ParseFromString(status.error_details())) {
    return failure << "no status details, want " << reason;
  }
  if (packed.code() != code || packed.message() != status.error_message()) {
    return failure << "the details say " << packed.ShortDebugString();
  }
  const Details details = Unpack(packed);
  if (details.infos.size() != 1 || details.infos.front().reason() != reason ||
      details.infos.front().domain() != kDomain) {
    return failure << "want one ErrorInfo " << reason << ", got "
                   << packed.ShortDebugString();
  }
  if (details.others > 0) return failure << packed.ShortDebugString();
  std::string problem = FieldProblem(details, field);
  if (!problem.empty()) return failure << problem;
  problem =
      RetryProblem(details, code == grpc::StatusCode::UNAVAILABLE, pushback);
  if (!problem.empty()) return failure << problem;
  return testing::AssertionSuccess();
}

nanoseconds ToNanos(const google::protobuf::Duration& duration) {
  return seconds(duration.seconds()) + nanoseconds(duration.nanos());
}

nanoseconds ToNanos(const google::protobuf::Timestamp& time) {
  return seconds(time.seconds()) + nanoseconds(time.nanos());
}

google::protobuf::Duration ToProto(nanoseconds duration) {
  google::protobuf::Duration proto;
  proto.set_seconds(duration / seconds(1));
  proto.set_nanos(static_cast<std::int32_t>((duration % seconds(1)).count()));
  return proto;
}

std::string ExpectedDownstreamKey(const std::string& name_space,
                                  const std::string& scope,
                                  const std::string& key, int freed_count) {
  const std::string text = FromHex(name_space) + Framed(scope) + Framed(key) +
                           Framed(std::to_string(freed_count));
  unsigned char digest[SHA_DIGEST_LENGTH];
  SHA1(reinterpret_cast<const unsigned char*>(text.data()), text.size(),
       digest);
  digest[6] = static_cast<unsigned char>((digest[6] & 0x0f) | 0x50);
  digest[8] = static_cast<unsigned char>((digest[8] & 0x3f) | 0x80);
  std::string uuid;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) uuid += '-';
    char hex[3];
    std::snprintf(hex, sizeof(hex), "%02x", digest[i]);
    uuid += hex;
  }
  return uuid;
}

std::optional<std::string> PushbackOf(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto pushback = trailers.find("grpc-retry-pushback-ms");
  if (pushback == trailers.end()) return std::nullopt;
  return std::string(pushback->second.data(), pushback->second.size());
}

std::optional<std::string> PushbackIn(const grpc::Status& status) {
  google::rpc::Status packed;
  packed.ParseFromString(status.error_details());
  const Details details = Unpack(packed);
  if (details.retries.empty()) return std::nullopt;
  return std::to_string(ToNanos(details.retries.front().retry_delay()) /
                        milliseconds(1));
}

ClaimReply SendTo(const Replica& replica, const v1::ClaimRequest& request,
                  Timeout timeout) {
  return SendOnce(&v1::IdempotencyService::Stub::Claim, replica, request,
                  timeout);
}
FinalizeReply SendTo(const Replica& replica, const v1::FinalizeRequest& request,
                     Timeout timeout) {
  return SendOnce(&v1::IdempotencyService::Stub::Finalize, replica, request,
                  timeout);
}
ReleaseReply SendTo(const Replica& replica, const v1::ReleaseRequest& request,
                    Timeout timeout) {
  return SendOnce(&v1::IdempotencyService::Stub::Release, replica, request,
                  timeout);
}
LookupReply SendTo(const Replica& replica, const v1::LookupRequest& request,
                   Timeout timeout) {
  return SendOnce(&v1::IdempotencyService::Stub::Lookup, replica, request,
                  timeout);
}

std::unique_ptr<std::string> WireTest::database_;
std::unique_ptr<Replica> WireTest::replica_;

void WireTest::SetUpTestSuite() {
  const auto database = TempPostgres::SharedDatabase();
  ASSERT_TRUE(database.ok()) << database.status();
  StartReplica(*database);
}

void WireTest::StartReplica(const std::string& database,
                            std::vector<std::string> flags) {
  database_ = std::make_unique<std::string>(database);
  Replica::Options options;
  options.database = database;
  options.flags = std::move(flags);
  auto replica = Replica::Start(std::move(options));
  ASSERT_TRUE(replica.ok()) << replica.status();
  replica_ = *std::move(replica);
}

void WireTest::TearDownTestSuite() {
  replica_.reset();
  database_.reset();
}

std::string WireTest::Sql(const std::string& sql) {
  const auto rows = TempPostgres::RunAt(database(), sql);
  EXPECT_TRUE(rows.ok()) << rows.status();
  return rows.ok() ? *rows : "";
}

std::string WireTest::NewKey() {
  static std::atomic<int> last{0};
  return "key-" + std::to_string(++last);
}

v1::ClaimRequest WireTest::ClaimFor(const std::string& key) {
  v1::ClaimRequest claim;
  claim.set_scope(kScope);
  claim.set_key(key);
  claim.set_request_hash(std::string(32, 'h'));
  claim.set_claim_token(NewClaimToken());
  return claim;
}

v1::ClaimRequest WireTest::ByAnother(v1::ClaimRequest claim) {
  claim.set_claim_token(NewClaimToken());
  return claim;
}

v1::ClaimRequest WireTest::WithLease(v1::ClaimRequest claim,
                                     milliseconds lease) {
  *claim.mutable_lease() = ToProto(lease);
  return claim;
}

v1::FinalizeRequest WireTest::FinalizeOf(const v1::ClaimRequest& claim,
                                         int status_code,
                                         const std::string& body) {
  v1::FinalizeRequest request;
  request.set_scope(claim.scope());
  request.set_key(claim.key());
  request.set_claim_token(claim.claim_token());
  request.mutable_response()->set_status_code(status_code);
  request.mutable_response()->set_body(body);
  return request;
}

v1::ReleaseRequest WireTest::ReleaseOf(
    const v1::ClaimRequest& claim,
    v1::ReleaseRequest::Disposition disposition) {
  v1::ReleaseRequest request;
  request.set_scope(claim.scope());
  request.set_key(claim.key());
  request.set_claim_token(claim.claim_token());
  request.set_disposition(disposition);
  return request;
}

v1::LookupRequest WireTest::LookupOf(const v1::ClaimRequest& claim) {
  v1::LookupRequest request;
  request.set_scope(claim.scope());
  request.set_key(claim.key());
  return request;
}

v1::Claimed WireTest::Granted(const v1::ClaimRequest& request) {
  const ClaimReply reply = Send(request);
  ExpectOk(reply);
  EXPECT_TRUE(reply->has_claimed()) << reply->ShortDebugString();
  return reply->claimed();
}

v1::Replay WireTest::Replayed(const v1::ClaimRequest& request) {
  const ClaimReply reply = Send(request);
  ExpectOk(reply);
  EXPECT_TRUE(reply->has_replay()) << reply->ShortDebugString();
  return reply->replay();
}

v1::InDoubt WireTest::InDoubtOf(const v1::ClaimRequest& request) {
  const ClaimReply reply = Send(request);
  ExpectOk(reply);
  EXPECT_TRUE(reply->has_in_doubt()) << reply->ShortDebugString();
  return reply->in_doubt();
}

v1::Record WireTest::RecordOf(const v1::ClaimRequest& claim) {
  const LookupReply reply = Send(LookupOf(claim));
  ExpectOk(reply);
  return reply->record();
}

v1::FinalizeResponse WireTest::Finalized(const v1::FinalizeRequest& request) {
  const FinalizeReply reply = Send(request);
  ExpectOk(reply);
  return reply.message;
}

void WireTest::WaitUntil(const std::function<bool()>& reached) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!reached()) {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << "it never came about";
    std::this_thread::sleep_for(kPollPause);
  }
}

void WireTest::WaitForLeaseEnd(const v1::ClaimRequest& claim) {
  WaitUntil(
      [&] { return RecordOf(claim).state() == v1::Record::STATE_IN_DOUBT; });
}

void WireTest::WaitForAbsence(const v1::ClaimRequest& claim) {
  WaitUntil([&] {
    return Send(LookupOf(claim)).status.error_code() ==
           grpc::StatusCode::NOT_FOUND;
  });
}

void WireTest::AddPolicy(const std::string& name, const std::string& values) {
  Sql("INSERT INTO ttl_policies (name, lease, max_lease, retention, "
      "on_abandoned, on_server_error) VALUES ('" +
      name + "', " + values + ")");
  // A name that the replica does not know makes it read the table anew, at
  // most once a second.
  WaitUntil([&] {
    v1::ClaimRequest claim = ClaimFor(NewKey());
    claim.set_policy(name);
    return Send(claim).status.ok();
  });
}

}  // namespace idempotency
