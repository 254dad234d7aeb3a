// What the middleware records of a response, and what it answers by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "client/http/problem.h"
#include "client/http/recorded_headers.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

using Fields = std::vector<std::pair<std::string, std::string>>;

v1::Response With(const Fields& fields) {
  v1::Response response;
  for (const auto& [name, value] : fields) {
    v1::Header* const header = response.add_headers();
    header->set_name(name);
    header->set_value(value);
  }
  return response;
}

Fields FieldsOf(const v1::Response& response) {
  Fields fields;
  for (const v1::Header& header : response.headers()) {
    fields.emplace_back(header.name(), header.value());
  }
  return fields;
}

Fields Recorded(const Fields& fields, const HttpRoute& route = {}) {
  v1::Response response = With(fields);
  KeepRecordedHeaders(route, response);
  return FieldsOf(response);
}

Fields Sendable(const Fields& fields, const HttpRoute& route = {}) {
  v1::Response response = With(fields);
  KeepSendableHeaders(route, response);
  return FieldsOf(response);
}

TEST(RecordedHeadersTest, KeepOrderDuplicatesEmptyAndBinaryValues) {
  const Fields fields = {{"X-B", "1"},
                         {"x-a", std::string("\x01\xff\xc3\xa9")},
                         {"X-B", "2"},
                         {"X-Empty", ""},
                         {"Content-Type", "text/plain"}};
  EXPECT_EQ(Recorded(fields), fields);
}

TEST(RecordedHeadersTest, AreNotThoseOfOneConnection) {
  EXPECT_THAT(Recorded({{"Connection", "close, X-Hop"},
                        {"keep-alive", "timeout=5"},
                        {"Proxy-Connection", "close"},
                        {"TE", "trailers"},
                        {"Trailer", "X"},
                        {"Transfer-Encoding", "chunked"},
                        {"Upgrade", "h2c"},
                        {"Content-Length", "3"},
                        {"x-hop", "1"},
                        {"Idempotent-Replayed", "true"},
                        {"X-Kept", "1"}},
                       {.scope = "tests",
                        .headers_recorded = {"Connection", "Content-Length"}}),
              ElementsAre(Pair("X-Kept", "1")));
}

TEST(RecordedHeadersTest, AreNotThoseOfOneClientUnlessTheRouteSaysSo) {
  const Fields fields = {{"Set-Cookie", "session=1"},
                         {"AUTHORIZATION", "secret"},
                         {"WWW-Authenticate", "Basic"},
                         {"Date", "now"},
                         {"Age", "1"}};
  EXPECT_THAT(Recorded(fields), IsEmpty());
  EXPECT_THAT(
      Recorded(fields, {.scope = "tests", .headers_recorded = {"set-cookie"}}),
      ElementsAre(Pair("Set-Cookie", "session=1")));
}

TEST(RecordedHeadersTest, AreNotThoseThatTheRouteLeavesOut) {
  EXPECT_THAT(Recorded({{"X-Trace", "1"}, {"Date", "now"}, {"X-Kept", "1"}},
                       {.scope = "tests",
                        .headers_recorded = {"Date"},
                        .headers_left_out = {"x-trace", "date"}}),
              ElementsAre(Pair("X-Kept", "1")));
}

TEST(RecordedHeadersTest, ARecordCannotBreakAMessageApart) {
  EXPECT_THAT(Sendable({{"X-Evil", "1\r\nSet-Cookie: a=b"},
                        {"X-Evil", "1\nX: y"},
                        {"X-Evil", std::string("a\0b", 3)},
                        {"X Evil", "1"},
                        {"X-Evil: a\r\nX", "1"},
                        {"", "1"},
                        {"caf\xc3\xa9", "1"},
                        {"Content-Length", "0"},
                        {"Transfer-Encoding", "chunked"},
                        {"Idempotent-Replayed", "false"},
                        {"Set-Cookie", "a=b"}}),
              ElementsAre(Pair("Set-Cookie", "a=b")));
}

TEST(RecordedHeadersTest, TheMarkIsTheRoutes) {
  EXPECT_THAT(
      Recorded(
          {{"X-Idempotent-Replayed", "true"}, {"Idempotent-Replayed", "1"}},
          {.scope = "tests", .replayed_header = "X-Idempotent-Replayed"}),
      ElementsAre(Pair("Idempotent-Replayed", "1")));
}

// ------------------------------------------------------------------- problems

TEST(ProblemTest, IsAProblemOfRfc9457) {
  const v1::Response response =
      MakeProblem(kKeyReused, "https://example.org/", "why \"so\" \xff");

  EXPECT_EQ(response.status_code(), 422);
  EXPECT_THAT(FieldsOf(response),
              ElementsAre(Pair("content-type", "application/problem+json")));
  const auto body = nlohmann::json::parse(response.body());
  EXPECT_EQ(body["type"], "https://example.org/key-reused");
  EXPECT_EQ(body["title"], kKeyReused.title);
  EXPECT_EQ(body["status"], 422);
  EXPECT_EQ(body["detail"], "why \"so\" \xef\xbf\xbd");
}

TEST(ProblemTest, RetryAfterIsInWholeSecondsRoundedUpAndAtLeastOne) {
  const auto retry_after = [](std::chrono::nanoseconds duration) {
    return FieldsOf(MakeProblem(kInProgress, "", "", duration)).back();
  };
  EXPECT_THAT(retry_after(milliseconds(0)), Pair("Retry-After", "1"));
  EXPECT_THAT(retry_after(seconds(-5)), Pair("Retry-After", "1"));
  EXPECT_THAT(retry_after(milliseconds(1)), Pair("Retry-After", "1"));
  EXPECT_THAT(retry_after(milliseconds(1000)), Pair("Retry-After", "1"));
  EXPECT_THAT(retry_after(milliseconds(1001)), Pair("Retry-After", "2"));
  EXPECT_THAT(retry_after(std::chrono::hours(1)), Pair("Retry-After", "3600"));
}

}  // namespace
}  // namespace idempotency
