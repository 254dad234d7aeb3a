// The sidecar's HTTP: what goes through, and what is bad.
#include <fstream>

#include "tests/integration/proxy_fixture.h"

namespace idempotency {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class ProxyWireTest : public ProxyTest {
 protected:
  std::vector<HttpAnswer> AnswersTo(const std::string& bytes) const {
    const TestConnection connection(port());
    connection.Send(bytes);
    return AnswersIn(connection.Read());
  }
  // One answer, or status 0.
  HttpAnswer AnswerTo(const std::string& bytes) const {
    const std::vector<HttpAnswer> answers = AnswersTo(bytes);
    return answers.empty() ? HttpAnswer() : answers.front();
  }
  // What the process has held in memory at most, in KiB.
  long MemoryPeak() const {
    std::ifstream status("/proc/" + std::to_string(sidecar().process().pid()) +
                         "/status");
    std::string word;
    while (status >> word && word != "VmHWM:") {
    }
    long peak = 0;
    status >> peak;
    EXPECT_GT(peak, 0);
    return peak;
  }
};

TEST_F(ProxyWireTest, ARequestWithoutAKeyGoesThroughAsItIs) {
  StartProxy();
  const std::string body =
      "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--b--\r\n";

  Ask(port(), {.target = "/payments?a=%2F&b",
               .headers = {{"Content-Type", "multipart/form-data; boundary=b"},
                           {"Content-Encoding", "gzip"},
                           {"Cookie", "a=%7B%22b%22%7D"},
                           {"X-Twice", "1"},
                           {"X-Twice", "2"},
                           {"X-Hop", "of this connection"},
                           {"Connection", "X-Hop"},
                           {"Range", "bytes=0-1"}},
               .body = body});

  const std::vector<Json> seen = service().Seen();
  ASSERT_THAT(seen, SizeIs(1));
  EXPECT_EQ(seen[0]["target"], "/payments?a=%2F&b");
  EXPECT_EQ(seen[0]["body"], body);
  EXPECT_EQ(HeaderOf(seen[0], "Cookie"), "a=%7B%22b%22%7D");
  EXPECT_EQ(HeaderOf(seen[0], "Content-Encoding"), "gzip");
  EXPECT_EQ(HeaderOf(seen[0], "Range"), "bytes=0-1");
  EXPECT_EQ(HeaderOf(seen[0], "X-Hop"), "");
  EXPECT_THAT(seen[0]["headers"].dump(),
              HasSubstr(R"(["X-Twice","1"],["X-Twice","2"])"));
}

TEST_F(ProxyWireTest, AnAnswerGoesThroughAsItIs) {
  StartProxy();
  service().Next({{{"do", "answer"},
                   {"status", 206},
                   {"body", "not really gzip"},
                   {"headers",
                    {{"Content-Encoding", "gzip"},
                     {"Content-Range", "bytes 0-14/30"},
                     {"Set-Cookie", "a=%2F"},
                     {"Keep-Alive", "timeout=5"}}}}});

  const HttpAnswer answer =
      Ask(port(), {.headers = {{"Accept-Encoding", "gzip"}}});

  EXPECT_THAT(answer, IsAnswer(206, "not really gzip"));
  EXPECT_EQ(answer.header("content-encoding"), "gzip");
  EXPECT_EQ(answer.header("content-range"), "bytes 0-14/30");
  EXPECT_EQ(answer.header("set-cookie"), "a=%2F");
  EXPECT_EQ(answer.header("keep-alive"), "");
}

TEST_F(ProxyWireTest, SafeMethodsWithAKeyAreNotGuarded) {
  StartProxy({{"match", "* /**"}});
  const std::string key = NewKey();
  for (const char* method : {"GET", "GET", "HEAD", "OPTIONS"}) {
    SCOPED_TRACE(method);
    const HttpAnswer answer =
        Ask(port(), {.method = method,
                     .headers = {{"Idempotency-Key", Quoted(key)}},
                     .body = ""});
    EXPECT_EQ(answer.status, 201);
    EXPECT_TRUE(answer.whole);
    EXPECT_NE(answer.header("content-length"), "");
  }
  EXPECT_THAT(service().Seen(), SizeIs(4));
}

TEST_F(ProxyWireTest, AnotherSpellingOfThePathIsTheSameRoute) {
  StartProxy({{"required", true}});

  EXPECT_THAT(Ask(port(), {.target = "/pay%6Dents?x=1"}),
              IsProblem(400, "key-missing"));
  EXPECT_THAT(Ask(port(), {.target = "http://shop.test/payments"}),
              IsProblem(400, "malformed-request"));
  EXPECT_THAT(service().Seen(), IsEmpty());
}

TEST_F(ProxyWireTest, LongBodiesStreamBothWaysWithoutBeingHeld) {
  StartProxy();
  constexpr int kTenBytes = 2'000'000;
  service().Next({{{"do", "answer"},
                   {"status", 200},
                   {"body", "0123456789"},
                   {"repeat", kTenBytes},
                   {"framing", "chunked"}}});
  std::string body;
  while (body.size() < 10u * kTenBytes) body += "0123456789";
  const long before = MemoryPeak();

  const HttpAnswer answer = Ask(port(), {.target = "/files", .body = body});

  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.whole);
  EXPECT_TRUE(answer.body == body);
  const std::vector<Json> seen = service().Seen();
  ASSERT_THAT(seen, SizeIs(1));
  EXPECT_EQ(seen[0]["size"], body.size());
  EXPECT_LT(MemoryPeak() - before, 8 * 1024);
}

TEST_F(ProxyWireTest, AnAnswerIsHandedOnWhileItComes) {
  StartProxy();
  service().Next({{{"do", "hold"}, {"after", "head"}}});
  const TestConnection caller(port());

  caller.Send(TestRequest{.target = "/events"}.Bytes());
  const std::string beginning = caller.Read("first");
  service().Release();
  const std::string end = caller.Read();

  EXPECT_THAT(beginning, HasSubstr("first"));
  EXPECT_THAT(AnswersIn(beginning + end),
              ElementsAre(IsAnswer(200, "firstlast")));
}

TEST_F(ProxyWireTest, AnAnswerThatIsCutOffIsCutOffForItsCaller) {
  StartProxy();
  service().Next({{{"do", "half"}}});

  const HttpAnswer answer = Ask(port(), {});

  EXPECT_EQ(answer.status, 200);
  EXPECT_FALSE(answer.whole);
}

TEST_F(ProxyWireTest, AServiceThatDoesNotAnswerIsABadGateway) {
  StartProxy();
  service().Next({{{"do", "close"}}});

  EXPECT_THAT(Ask(port(), {}), IsProblem(502, "upstream-lost"));
}

TEST_F(ProxyWireTest, AServiceThatRefusesALongBodyIsHeard) {
  StartProxy();
  service().Next({{{"do", "refuse"}}});

  EXPECT_EQ(Ask(port(), {.body = std::string(8'000'000, 'x')}).status, 413);
}

// ----------------------------------------------------------- how it is sent

TEST_F(ProxyWireTest, ChunksAreReadWithAKeyAndWithout) {
  StartProxy();
  const auto chunked = [](const std::string& line) {
    return "POST /payments HTTP/1.1\r\nHost: a\r\nConnection: close\r\n" +
           line +
           "Transfer-Encoding: chunked\r\n\r\n"
           "4;x=1\r\n{\"a\"\r\n3\r\n:1}\r\n0\r\nTrailer: x\r\n\r\n";
  };
  const std::string key = "Idempotency-Key: " + Quoted(NewKey()) + "\r\n";

  EXPECT_EQ(AnswerTo(chunked("")).status, 201);
  EXPECT_EQ(AnswerTo(chunked(key)).status, 201);
  EXPECT_EQ(AnswerTo(chunked(key)).header("idempotent-replayed"), "true");

  const std::vector<Json> seen = service().Seen();
  ASSERT_THAT(seen, SizeIs(2));
  EXPECT_EQ(seen[0]["body"], "{\"a\":1}");
  EXPECT_EQ(seen[1]["body"], "{\"a\":1}");
}

TEST_F(ProxyWireTest, PipelinedRequestsAreAnsweredInTheirOrder) {
  StartProxy();
  const std::string key = NewKey();
  const auto request = [](const std::string& line, const std::string& body) {
    return "POST /payments HTTP/1.1\r\nHost: a\r\n" + line +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  };
  const std::string with_key = "Idempotency-Key: " + Quoted(key) + "\r\n";

  const std::vector<HttpAnswer> answers = AnswersTo(
      request(with_key, "1") + request("", "2") + request(with_key, "1") +
      request(with_key, "other") + request("Connection: close\r\n", "3"));

  ASSERT_THAT(answers, SizeIs(5));
  EXPECT_EQ(answers[0].status, 201);
  EXPECT_EQ(answers[1].status, 201);
  EXPECT_THAT(answers[2], IsReplay(201, answers[0].body));
  EXPECT_THAT(answers[3], IsProblem(422, "key-reused"));
  EXPECT_EQ(answers[4].status, 201);
  EXPECT_THAT(service().Seen(), SizeIs(3));
}

TEST_F(ProxyWireTest, ABodyThatIsHeldBackIsAskedFor) {
  StartProxy();
  for (const std::string& key : {std::string(), NewKey()}) {
    const TestConnection caller(port());
    TestRequest request{.headers = {{"Expect", "100-continue"}}};
    if (!key.empty()) {
      request.headers.emplace_back("Idempotency-Key", Quoted(key));
    }
    const std::string bytes = request.Bytes();
    const std::size_t head = bytes.find("\r\n\r\n") + 4;

    caller.Send(bytes.substr(0, head));
    EXPECT_THAT(caller.Read("\r\n\r\n"), HasSubstr("HTTP/1.1 100 "));
    caller.Send(bytes.substr(head));
    EXPECT_THAT(caller.Read(), HasSubstr("HTTP/1.1 201 "));
  }
}

TEST_F(ProxyWireTest, ACallerOfHttp10SeesNoChunks) {
  StartProxy();
  service().Next({{{"do", "answer"},
                   {"status", 200},
                   {"body", "paid"},
                   {"framing", "chunked"}}});

  const HttpAnswer answer = AnswerTo("POST /other HTTP/1.0\r\n\r\n");

  EXPECT_THAT(answer, IsAnswer(200, "paid"));
  EXPECT_EQ(answer.header("transfer-encoding"), "");
  EXPECT_EQ(HeaderOf(service().Seen().at(0), "Host"),
            "127.0.0.1:" + std::to_string(service().port()));
}

// -------------------------------------------------------------- bad input

TEST_F(ProxyWireTest, AHeadOfAMebibyteIsRefused) {
  StartProxy();
  const HttpAnswer answer =
      Ask(port(), {.headers = {{"X-Long", std::string(1 << 20, 'x')}}});

  EXPECT_THAT(answer, IsProblem(431, "head-too-large"));
  EXPECT_EQ(answer.header("connection"), "close");
  EXPECT_THAT(service().Seen(), IsEmpty());
}

TEST_F(ProxyWireTest, ABodyOverTheLimitIsRefusedWithAKey) {
  StartProxy({}, {"--request_bytes_max=1000"});
  const std::string body(1001, 'x');
  const std::string key = "Idempotency-Key: " + Quoted(NewKey());

  EXPECT_THAT(Pay(NewKey(), body), IsProblem(413, "request-too-long"));
  EXPECT_THAT(AnswerTo("POST /payments HTTP/1.1\r\nHost: a\r\n" + key +
                       "\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + body +
                       "\r\n0\r\n\r\n"),
              IsProblem(413, "request-too-long"));
  EXPECT_THAT(service().Seen(), IsEmpty());
  EXPECT_EQ(Ask(port(), {.body = body}).status, 201);
  EXPECT_EQ(Pay(NewKey(), body.substr(1)).status, 201);
}

TEST_F(ProxyWireTest, ARequestThatDoesNotComeIsGivenUp) {
  StartProxy({}, {"--request_timeout=300ms"});
  const TestRequest request{.headers = {{"Idempotency-Key", "\"slow\""}}};
  const std::string bytes = request.Bytes();

  EXPECT_THAT(AnswerTo(bytes.substr(0, 40)), IsProblem(408, "request-timeout"));
  EXPECT_THAT(AnswerTo(bytes.substr(0, bytes.size() - 1)),
              IsProblem(408, "request-timeout"));
  EXPECT_THAT(service().Seen(), IsEmpty());
}

TEST_F(ProxyWireTest, WhatIsNoHttpIsRefused) {
  StartProxy();
  const auto status = [&](const std::string& lines) {
    return AnswerTo("POST /payments HTTP/1.1\r\n" + lines + "\r\n{}").status;
  };

  EXPECT_EQ(AnswerTo("what is this?\r\n\r\n").status, 400);
  EXPECT_EQ(status("Content-Length: 2\r\nTransfer-Encoding: chunked\r\n"), 400);
  EXPECT_EQ(status("Content-Length: 2\r\nContent-Length: 3\r\n"), 400);
  EXPECT_EQ(status("Content-Length: -1\r\n"), 400);
  EXPECT_EQ(status("A header without an end\r\n"), 400);
  EXPECT_EQ(status("X: a\nIdempotency-Attempt: 9\r\n"), 400);
  EXPECT_EQ(status("Transfer-Encoding: gzip, chunked\r\n"), 501);
  EXPECT_EQ(status("Expect: more\r\nContent-Length: 2\r\n"), 417);
  EXPECT_EQ(AnswerTo("CONNECT a:1 HTTP/1.1\r\n\r\n").status, 501);
  EXPECT_THAT(service().Seen(), IsEmpty());
}

TEST_F(ProxyWireTest, BeyondItsConnectionsCallersAreToldSo) {
  StartProxy({}, {"--connections_max=1"});
  const TestConnection first(port());
  first.Send("POST /payments HTTP/1.1\r\n");
  HttpAnswer refused;

  WaitUntil([&] {
    // It may be refused before it has sent all: then nothing is read.
    const std::vector<HttpAnswer> answers =
        AnswersIn(TestConnection(port()).Read());
    if (!answers.empty()) refused = answers.front();
    return refused.status != 0;
  });

  EXPECT_THAT(refused, IsProblem(503, "unavailable"));
}

}  // namespace
}  // namespace idempotency
