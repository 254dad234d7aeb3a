// The client against a scripted service on a real loopback port: what reaches
// the wire, and what the caller is told. Time between attempts is the test's.

#include "client/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/integration/client_fixture.h"
#include "tests/integration/scripted_service.h"

namespace idempotency {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// The most that a deadline may seem to be at the other end: gRPC rounds it up
// to three digits, and the clocks are read one after the other.
nanoseconds OnTheWire(nanoseconds timeout) {
  return timeout + timeout / 100 + milliseconds(20);
}

// Each test once with calls and once with commands of a stream.
class ClientTest : public testing::TestWithParam<BulkUse> {
 protected:
  std::unique_ptr<Client> ClientOf(const ScriptedServer& server) {
    return Client::Connect(server.target(),
                           {.bulk = GetParam(), .environment = time_});
  }
  std::unique_ptr<Client> RealTimeClientOf(const ScriptedServer& server,
                                           ClientOptions options = {}) {
    options.bulk = GetParam();
    return Client::Connect(server.target(), options);
  }

  const std::shared_ptr<VirtualTime> time_ = std::make_shared<VirtualTime>();
};

INSTANTIATE_TEST_SUITE_P(AsCalls, ClientTest, testing::Values(BulkUse::kNever));
INSTANTIATE_TEST_SUITE_P(AsCommands, ClientTest,
                         testing::Values(BulkUse::kAlways));
// Commands have no trailers.
using ClientPushbackTest = ClientTest;
INSTANTIATE_TEST_SUITE_P(AsCalls, ClientPushbackTest,
                         testing::Values(BulkUse::kNever));

TEST_P(ClientTest, AClaimTokenIsDrawnAndKeptOverRetries) {
  ScriptedServer server({Lost(), Lost(), Granted()});
  const auto client =
      RealTimeClientOf(server, {.retry = {.backoff_initial = milliseconds(1)}});
  v1::ClaimRequest request = ARequest();

  const auto response = client->Claim(request);

  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->claimed().fencing_token(), 7);
  EXPECT_THAT(request.claim_token(), SizeIs(36));
  const auto claims = server->claims();
  ASSERT_THAT(claims, SizeIs(3));
  for (const v1::ClaimRequest& sent : claims) {
    EXPECT_EQ(sent.SerializeAsString(), request.SerializeAsString());
  }
}

TEST_P(ClientTest, AFailedClaimLeavesItsTokenWithTheCaller) {
  ScriptedServer server(
      {Refused(grpc::StatusCode::INVALID_ARGUMENT, "INVALID_FIELD")});
  v1::ClaimRequest request = ARequest();

  EXPECT_FALSE(ClientOf(server)->Claim(request).ok());

  ASSERT_THAT(server->claims(), SizeIs(1));
  EXPECT_THAT(request.claim_token(), SizeIs(36));
  EXPECT_EQ(server->claims()[0].claim_token(), request.claim_token());
}

TEST_P(ClientTest, TwoClaimsDrawTwoTokens) {
  ScriptedServer server({Granted()});
  const auto client = RealTimeClientOf(server);
  v1::ClaimRequest first = ARequest();
  v1::ClaimRequest second = ARequest();

  ASSERT_TRUE(client->Claim(first).ok());
  ASSERT_TRUE(client->Claim(second).ok());

  EXPECT_NE(first.claim_token(), second.claim_token());
}

TEST_P(ClientTest, ATokenOfTheCallersIsLeftAlone) {
  ScriptedServer server({Granted()});
  v1::ClaimRequest request = ARequest();
  const std::string token = NewClaimToken();
  request.set_claim_token(token);

  ASSERT_TRUE(ClientOf(server)->Claim(request).ok());

  EXPECT_EQ(request.claim_token(), token);
  EXPECT_EQ(server->claims()[0].claim_token(), token);
}

TEST_P(ClientTest, ARenewalIsNotGivenAToken) {
  ScriptedServer server({Granted()});
  v1::ClaimRequest request = ARequest();
  request.set_renew_fencing_token(7);

  ASSERT_TRUE(ClientOf(server)->Claim(request).ok());

  EXPECT_THAT(server->claims()[0].claim_token(), IsEmpty());
}

TEST_P(ClientPushbackTest, APushbackIsObeyedToTheMillisecond) {
  ScriptedServer server({Busy("123"), Busy("0"), Busy("456"), Granted()});
  v1::ClaimRequest request = ARequest();

  ASSERT_TRUE(ClientOf(server)->Claim(request).ok());

  EXPECT_THAT(time_->sleeps(), ElementsAre(milliseconds(123), milliseconds(0),
                                           milliseconds(456)));
}

TEST_P(ClientPushbackTest, ANegativePushbackEndsTheCall) {
  ScriptedServer server({Busy("-1"), Granted()});
  v1::ClaimRequest request = ARequest();

  const auto response = ClientOf(server)->Claim(request);

  EXPECT_EQ(response.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReasonOf(response.status()), "OVERLOADED");
  EXPECT_THAT(server->claims(), SizeIs(1));
  EXPECT_THAT(time_->sleeps(), IsEmpty());
}

TEST_P(ClientTest, WithoutPushbackRetryInfoIsTheLeastWait) {
  google::rpc::RetryInfo info;
  info.mutable_retry_delay()->set_seconds(1);
  ScriptedServer server(
      {Refused(grpc::StatusCode::UNAVAILABLE, "OVERLOADED", info), Granted()});
  v1::ClaimRequest request = ARequest();

  ASSERT_TRUE(ClientOf(server)->Claim(request).ok());

  EXPECT_THAT(time_->sleeps(), ElementsAre(milliseconds(1025)));
}

TEST_P(ClientTest, WithoutAnyHintTheBackoffGrowsAndAttemptsAreBounded) {
  ScriptedServer server({Busy()});
  v1::ClaimRequest request = ARequest();

  const auto response = ClientOf(server)->Claim(request);

  EXPECT_EQ(response.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReasonOf(response.status()), "OVERLOADED");
  EXPECT_THAT(server->claims(), SizeIs(6));
  EXPECT_THAT(time_->sleeps(),
              ElementsAre(milliseconds(25), milliseconds(50), milliseconds(100),
                          milliseconds(200), milliseconds(400)));
}

TEST_P(ClientTest, NoOtherCodeIsRetried) {
  for (int code = 1; code <= 16; ++code) {
    if (code == grpc::StatusCode::UNAVAILABLE ||
        code == grpc::StatusCode::CANCELLED) {
      continue;
    }
    ScriptedServer server(
        {{.status = grpc::Status(static_cast<grpc::StatusCode>(code), "no"),
          .pushback = "0"},
         Granted()});
    v1::ClaimRequest request = ARequest();

    const auto response = ClientOf(server)->Claim(request);

    EXPECT_EQ(static_cast<int>(response.status().code()), code);
    EXPECT_THAT(server->claims(), SizeIs(1)) << code;
  }
}

TEST_P(ClientTest, ACallThatAServerCancelledIsSentAgain) {
  ScriptedServer server({{.status = grpc::Status::CANCELLED}, Granted()});
  v1::ClaimRequest request = ARequest();

  const auto response = ClientOf(server)->Claim(request);

  EXPECT_TRUE(response.ok()) << response.status();
  EXPECT_THAT(server->claims(), SizeIs(2));
}

TEST_P(ClientPushbackTest, AWaitBeyondTheDeadlineIsNotBegun) {
  ScriptedServer server({Busy("60000"), Granted()});
  v1::ClaimRequest request = ARequest();

  const auto response = ClientOf(server)->Claim(request);

  EXPECT_EQ(response.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(response.status().message()), HasSubstr("no time"));
  EXPECT_THAT(server->claims(), SizeIs(1));
  EXPECT_THAT(time_->sleeps(), IsEmpty());
}

TEST_P(ClientPushbackTest, EveryAttemptHasWhatIsLeftOfOneDeadline) {
  ScriptedServer server({Busy("1000"), Busy("1500"), Fine()});

  ASSERT_TRUE(ClientOf(server)->Lookup({}, {.timeout = seconds(4)}).ok());

  const auto left = server->time_left();
  ASSERT_THAT(left, SizeIs(3));
  const std::vector<nanoseconds> most = {seconds(4), seconds(3),
                                         milliseconds(1500)};
  for (std::size_t i = 0; i < most.size(); ++i) {
    EXPECT_LE(left[i], OnTheWire(most[i])) << i;
    EXPECT_GT(left[i], most[i] - seconds(1)) << i;
  }
}

TEST_P(ClientTest, TheDeadlineIsFiveSecondsAndAClaimsWaitOnTop) {
  ScriptedServer server({Granted()});
  const auto client = ClientOf(server);
  v1::ClaimRequest request = ARequest();
  ASSERT_TRUE(client->Claim(request).ok());
  request.mutable_wait()->set_seconds(20);
  ASSERT_TRUE(client->Claim(request).ok());
  request.mutable_wait()->set_seconds(INT64_MAX);
  ASSERT_TRUE(client->Claim(request).ok());
  ASSERT_TRUE(client->Finalize(AFinalize("")).ok());
  ASSERT_TRUE(client->Release({}).ok());

  const auto left = server->time_left();
  ASSERT_THAT(left, SizeIs(5));
  const std::vector<nanoseconds> most = {seconds(5), seconds(25), seconds(65),
                                         seconds(5), seconds(5)};
  for (std::size_t i = 0; i < most.size(); ++i) {
    EXPECT_LE(left[i], OnTheWire(most[i])) << i;
    EXPECT_GT(left[i], most[i] - seconds(1)) << i;
  }
}

TEST_P(ClientTest, AnUnansweredWriteSaysThatItsOutcomeIsUnknown) {
  const auto until_cancelled = [](grpc::ServerContext* context) {
    while (!context->IsCancelled()) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  };
  ScriptedServer server({{.before = until_cancelled}});
  const auto client = RealTimeClientOf(server);
  v1::ClaimRequest request = ARequest();

  const auto claim = client->Claim(request, {.timeout = milliseconds(200)});
  const auto lookup = client->Lookup({}, {.timeout = milliseconds(200)});

  EXPECT_EQ(claim.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ErrorReasonOf(claim.status()), "OUTCOME_UNKNOWN");
  EXPECT_THAT(std::string(claim.status().message()),
              HasSubstr("outcome unknown"));
  EXPECT_THAT(server->claims(), SizeIs(1));
  EXPECT_EQ(lookup.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ErrorReasonOf(lookup.status()), "");
}

TEST_P(ClientPushbackTest, ALostAnswerStaysUnknownThroughLaterRefusals) {
  ScriptedServer server({Lost(), Busy("-1")});

  const auto response = ClientOf(server)->Finalize(AFinalize("done"));

  EXPECT_EQ(response.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReasonOf(response.status()), "OUTCOME_UNKNOWN");
  EXPECT_THAT(std::string(response.status().message()),
              AllOf(HasSubstr("OVERLOADED"), HasSubstr("attempt 2")));
}

TEST_P(ClientTest, ARefusalSettlesWhatWasUnknown) {
  ScriptedServer server({Lost(), Refused(grpc::StatusCode::FAILED_PRECONDITION,
                                         "CLAIM_SUPERSEDED")});

  const auto response = ClientOf(server)->Finalize(AFinalize("done"));

  EXPECT_EQ(response.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReasonOf(response.status()), "CLAIM_SUPERSEDED");
}

TEST_P(ClientTest, ATimeoutThatIsNotPositiveSendsNothing) {
  ScriptedServer server({Fine()});
  const auto client = ClientOf(server);
  for (const milliseconds timeout :
       {milliseconds(0), milliseconds(-1), milliseconds::min()}) {
    const auto response = client->Lookup({}, {.timeout = timeout});
    EXPECT_EQ(response.status().code(), absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_THAT(server->lookups(), IsEmpty());
}

TEST_P(ClientTest, AnEndlessTimeoutIsBounded) {
  ScriptedServer server({Fine()});
  ASSERT_TRUE(
      ClientOf(server)->Lookup({}, {.timeout = milliseconds::max()}).ok());
  EXPECT_THAT(server->time_left(), Each(testing::Le(OnTheWire(hours(24)))));
}

TEST_P(ClientTest, AnAnswerWithoutAKnownOutcomeIsUnavailable) {
  ScriptedServer server({Fine()});
  v1::ClaimRequest request = ARequest();

  const auto response = ClientOf(server)->Claim(request);

  EXPECT_EQ(response.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReasonOf(response.status()), "OUTCOME_UNKNOWN");
  EXPECT_THAT(server->claims(), SizeIs(6));
}

TEST_P(ClientTest, AnotherReplicaMayKnowTheOutcome) {
  ScriptedServer server({Fine(), Granted()});
  v1::ClaimRequest request = ARequest();

  const auto response = ClientOf(server)->Claim(request);

  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_TRUE(response->has_claimed());
}

TEST_P(ClientTest, ABodyAtTheLimitIsSentAndOneByteMoreIsOmitted) {
  ScriptedServer server({Fine()});
  const auto client = ClientOf(server);
  constexpr std::size_t kLimit = std::size_t{1} << 20;
  const v1::FinalizeRequest fits = AFinalize(std::string(kLimit, 'b'));
  const v1::FinalizeRequest too_long = AFinalize(std::string(kLimit + 1, 'b'));

  ASSERT_TRUE(client->Finalize(fits).ok());
  ASSERT_TRUE(client->Finalize(too_long).ok());

  const auto sent = server->finalizes();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].SerializeAsString(), fits.SerializeAsString());
  EXPECT_TRUE(sent[1].response().body_omitted());
  EXPECT_THAT(sent[1].response().body(), IsEmpty());
  EXPECT_EQ(sent[1].response().status_code(), 201);
  EXPECT_EQ(sent[1].claim_token(), too_long.claim_token());
}

TEST_P(ClientTest, AMessageTooLongForGrpcIsShortenedUntilItFits) {
  ScriptedServer server({Fine()});
  const auto client = RealTimeClientOf(server, {.body_bytes_max = 64u << 20});
  ASSERT_TRUE(
      client->Finalize(AFinalize(std::string(std::size_t{4} << 20, 'b'))).ok());
  v1::FinalizeRequest long_headers = AFinalize("short");
  v1::Header* header = long_headers.mutable_response()->add_headers();
  header->set_name("x-long");
  header->set_value(std::string(std::size_t{5} << 20, 'v'));
  ASSERT_TRUE(client->Finalize(long_headers).ok());

  const auto sent = server->finalizes();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_TRUE(sent[0].response().body_omitted());
  EXPECT_FALSE(sent[0].response().headers_omitted());
  EXPECT_TRUE(sent[1].response().headers_omitted());
  EXPECT_THAT(sent[1].response().headers(), IsEmpty());
}

TEST_P(ClientTest, AFinalizeWithoutResponseIsSentAsItIs) {
  ScriptedServer server({Fine()});
  v1::FinalizeRequest request;
  request.set_key("k");
  ASSERT_TRUE(ClientOf(server)->Finalize(request).ok());
  EXPECT_FALSE(server->finalizes()[0].has_response());
}

TEST_P(ClientTest, LookupAndReleaseAreRetriedToo) {
  ScriptedServer server({Lost(), Fine(), Lost(), Fine()});
  const auto client = ClientOf(server);
  v1::LookupRequest lookup;
  lookup.set_key("k");

  const auto record = client->Lookup(lookup);
  const auto released = client->Release({});

  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->record().key(), "k");
  ASSERT_TRUE(released.ok()) << released.status();
  EXPECT_TRUE(released->released());
  EXPECT_THAT(server->lookups(), SizeIs(2));
  EXPECT_THAT(server->releases(), SizeIs(2));
}

TEST_P(ClientTest, FieldViolationsAreInTheMessageAndDetailsInThePayloads) {
  google::rpc::BadRequest bad_request;
  auto* violation = bad_request.add_field_violations();
  violation->set_field("scope");
  violation->set_description("1 to 128 characters");
  ScriptedServer server({Refused(grpc::StatusCode::INVALID_ARGUMENT,
                                 "INVALID_FIELD", bad_request)});

  const auto response = ClientOf(server)->Lookup({});

  EXPECT_EQ(response.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReasonOf(response.status()), "INVALID_FIELD");
  EXPECT_THAT(std::string(response.status().message()),
              HasSubstr("scope: 1 to 128 characters"));
  EXPECT_TRUE(response.status()
                  .GetPayload("type.googleapis.com/google.rpc.BadRequest")
                  .has_value());
}

TEST_P(ClientTest, AReasonOfAnotherDomainIsNotTheServices) {
  google::rpc::ErrorInfo info;
  info.set_domain("proxy.example");
  info.set_reason("CLAIM_SUPERSEDED");
  google::rpc::Status details;
  details.add_details()->PackFrom(info);
  ScriptedServer server(
      {{.status = grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "other",
                               details.SerializeAsString())}});

  EXPECT_EQ(ErrorReasonOf(ClientOf(server)->Lookup({}).status()), "");
}

TEST_P(ClientTest, AServerThatIsGoneIsUnavailable) {
  auto server = std::make_unique<ScriptedServer>(std::deque<Answer>{Granted()});
  const auto client = RealTimeClientOf(*server);
  v1::ClaimRequest request = ARequest();
  ASSERT_TRUE(client->Claim(request).ok());
  server->Stop();

  const auto response = client->Claim(request, {.timeout = milliseconds(500)});

  EXPECT_EQ(response.status().code(), absl::StatusCode::kUnavailable);
}

TEST_P(ClientTest, ManyThreadsShareOneClient) {
  ScriptedServer server({Granted()});
  const auto client = RealTimeClientOf(server);
  std::atomic<int> claimed = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 50; ++n) {
        v1::ClaimRequest request = ARequest();
        const auto response = client->Claim(request);
        if (response.ok() && response->has_claimed()) ++claimed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(claimed, 400);
}

}  // namespace
}  // namespace idempotency
