#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "client/http/fingerprint.h"
#include "client/request_hash.h"

namespace idempotency {
namespace {

HttpRequest ARequest(std::string_view body = "{\"amount\":200}") {
  return {.method = "POST",
          .target = "/payments?currency=EUR",
          .headers = {{"Content-Type", "application/json"}},
          .body = body};
}

std::string Without(const std::vector<std::string>& pointers,
                    std::string_view body) {
  return WithoutJsonMembers(body, pointers);
}

TEST(HttpFingerprintTest, IsThePlainHashWhereNothingIsChosen) {
  EXPECT_EQ(HashOf(ARequest(), {}),
            RequestHash({.method = "POST",
                         .target = "/payments?currency=EUR",
                         .content_type = "application/json",
                         .body = "{\"amount\":200}"}));
  HttpRequest bare = ARequest("");
  bare.headers.clear();
  EXPECT_EQ(HashOf(bare, {}), RequestHash({.method = "POST",
                                           .target = "/payments?currency=EUR",
                                           .content_type = "",
                                           .body = ""}));
}

TEST(HttpFingerprintTest, TellsApartWhateverIsDifferent) {
  const std::string hash = HashOf(ARequest(), {});
  HttpRequest other = ARequest();
  other.method = "PUT";
  EXPECT_NE(HashOf(other, {}), hash);
  other = ARequest();
  other.target = "/refunds?currency=EUR";
  EXPECT_NE(HashOf(other, {}), hash);
  other = ARequest();
  other.target = "/payments?currency=USD";
  EXPECT_NE(HashOf(other, {}), hash);
  other = ARequest();
  other.headers = {{"content-type", "text/plain"}};
  EXPECT_NE(HashOf(other, {}), hash);
  EXPECT_NE(HashOf(ARequest("{\"amount\": 200}"), {}), hash);
}

TEST(HttpFingerprintTest, AContentTypeMayNotCount) {
  HttpRequest other = ARequest();
  other.headers.clear();
  EXPECT_EQ(HashOf(ARequest(), {.content_type = false}), HashOf(other, {}));
}

TEST(HttpFingerprintTest, AHashThatWasMadeElsewhereIsTaken) {
  HttpRequest request = ARequest();
  request.request_hash = std::string(32, 'h');
  EXPECT_EQ(HashOf(request, {.json_left_out = {"/amount"}}),
            std::string(32, 'h'));
}

// -------------------------------------------------------------------- headers

TEST(HttpFingerprintTest, AddedHeadersCountByNameNumberAndValue) {
  const HttpFingerprint with{.headers_added = {"X-Tenant"}};
  HttpRequest request = ARequest();
  const std::string without = HashOf(request, with);
  EXPECT_NE(without, HashOf(request, {}));

  request.headers.push_back({"x-tenant", "a"});
  EXPECT_EQ(HashOf(request, {}), HashOf(ARequest(), {}));
  EXPECT_NE(HashOf(request, with), without);
  EXPECT_EQ(
      HashOf(request, with),
      RequestHashOfParts({"POST", "/payments?currency=EUR", "application/json",
                          "{\"amount\":200}", "x-tenant", "1", "a"}));
  HttpRequest empty = ARequest();
  empty.headers.push_back({"X-Tenant", ""});
  EXPECT_NE(HashOf(empty, with), without);
}

// ---------------------------------------------------------------------- query

std::string HashOfTarget(std::string_view target,
                         const std::vector<std::string>& left_out) {
  HttpRequest request = ARequest();
  request.target = target;
  return HashOf(request, {.query_left_out = left_out});
}

TEST(HttpFingerprintTest, AQueryParameterMayNotCount) {
  const std::string plain = HashOfTarget("/p?a=1&b=2", {});
  const std::vector<std::string> trace = {"trace"};
  EXPECT_EQ(HashOfTarget("/p?a=1&trace=x&b=2", trace), plain);
  EXPECT_EQ(HashOfTarget("/p?trace&a=1&b=2&trace=", trace), plain);
  EXPECT_EQ(HashOfTarget("/p?a=1&b=2", trace), plain);
  EXPECT_NE(HashOfTarget("/p?a=1&traces=x&b=2", trace), plain);
  EXPECT_NE(HashOfTarget("/p?b=2&a=1", trace), plain);
  EXPECT_EQ(HashOfTarget("/p?trace=1", trace), HashOfTarget("/p", {}));
  EXPECT_EQ(HashOfTarget("/p?", trace), HashOfTarget("/p?", {}));
}

// ----------------------------------------------------------------------- JSON

TEST(HttpFingerprintTest, AJsonMemberMayNotCount) {
  const HttpFingerprint without{.json_left_out = {"/timestamp"}};
  EXPECT_EQ(HashOf(ARequest("{\"amount\":200,\"timestamp\":1}"), without),
            HashOf(ARequest("{\"timestamp\": 2, \"amount\": 200}"), without));
  EXPECT_EQ(HashOf(ARequest("{\"amount\":200,\"timestamp\":1}"), without),
            HashOf(ARequest("{\"amount\":200}"), {}));
  EXPECT_NE(HashOf(ARequest("{\"amount\":200,\"timestamp\":1}"), without),
            HashOf(ARequest("{\"amount\":201,\"timestamp\":1}"), without));
}

TEST(HttpFingerprintTest, TheRestOfTheJsonStaysInItsOrderWithoutSpace) {
  EXPECT_EQ(Without({"/b"}, R"( {"c" : [1, 2.50, -3e2 ,true,null], "b":{"x":[]},
                                 "a": "x y" } )"),
            R"({"c":[1,2.50,-3e2,true,null],"a":"x y"})");
  EXPECT_EQ(Without({"/a"}, R"({"a":1})"), "{}");
  EXPECT_EQ(Without({"/a"}, "[]"), "[]");
  EXPECT_EQ(Without({"/a"}, "\"a\""), "\"a\"");
}

TEST(HttpFingerprintTest, PointersReachIntoObjectsAndArrays) {
  const std::string body =
      R"({"meta":{"at":1,"by":2},"items":[{"at":3},{"at":4}],"a/b":5,"m~n":6})";
  EXPECT_EQ(Without({"/meta/at"}, body),
            R"({"meta":{"by":2},"items":[{"at":3},{"at":4}],"a/b":5,"m~n":6})");
  EXPECT_EQ(Without({"/items/1/at", "/meta"}, body),
            R"({"items":[{"at":3},{}],"a/b":5,"m~n":6})");
  EXPECT_EQ(Without({"/items/0", "/a~1b", "/m~0n", "/meta"}, body),
            R"({"items":[{"at":4}]})");
  EXPECT_EQ(Without({"/at", "at", "/meta/", "/items/2", ""}, body), body);
}

TEST(HttpFingerprintTest, NumbersThatADoubleWouldTakeForOneStayApart) {
  for (const std::string_view number :
       {"12345678901234567890123", "12345678901234567890124", "0.1",
        "0.10000000000000000555", "1e2", "100", "18446744073709551615",
        "-9223372036854775808"}) {
    const std::string body = "[" + std::string(number) + "]";
    EXPECT_EQ(Without({"/a"}, body), body);
  }
  EXPECT_EQ(Without({"/a"}, "[-0]"), "[0]");
}

TEST(HttpFingerprintTest, StringsAreTheSameHoweverTheyWereEscaped) {
  EXPECT_EQ(Without({"/a"}, R"(["\u00e9\/\u0041\n\u001f\"\\"])"),
            "[\"\xc3\xa9/A\\n\\u001f\\\"\\\\\"]");
}

TEST(HttpFingerprintTest, WhatIsNoClearJsonIsHashedWhole) {
  for (const std::string& body :
       {std::string(R"({"timestamp":1)"), std::string("timestamp=1"),
        std::string(""), std::string(R"({"timestamp":1} x)"),
        std::string(R"({"a":1,"timestamp":1,"a":2})"),
        std::string(R"({"timestamp":1,"timestamp":2})"),
        std::string(R"({"x":{"a":1,"a":1},"timestamp":1})"),
        std::string("{\"a\":\"\xff\"}"), std::string(R"({"a":1e999})"),
        std::string(R"(["\ud800"])"), std::string("{\"timestamp\":1}\0", 16),
        std::string("{\"timestamp\":1}\0{}", 18),
        std::string(200, '[') + std::string(200, ']')}) {
    EXPECT_EQ(Without({"/timestamp"}, body), body);
  }
}

TEST(HttpFingerprintTest, ManyBracketsAreHashedWhole) {
  const std::string brackets(4 << 20, '[');
  EXPECT_EQ(Without({"/timestamp"}, brackets), brackets);
  // Also where they are left out.
  const std::string inside = "{\"timestamp\":" + brackets;
  EXPECT_EQ(Without({"/timestamp"}, inside), inside);
}

}  // namespace
}  // namespace idempotency
