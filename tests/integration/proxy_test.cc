// The sidecar before a plain Python service: requests with a key.
#include <thread>

#include "tests/integration/proxy_fixture.h"
#include "tests/support/port.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// What the service would have answered first, if it was asked anew.
Json Answer(int status, const std::string& body) {
  return {{"do", "answer"}, {"status", status}, {"body", body}};
}

TEST_F(ProxyTest, AKeyIsExecutedOnceAndReplayed) {
  StartProxy();
  service().Next({{{"do", "answer"},
                   {"status", 201},
                   {"body", "{\"paid\":1}"},
                   {"headers",
                    {{"Content-Type", "application/json"},
                     {"Location", "/payments/%31"},
                     {"Set-Cookie", "session=1"}}}}});
  const std::string key = NewKey();

  const HttpAnswer first = Pay(key);
  const HttpAnswer second = Pay(key);

  EXPECT_THAT(first, IsAnswer(201, "{\"paid\":1}"));
  EXPECT_EQ(first.header("set-cookie"), "session=1");
  EXPECT_THAT(second, IsReplay(201, "{\"paid\":1}"));
  EXPECT_EQ(second.header("content-type"), "application/json");
  EXPECT_EQ(second.header("location"), "/payments/%31");
  EXPECT_EQ(second.header("set-cookie"), "");
  EXPECT_THAT(service().Seen(), SizeIs(1));
}

TEST_F(ProxyTest, TheServiceIsToldOfItsAttemptByNobodyElse) {
  StartProxy();
  const std::string key = NewKey();

  Ask(port(), {.headers = {{"Idempotency-Key", Quoted(key)},
                           {"Idempotency-Attempt", "77"},
                           {"IDEMPOTENCY-ABANDONED", "attempt=76"},
                           {"Idempotency_Abandoned", "attempt=75"},
                           {"X-Tenant", "one"}}});

  const std::vector<Json> seen = service().Seen();
  ASSERT_THAT(seen, SizeIs(1));
  const v1::Record record = RecordAt(key);
  EXPECT_EQ(HeaderOf(seen[0], "Idempotency-Attempt"), "1");
  EXPECT_EQ(HeaderOf(seen[0], "Idempotency-Abandoned"), "");
  EXPECT_EQ(HeaderOf(seen[0], "Idempotency_Abandoned"), "");
  EXPECT_EQ(HeaderOf(seen[0], "Idempotency-Downstream-Key"),
            record.downstream_key());
  EXPECT_EQ(HeaderOf(seen[0], "Idempotency-Fencing-Token"),
            std::to_string(record.fencing_token()));
  EXPECT_EQ(HeaderOf(seen[0], "Idempotency-Key"), Quoted(key));
  EXPECT_EQ(HeaderOf(seen[0], "X-Tenant"), "one");
  EXPECT_EQ(HeaderOf(seen[0], "Host"), "shop.test");
  EXPECT_EQ(seen[0]["body"], "{\"amount\":200}");
}

TEST_F(ProxyTest, AnotherRequestWithTheKeyIsRefused) {
  StartProxy();
  const std::string key = NewKey();

  Pay(key);
  const HttpAnswer other = Pay(key, "{\"amount\":201}");

  EXPECT_THAT(other, IsProblem(422, "key-reused"));
  EXPECT_THAT(service().Seen(), SizeIs(1));
}

TEST_F(ProxyTest, WhatTheRouteLeavesOutDoesNotCount) {
  StartProxy({{"leave_out_json_fields", {"sent_at"}}});
  const std::string key = NewKey();

  const HttpAnswer first = Pay(key, R"({"amount":1,"sent_at":1})");
  const HttpAnswer second = Pay(key, R"({"amount":1,"sent_at":2})");

  EXPECT_EQ(second.header("idempotent-replayed"), "true");
  EXPECT_EQ(second.body, first.body);
}

TEST_F(ProxyTest, TwoCallersWithOneKeyDoNotMeet) {
  StartProxy({{"caller_header", "X-Tenant"}});
  const std::string key = NewKey();
  const auto ask = [&](const std::string& tenant) {
    return Ask(port(), {.headers = {{"Idempotency-Key", Quoted(key)},
                                    {"X-Tenant", tenant}}});
  };

  EXPECT_EQ(ask("one").header("idempotent-replayed"), "");
  EXPECT_EQ(ask("two").header("idempotent-replayed"), "");
  EXPECT_EQ(ask("one").header("idempotent-replayed"), "true");
}

TEST_F(ProxyTest, AKeyThatIsMissingRepeatedOrMalformedIsRefused) {
  StartProxy({{"required", true}});
  const auto ask = [&](std::vector<std::string> keys) {
    TestRequest request;
    for (const std::string& key : keys) {
      request.headers.emplace_back("Idempotency-Key", key);
    }
    return Ask(port(), request);
  };

  EXPECT_THAT(ask({}), IsProblem(400, "key-missing"));
  EXPECT_THAT(ask({"\"open"}), IsProblem(400, "key-malformed"));
  EXPECT_THAT(ask({""}), IsProblem(400, "key-malformed"));
  EXPECT_THAT(ask({"\"a\"", "\"a\""}), IsProblem(400, "key-malformed"));
  EXPECT_THAT(ask({Quoted(std::string(256, 'k'))}),
              IsProblem(400, "key-malformed"));
  EXPECT_THAT(service().Seen(), IsEmpty());
}

TEST_F(ProxyTest, ADuplicateIsToldThatTheFirstIsUnderWay) {
  StartProxy();
  service().Next({{{"do", "hold"}}});
  const std::string key = NewKey();
  HttpAnswer first;

  std::thread caller([&] { first = Pay(key); });
  WaitUntil([&] { return !service().Seen().empty(); });
  const HttpAnswer duplicate = Pay(key);
  service().Release();
  caller.join();

  EXPECT_THAT(duplicate, IsProblem(409, "in-progress"));
  EXPECT_NE(duplicate.header("retry-after"), "");
  EXPECT_THAT(first, IsAnswer(200, "firstlast"));
  EXPECT_THAT(service().Seen(), IsEmpty());
}

TEST_F(ProxyTest, ADuplicateWaitsForTheFirstWhereTheRouteSaysSo) {
  StartProxy({{"wait", "20s"}});
  service().Next({{{"do", "hold"}}});
  const std::string key = NewKey();
  HttpAnswer first;
  HttpAnswer second;

  std::thread caller([&] { first = Pay(key); });
  WaitUntil([&] { return !service().Seen().empty(); });
  std::thread duplicate([&] { second = Pay(key); });
  service().Release();
  caller.join();
  duplicate.join();

  EXPECT_THAT(first, IsAnswer(200, "firstlast"));
  EXPECT_THAT(second, IsReplay(200, "firstlast"));
}

TEST_F(ProxyTest, ALeaseIsRenewedForAsLongAsTheServiceMayTake) {
  StartProxy({{"lease", "100ms"}});
  service().Next({{{"do", "hold"}}});
  const std::string key = NewKey();

  std::thread caller([&] { Pay(key); });
  WaitUntil([&] { return !service().Seen().empty(); });
  // Ten leases are what it would be otherwise.
  WaitUntil([&] {
    const v1::Record record = RecordAt(key);
    return ToNanos(record.lease_expires_at()) - ToNanos(record.claimed_at()) >
           milliseconds(1500);
  });
  EXPECT_THAT(Pay(key), IsProblem(409, "in-progress"));
  service().Release();
  caller.join();
}

TEST_F(ProxyTest, WhoHangsUpLosesNothing) {
  StartProxy();
  service().Next({{{"do", "hold"}}});
  const std::string key = NewKey();
  {
    const TestConnection caller(port());
    caller.Send(
        TestRequest{.headers = {{"Idempotency-Key", Quoted(key)}}}.Bytes());
    WaitUntil([&] { return !service().Seen().empty(); });
  }
  service().Release();

  WaitUntil([&] { return Pay(key).status == 200; });
  EXPECT_THAT(Pay(key), IsReplay(200, "firstlast"));
}

// ------------------------------------------------------- the service fails

TEST_F(ProxyTest, WithoutAConnectionTheKeyIsGivenBack) {
  const int closed = FreePort();
  StartProxy({{"policy", "payment"}},
             {"--upstream=127.0.0.1:" + std::to_string(closed)});
  const std::string key = NewKey();

  const HttpAnswer first = Pay(key);
  const PlainService late(closed);
  const HttpAnswer second = Pay(key);

  EXPECT_THAT(first, IsProblem(503, "upstream-unreachable"));
  EXPECT_EQ(first.header("retry-after"), "1");
  EXPECT_THAT(second, IsAnswer(201, "{\"paid\": 1}"));
  const std::vector<Json> seen = late.Seen();
  ASSERT_THAT(seen, SizeIs(1));
  EXPECT_EQ(HeaderOf(seen[0], "Idempotency-Abandoned"), "");
}

TEST_F(ProxyTest, AfterAnAnswerThatWasLostTheNextAttemptIsTold) {
  StartProxy();
  for (const char* loss : {"close", "half", "garbage"}) {
    SCOPED_TRACE(loss);
    service().Next({{{"do", loss}}, Answer(201, "paid")});
    const std::string key = NewKey();

    EXPECT_THAT(Pay(key), IsProblem(502, "upstream-lost"));
    EXPECT_THAT(Pay(key), IsAnswer(201, "paid"));
    EXPECT_THAT(Pay(key), IsReplay(201, "paid"));

    const std::vector<Json> seen = service().Seen();
    ASSERT_THAT(seen, SizeIs(2));
    EXPECT_EQ(HeaderOf(seen[1], "Idempotency-Attempt"), "2");
    EXPECT_THAT(
        HeaderOf(seen[1], "Idempotency-Abandoned"),
        AllOf(HasSubstr("attempt=1"), HasSubstr("reason=outcome-unknown")));
    EXPECT_EQ(HeaderOf(seen[1], "Idempotency-Downstream-Key"),
              HeaderOf(seen[0], "Idempotency-Downstream-Key"));
  }
}

TEST_F(ProxyTest, AServiceThatTakesTooLongLeavesTheOutcomeUnknown) {
  StartProxy({{"timeout", "300ms"}});
  service().Next({{{"do", "hold"}}, Answer(201, "paid")});
  const std::string key = NewKey();

  EXPECT_THAT(Pay(key), IsProblem(504, "upstream-timeout"));
  service().Release();
  EXPECT_THAT(Pay(key), IsAnswer(201, "paid"));

  const std::vector<Json> seen = service().Seen();
  ASSERT_THAT(seen, SizeIs(2));
  EXPECT_THAT(HeaderOf(seen[1], "Idempotency-Abandoned"),
              HasSubstr("reason=outcome-unknown"));
}

TEST_F(ProxyTest, WherePolicyHoldsAnUnknownOutcomeStaysInDoubt) {
  StartProxy({{"policy", "payment"}});
  service().Next({{{"do", "close"}}});
  const std::string key = NewKey();

  EXPECT_THAT(Pay(key), IsProblem(502, "upstream-lost"));
  EXPECT_THAT(Pay(key), IsProblem(409, "in-doubt"));
  EXPECT_THAT(service().Seen(), SizeIs(1));
}

TEST_F(ProxyTest, AServiceThatResolvesIsAskedWhatItLeft) {
  StartProxy({{"policy", "payment"}, {"resolves", true}});
  service().Next({{{"do", "close"}}, Answer(200, "was paid")});
  const std::string key = NewKey();

  EXPECT_THAT(Pay(key), IsProblem(502, "upstream-lost"));
  EXPECT_THAT(Pay(key), IsAnswer(200, "was paid"));
  EXPECT_THAT(Pay(key), IsReplay(200, "was paid"));

  const std::vector<Json> seen = service().Seen();
  ASSERT_THAT(seen, SizeIs(2));
  EXPECT_THAT(HeaderOf(seen[1], "Idempotency-Abandoned"),
              HasSubstr("attempt=1"));
}

TEST_F(ProxyTest, ItsErrorsAreRecordedAsThePolicySays) {
  StartProxy();
  service().Next({Answer(503, "busy"), Answer(402, "no money")});
  const std::string key = NewKey();

  EXPECT_THAT(Pay(key), IsAnswer(503, "busy"));
  EXPECT_THAT(Pay(key), IsAnswer(402, "no money"));
  EXPECT_THAT(Pay(key), IsReplay(402, "no money"));

  const std::vector<Json> seen = service().Seen();
  ASSERT_THAT(seen, SizeIs(2));
  EXPECT_THAT(HeaderOf(seen[1], "Idempotency-Abandoned"),
              AllOf(HasSubstr("reason=server-error"), HasSubstr("status=503")));
}

// ------------------------------------------------------------- its answers

TEST_F(ProxyTest, ALongAnswerReachesItsCallerWholeAndIsNotKept) {
  StartProxy({{"record_bytes_max", 100'000}});
  for (const char* framing : {"length", "chunked", "close"}) {
    SCOPED_TRACE(framing);
    service().Next({{{"do", "answer"},
                     {"status", 200},
                     {"body", "0123456789"},
                     {"repeat", 300'000},
                     {"framing", framing}}});
    const std::string key = NewKey();

    const HttpAnswer first = Pay(key);
    EXPECT_EQ(first.status, 200);
    EXPECT_TRUE(first.whole);
    EXPECT_EQ(first.body.size(), 3'000'000u);
    EXPECT_THAT(Pay(key), IsProblem(410, "response-not-kept"));
    EXPECT_THAT(service().Seen(), SizeIs(1));
  }
}

TEST_F(ProxyTest, AnAnswerOfAnyFramingIsReplayedWithItsLength) {
  StartProxy();
  for (const char* framing : {"length", "chunked", "close"}) {
    SCOPED_TRACE(framing);
    service().Next({{{"do", "answer"},
                     {"status", 200},
                     {"body", "paid"},
                     {"framing", framing}}});
    const std::string key = NewKey();

    EXPECT_THAT(Pay(key), IsAnswer(200, "paid"));
    const HttpAnswer second = Pay(key);
    EXPECT_THAT(second, IsReplay(200, "paid"));
    EXPECT_EQ(second.header("content-length"), "4");
  }
}

TEST_F(ProxyTest, AnAnswerWithoutABodyIsReplayedWithout) {
  StartProxy();
  service().Next({Answer(204, "")});
  const std::string key = NewKey();

  EXPECT_THAT(Pay(key), IsAnswer(204, ""));
  const HttpAnswer second = Pay(key);
  EXPECT_THAT(second, IsReplay(204, ""));
  EXPECT_EQ(second.header("content-length"), "");
}

// ---------------------------------------------------------- no coordinator

TEST_F(ProxyTest, WithoutACoordinatorTheServiceIsNotAsked) {
  StartProxy({{"claim_timeout", "300ms"}},
             {"--coordinator=127.0.0.1:" + std::to_string(FreePort())});

  const HttpAnswer answer = Pay(NewKey());

  EXPECT_THAT(answer, IsProblem(503, "unavailable"));
  EXPECT_NE(answer.header("retry-after"), "");
  EXPECT_THAT(service().Seen(), IsEmpty());
}

TEST_F(ProxyTest, WithoutACoordinatorItIsWhereTheRouteFailsOpen) {
  StartProxy({{"fail_open", true}, {"claim_timeout", "300ms"}},
             {"--coordinator=127.0.0.1:" + std::to_string(FreePort())});
  service().Next({Answer(201, "unguarded")});

  EXPECT_THAT(Pay(NewKey()), IsAnswer(201, "unguarded"));
  const std::vector<Json> seen = service().Seen();
  ASSERT_THAT(seen, SizeIs(1));
  EXPECT_EQ(HeaderOf(seen[0], "Idempotency-Attempt"), "");
}

TEST_F(ProxyTest, WithoutACoordinatorRequestsWithoutAKeyGoThrough) {
  StartProxy({{"claim_timeout", "300ms"}},
             {"--coordinator=127.0.0.1:" + std::to_string(FreePort())});

  EXPECT_EQ(Ask(port(), {}).status, 201);
  EXPECT_THAT(service().Seen(), SizeIs(1));
}

}  // namespace
}  // namespace idempotency
