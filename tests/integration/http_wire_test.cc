// The middleware and what comes over the wire: headers that are odd, bodies
// that are long or streamed, clients that hang up.
#include <future>

#include "tests/integration/http_fixture.h"

namespace idempotency {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Kind = HttpNotice::Kind;

// ------------------------------------------------------------------- the key

TEST_F(HttpTest, AKeyThatCannotBeReadIsRefused) {
  Serve(ARoute(), Answering("ran"));
  for (const std::vector<std::string>& lines :
       std::vector<std::vector<std::string>>{
           {"Idempotency-Key: a", "Idempotency-Key: b"},
           {"Idempotency-Key: a", "idempotency-key: a"},
           {"Idempotency-Key: \"a\", \"b\""},
           {"Idempotency-Key: a b"},
           {"Idempotency-Key: \"a"},
           {"Idempotency-Key: \"\""},
           {"Idempotency-Key: \"caf\xc3\xa9\""},
           {"Idempotency-Key: \"a%0d%0ab\""},
           {"Idempotency-Key: a%20"},
           {"Idempotency-Key: %09\"a\""},
           {"Idempotency-Key: " + std::string(256, 'k')}}) {
    std::vector<std::string> all = lines;
    all.push_back("Connection: close");
    const std::string answer = AnswerTo(PostBytes(all));
    EXPECT_THAT(StatusesIn(answer), ElementsAre(400)) << lines.front();
    EXPECT_THAT(answer, HasSubstr("urn:idempotency:key-malformed"))
        << lines.front();
  }
  EXPECT_EQ(runs(), 0);
}

TEST_F(HttpTest, AKeyIsTheSameQuotedOrBare) {
  Serve(ARoute(), Answering("ran"));
  const std::string key = NewKey();

  EXPECT_THAT(Post({{"Idempotency-Key", key}}), Is(201, "ran"));
  EXPECT_THAT(Post({{"idempotency-key", "\"" + key + "\""}}),
              IsReplay(201, "ran"));
  EXPECT_THAT(AnswerTo(PostBytes(
                  {"Idempotency-Key: \t " + key + "\t ",
                   "Content-Type: application/json", "Connection: close"},
                  "{\"amount\":200}")),
              HasSubstr("Idempotent-Replayed: true"));
}

TEST_F(HttpTest, AKeyKeepsItsSpacesAndEscapes) {
  Serve(ARoute(), Answering("ran"));

  EXPECT_THAT(Pay(R"( a \"b\" \\ )"), Is(201, "ran"));
  EXPECT_THAT(Pay(R"( a \"b\" \\ )"), IsReplay(201, "ran"));
  EXPECT_THAT(Pay(R"(a \"b\" \\)"), Is(201, "ran"));
  EXPECT_TRUE(Send(LookupOf(ClaimFor(" a \"b\" \\ "))).status.ok());
}

// The library does so before the middleware sees a header.
TEST_F(HttpTest, AKeyIsWhatHttplibDecodes) {
  Serve(ARoute(), Answering("ran"));
  const std::string key = NewKey();

  EXPECT_THAT(Pay(key + "A"), Is(201, "ran"));
  EXPECT_THAT(Pay(key + "%41"), IsReplay(201, "ran"));
}

TEST_F(HttpTest, ALongHeaderRunsNothing) {
  HttpRoute route = ARoute();
  route.required = false;
  Serve(route, Answering("ran"));

  const std::string answer =
      AnswerTo(PostBytes({"Idempotency-Key: " + std::string(1 << 20, 'k')}));

  // The server may hang up on who is still sending.
  EXPECT_THAT(StatusesIn(answer), testing::AnyOf(IsEmpty(), ElementsAre(400)));
  EXPECT_EQ(runs(), 0);
}

TEST_F(HttpTest, SafeMethodsRunEachTime) {
  Serve(ARoute(), [](const httplib::Request&, httplib::Response& response,
                     Execution* execution) {
    EXPECT_EQ(execution, nullptr);
    response.set_content("read", "text/plain");
    return HttpEffect::kExecuted;
  });
  httplib::Client client("127.0.0.1", port());
  const httplib::Headers headers = {{"Idempotency-Key", NewKey()}};

  EXPECT_THAT(client.Get("/payments", headers), Is(200, "read"));
  EXPECT_THAT(client.Get("/payments", headers), Is(200, "read"));
  EXPECT_THAT(client.Head("/payments", headers), Is(200, ""));
  EXPECT_EQ(runs(), 3);
}

TEST_F(HttpTest, AnotherMethodOrQueryIsAnotherRequest) {
  Serve(ARoute(), Answering("ran"));
  const std::string key = NewKey();
  httplib::Client client("127.0.0.1", port());
  const httplib::Headers headers = {{"Idempotency-Key", key}};
  const std::string body = "{\"amount\":200}";
  EXPECT_THAT(Pay(key), Is(201, "ran"));

  EXPECT_THAT(client.Put("/payments", headers, body, "application/json"),
              IsProblem(422, "key-reused"));
  EXPECT_THAT(client.Post("/payments?x=1", headers, body, "application/json"),
              IsProblem(422, "key-reused"));
  EXPECT_THAT(client.Post("/payments", headers, body, "text/plain"),
              IsProblem(422, "key-reused"));
}

TEST_F(HttpTest, WhatTheRouteLeavesOutMayDiffer) {
  HttpRoute route = ARoute();
  route.fingerprint = {.json_left_out = {"/sent_at"}};
  route.replayed_header = "X-Idempotent-Replayed";
  Serve(route, Answering("ran"));
  const std::string key = NewKey();

  Pay(key, "{\"amount\":200,\"sent_at\":1}");
  const auto retry = Pay(key, "{\"amount\":200,\"sent_at\":2}");

  ASSERT_TRUE(retry);
  EXPECT_EQ(retry->status, 201);
  EXPECT_EQ(retry->get_header_value("X-Idempotent-Replayed"), "true");
  EXPECT_THAT(Pay(key, "{\"amount\":201,\"sent_at\":1}"),
              IsProblem(422, "key-reused"));
}

TEST_F(HttpTest, CallersThatSendTheSameKeyDoNotMeet) {
  HttpRoute route = ARoute();
  route.caller = [](const HttpRequest& request) {
    return std::string(FieldValues(request, "x-tenant").at(0));
  };
  Serve(route, Answering("ran"));
  const std::string key = NewKey();
  const auto pay_as = [&](const std::string& tenant) {
    return Post({{"Idempotency-Key", key}, {"X-Tenant", tenant}});
  };

  for (const std::string tenant :
       {"a", "b", "a/b", "someone@example.org", "a b", "digest-a"}) {
    EXPECT_THAT(pay_as(tenant), Is(201, "ran")) << tenant;
    EXPECT_THAT(pay_as(tenant), IsReplay(201, "ran")) << tenant;
  }
  v1::LookupRequest lookup = LookupOf(ClaimFor(key));
  lookup.set_scope(std::string(kScope) + "/b");
  EXPECT_TRUE(Send(lookup).status.ok());
}

// ------------------------------------------------------------------ requests

// The library may lose a request that comes with the one before it, and answers
// it then with a closed connection.
TEST_F(HttpTest, PipelinedRequestsRunOnce) {
  Serve(ARoute(), Answering("ran"));
  const std::string key = NewKey();
  const std::string request =
      PostBytes({"Idempotency-Key: " + key, "Content-Type: application/json"},
                "{\"amount\":200}");

  const std::vector<int> statuses =
      StatusesIn(AnswerTo(request + request + request));

  ASSERT_FALSE(statuses.empty());
  EXPECT_THAT(statuses, testing::Each(201));
  EXPECT_THAT(Pay(key), IsReplay(201, "ran"));
  EXPECT_EQ(runs(), 1);
}

TEST_F(HttpTest, ABodyInChunksIsTheSameBody) {
  Serve(ARoute(), Answering("ran"));
  const std::string key = NewKey();
  EXPECT_THAT(Pay(key), Is(201, "ran"));

  const std::string chunked =
      "POST /payments HTTP/1.1\r\nHost: test\r\nIdempotency-Key: " + key +
      "\r\nContent-Type: application/json\r\nConnection: close\r\n"
      "Transfer-Encoding: chunked\r\n\r\n"
      "4\r\n{\"am\r\na\r\nount\":200}\r\n0\r\n\r\n";
  const std::string answer = AnswerTo(chunked);

  EXPECT_THAT(StatusesIn(answer), ElementsAre(201));
  EXPECT_THAT(answer, HasSubstr("Idempotent-Replayed: true"));
  EXPECT_EQ(runs(), 1);
}

TEST_F(HttpTest, ATooLongRequestIsRefusedAndTheKeyStaysFree) {
  Serve(ARoute(), Answering("ran"));
  server().set_payload_max_length(1000);
  const std::string key = NewKey();

  const httplib::Result refused = Pay(key, std::string(1001, 'x'));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 413);
  EXPECT_EQ(runs(), 0);
  EXPECT_THAT(Pay(key), Is(201, "ran"));
}

TEST_F(HttpTest, ATooLongBodyInChunksIsRefusedAndTheConnectionGoesOn) {
  ServeBounded(20, ARoute(), Answering("ran"));
  const std::string key = NewKey();
  const std::string lines = "Idempotency-Key: " + key +
                            "\r\nContent-Type: application/json\r\n"
                            "Transfer-Encoding: chunked\r\n";

  const RawConnection connection(port());
  connection.Send("POST /payments HTTP/1.1\r\nHost: test\r\n" + lines +
                  "\r\n10\r\n0123456789abcdef\r\n10\r\n0123456789abcdef"
                  "\r\n0\r\n\r\n");
  EXPECT_THAT(connection.ReadUntil("}"),
              HasSubstr("urn:idempotency:request-too-long"));
  connection.Send("POST /payments HTTP/1.1\r\nHost: test\r\n" + lines +
                  "Connection: close\r\n\r\n"
                  "4\r\n{\"am\r\na\r\nount\":200}\r\n0\r\n\r\n");
  EXPECT_THAT(StatusesIn(connection.ReadToEnd()), ElementsAre(201));
  EXPECT_THAT(Pay(key), IsReplay(201, "ran"));
  EXPECT_EQ(runs(), 1);
}

TEST_F(HttpTest, ABodyInChunksThatDoesNotEndIsNotReadForEver) {
  ServeBounded(1000, ARoute(), Answering("ran"));
  const RawConnection connection(port());
  connection.Send("POST /payments HTTP/1.1\r\nHost: test\r\nIdempotency-Key: " +
                  NewKey() + "\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "10000\r\n" + std::string(0x10000, 'x') + "\r\n";

  int chunks = 0;
  while (chunks < 1000 && connection.Send(chunk)) ++chunks;

  EXPECT_LT(chunks, 1000);
  EXPECT_EQ(runs(), 0);
}

TEST_F(HttpTest, WhoeverSendsTwiceTooMuchIsToldAndHungUpOn) {
  ServeBounded(16, ARoute(), Answering("ran"));
  const std::string answer = AnswerTo(
      "POST /payments HTTP/1.1\r\nHost: test\r\nIdempotency-Key: " + NewKey() +
      "\r\nTransfer-Encoding: chunked\r\n\r\n" +
      "10\r\n0123456789abcdef\r\n10\r\n0123456789abcdef\r\n1\r\n0");

  EXPECT_THAT(StatusesIn(answer), ElementsAre(413));
  EXPECT_TRUE(answer.ends_with("}")) << answer;
}

TEST_F(HttpTest, ABoundedMultipartBodyIsItsPartsToo) {
  ServeBounded(1000, ARoute(),
               [](const httplib::Request& request, httplib::Response& response,
                  Execution*) {
                 response.set_content(request.get_file_value("file").content,
                                      "text/plain");
                 return HttpEffect::kExecuted;
               });
  httplib::Client client("127.0.0.1", port());
  const httplib::Headers headers = {{"Idempotency-Key", NewKey()}};
  const auto post = [&](const std::string& content,
                        const std::string& type = "text/plain") {
    return client.Post(
        "/payments", headers,
        httplib::MultipartFormDataItems{{"file", content, "a.txt", type}});
  };

  EXPECT_THAT(post(std::string(1000, 'x')), IsProblem(413, "request-too-long"));
  EXPECT_THAT(post("content", "text/" + std::string(900, 'x')),
              IsProblem(413, "request-too-long"));
  EXPECT_THAT(post("content"), Is(200, "content"));
  EXPECT_THAT(post("content"), IsReplay(200, "content"));
  EXPECT_THAT(post("other"), IsProblem(422, "key-reused"));
}

TEST_F(HttpTest, AMultipartBodyIsItsParts) {
  Serve(ARoute(), Answering("ran"));
  httplib::Client client("127.0.0.1", port());
  const httplib::Headers headers = {{"Idempotency-Key", NewKey()}};
  const auto post = [&](const std::string& content,
                        const std::string& boundary) {
    return client.Post("/payments", headers,
                       httplib::MultipartFormDataItems{
                           {"file", content, "a.txt", "text/plain"}},
                       boundary);
  };

  EXPECT_THAT(post("content", "one"), Is(201, "ran"));
  EXPECT_THAT(post("content", "another"), IsReplay(201, "ran"));
  EXPECT_THAT(post("other content", "one"), IsProblem(422, "key-reused"));
}

// ----------------------------------------------------------------- responses

HttplibGuard::Handler AnsweringWith(
    const std::function<void(httplib::Response&)>& fill) {
  return
      [fill](const httplib::Request&, httplib::Response& response, Execution*) {
        fill(response);
        return HttpEffect::kExecuted;
      };
}

TEST_F(HttpTest, ALongBodyIsAnsweredOnceAndNotKept) {
  HttpRoute route = ARoute();
  route.body_bytes_max = 1000;
  Serve(route, Answering(std::string(1001, 'x')));
  const std::string key = NewKey();

  EXPECT_THAT(Pay(key), Is(201, std::string(1001, 'x')));
  EXPECT_THAT(Pay(key), IsProblem(410, "response-not-kept"));
  EXPECT_EQ(runs(), 1);
  EXPECT_THAT(notices(), ElementsAre(Kind::kBodyNotKept));
}

TEST_F(HttpTest, WhatTheServerAddsToEachResponseIsOfItsOwnTime) {
  std::atomic<int> number{0};
  server().set_pre_routing_handler(
      [&](const httplib::Request&, httplib::Response& response) {
        response.set_header("X-Request-Id", std::to_string(++number));
        response.set_header("Vary", "Origin");
        return httplib::Server::HandlerResponse::Unhandled;
      });
  Serve(ARoute(), AnsweringWith([](httplib::Response& response) {
          response.headers.emplace("Vary", "Accept");
          response.set_header("X-Own", "1");
        }));
  const std::string key = NewKey();

  for (const std::string id : {"1", "2"}) {
    const httplib::Result result = Pay(key);
    ASSERT_TRUE(result);
    EXPECT_EQ(IsMarked(result), id == "2");
    EXPECT_EQ(result->get_header_value("X-Request-Id"), id);
    EXPECT_EQ(result->get_header_value_count("X-Request-Id"), 1u);
    EXPECT_EQ(result->get_header_value_count("Vary"), 2u);
    EXPECT_EQ(result->get_header_value("X-Own"), "1");
  }
}

TEST_F(HttpTest, APartThatRangeAsksForIsNotWhatIsRecorded) {
  Serve(ARoute(), AnsweringWith([](httplib::Response& response) {
          response.set_content("ran", "text/plain");
        }));
  const std::string key = NewKey();

  EXPECT_THAT(Post({{"Idempotency-Key", key}, {"Range", "bytes=0-1"}}),
              Is(206, "ra"));
  EXPECT_THAT(Pay(key), IsReplay(200, "ran"));
  EXPECT_THAT(Post({{"Idempotency-Key", key}, {"Range", "bytes=1-2"}}),
              IsReplay(206, "an"));
}

TEST_F(HttpTest, ABodyOfTheLimitIsKept) {
  HttpRoute route = ARoute();
  Serve(route, Answering(std::string(route.body_bytes_max, 'x')));
  const std::string key = NewKey();

  EXPECT_EQ(Pay(key)->body.size(), route.body_bytes_max);
  EXPECT_THAT(Pay(key), IsReplay(201, std::string(route.body_bytes_max, 'x')));
}

TEST_F(HttpTest, AStreamedBodyReachesItsCallerAndIsNotKept) {
  Serve(ARoute(), AnsweringWith([](httplib::Response& response) {
          response.set_chunked_content_provider(
              "text/plain", [](std::size_t, httplib::DataSink& sink) {
                sink.os << "streamed";
                sink.done();
                return true;
              });
        }));
  const std::string key = NewKey();

  EXPECT_THAT(Pay(key), Is(200, "streamed"));
  EXPECT_THAT(Pay(key), IsProblem(410, "response-not-kept"));
  EXPECT_EQ(runs(), 1);
}

TEST_F(HttpTest, ABodyOfKnownLengthThatIsProducedLaterIsNotKept) {
  Serve(ARoute(), AnsweringWith([](httplib::Response& response) {
          response.set_content_provider(
              8, "text/plain",
              [](std::size_t offset, std::size_t length,
                 httplib::DataSink& sink) {
                return sink.write(&"produced"[offset], length);
              });
        }));
  const std::string key = NewKey();

  EXPECT_THAT(Pay(key), Is(200, "produced"));
  EXPECT_THAT(Pay(key), IsProblem(410, "response-not-kept"));
}

TEST_F(HttpTest, AStatusWithoutABodyIsReplayed) {
  for (const int status : {204, 304}) {
    const std::string key = NewKey();
    HttpRoute route = ARoute();
    // As another program may have recorded it.
    v1::ClaimRequest claim = ClaimAsPaid(key);
    Granted(claim);
    v1::FinalizeRequest finalize = FinalizeOf(claim, status);
    finalize.mutable_response()->set_body_omitted(true);
    Finalized(finalize);
    if (port() == 0) Serve(route, Answering("ran"));

    EXPECT_THAT(Pay(key), IsReplay(status, ""));
  }
  EXPECT_EQ(runs(), 0);
}

TEST_F(HttpTest, WithoutItsHeadersAResponseIsMarkedSo) {
  Serve(ARoute(), AnsweringWith([](httplib::Response& response) {
          for (int i = 0; i < 65; ++i) {
            response.set_header("X-" + std::to_string(i), "1");
          }
          response.set_content("ran", "application/json");
        }));
  const std::string key = NewKey();

  EXPECT_TRUE(Pay(key)->has_header("X-64"));
  const httplib::Result second = Pay(key);
  EXPECT_THAT(second, IsReplay(200, "ran"));
  EXPECT_EQ(second->get_header_value("Idempotent-Headers-Omitted"), "true");
  EXPECT_FALSE(second->has_header("X-64"));
}

TEST_F(HttpTest, ARecordOfAnotherProgramCannotBreakTheAnswerApart) {
  Serve(ARoute(), Answering("ran"));
  const std::string key = NewKey();
  const v1::ClaimRequest claim = ClaimAsPaid(key);
  Granted(claim);
  v1::FinalizeRequest finalize = FinalizeOf(claim, 201, "theirs");
  v1::Header* const header = finalize.mutable_response()->add_headers();
  header->set_name("X-Theirs");
  header->set_value("1\r\nSet-Cookie: a=b");
  Finalized(finalize);

  const httplib::Result replay = Pay(key);

  EXPECT_THAT(replay, IsReplay(201, "theirs"));
  EXPECT_FALSE(replay->has_header("Set-Cookie"));
  EXPECT_FALSE(replay->has_header("X-Theirs"));
}

TEST_F(HttpTest, ARecordedStatusThatIsNoneOfHttpIsNotSent) {
  AddPolicy("recording", "'20 s', '1 h', '2 h', 'take_over', 'record'");
  Serve(ARoute("recording"), Answering("ran"));
  for (const int status : {0, 100, 199, 600}) {
    const std::string key = NewKey();
    v1::ClaimRequest claim = ClaimAsPaid(key);
    claim.set_policy("recording");
    Granted(claim);
    Finalized(FinalizeOf(claim, status, "theirs"));
    EXPECT_THAT(Pay(key), IsProblem(410, "response-not-kept")) << status;
  }
  EXPECT_EQ(runs(), 0);
}

// ------------------------------------------------------------- hanging up

TEST_F(HttpTest, AClientThatHangsUpLosesNothing) {
  std::promise<void> entered, may_end;
  Serve(ARoute(),
        [&](const httplib::Request&, httplib::Response& response, Execution*) {
          entered.set_value();
          may_end.get_future().wait();
          response.set_content("ran", "application/json");
          return HttpEffect::kExecuted;
        });
  const std::string key = NewKey();
  const std::string body = "{\"amount\":200}";

  auto connection = std::make_unique<RawConnection>(port());
  connection->Send(PostBytes(
      {"Idempotency-Key: " + key, "Content-Type: application/json"}, body));
  entered.get_future().wait();
  connection.reset();
  may_end.set_value();

  const v1::ClaimRequest claim = ClaimAsPaid(key);
  WaitUntil(
      [&] { return RecordOf(claim).state() == v1::Record::STATE_FINALIZED; });
  EXPECT_THAT(Pay(key), IsReplay(200, "ran"));
  EXPECT_EQ(runs(), 1);
}

}  // namespace
}  // namespace idempotency
