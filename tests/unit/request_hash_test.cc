#include "client/request_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/vectors.h"

namespace idempotency {
namespace {

struct Vector {
  std::string name;
  std::vector<std::string> parts;
  std::string digest;
};

// "6162" or, repeated, "6162*3".
std::string ReadPart(const std::string& text) {
  const std::vector<std::string> fields = SplitAt('*', text);
  const std::string bytes = FromHex(fields.at(0));
  std::string part;
  const int times = fields.size() == 1 ? 1 : std::stoi(fields.at(1));
  for (int i = 0; i < times; ++i) part += bytes;
  return part;
}

std::vector<Vector> Vectors() {
  std::vector<Vector> vectors;
  for (const std::vector<std::string>& row : ReadVectors("request_hash.tsv")) {
    EXPECT_EQ(row.size(), 4u);
    Vector vector{.name = row.at(0), .parts = {}, .digest = row.at(3)};
    if (row.at(1) != "0") {
      for (const std::string& part : SplitAt(',', row.at(2))) {
        vector.parts.push_back(ReadPart(part));
      }
    }
    EXPECT_EQ(std::to_string(vector.parts.size()), row.at(1)) << vector.name;
    vectors.push_back(std::move(vector));
  }
  return vectors;
}

std::string HashOf(const std::vector<std::string>& parts) {
  return RequestHashOfParts(
      std::vector<std::string_view>(parts.begin(), parts.end()));
}

TEST(RequestHashTest, IsThatOfTheVectors) {
  const std::vector<Vector> vectors = Vectors();
  ASSERT_EQ(vectors.size(), 24u);
  for (const Vector& vector : vectors) {
    EXPECT_EQ(ToHex(HashOf(vector.parts)), vector.digest) << vector.name;
  }
}

TEST(RequestHashTest, EveryVectorHasAHashOfItsOwn) {
  std::set<std::string> digests;
  for (const Vector& vector : Vectors()) {
    EXPECT_TRUE(digests.insert(vector.digest).second) << vector.name;
  }
}

TEST(RequestHashTest, AnHttpRequestIsTheListOfItsFourParts) {
  const auto vectors = Vectors();
  const auto http = std::find_if(
      vectors.begin(), vectors.end(),
      [](const Vector& vector) { return vector.name == "http request"; });
  ASSERT_NE(http, vectors.end());
  EXPECT_EQ(ToHex(RequestHash({.method = "POST",
                               .target = "/payments?currency=EUR",
                               .content_type = "application/json",
                               .body = R"({"order":"1001","amount":200})"})),
            http->digest);
}

TEST(RequestHashTest, IsThirtyTwoRawBytes) {
  EXPECT_EQ(RequestHash({}).size(), 32u);
  EXPECT_EQ(RequestHashOfParts({}).size(), 32u);
}

TEST(RequestHasherTest, PiecesOfAnyLengthMakeThePart) {
  for (const Vector& vector : Vectors()) {
    for (const std::size_t piece : {std::size_t{7}, std::size_t{4096}}) {
      RequestHasher hasher;
      for (const std::string& part : vector.parts) {
        hasher.Begin(part.size());
        hasher.Append("");
        for (std::size_t at = 0; at < part.size(); at += piece) {
          hasher.Append(std::string_view(part).substr(at, piece));
        }
      }
      const auto hash = std::move(hasher).Finish();
      ASSERT_TRUE(hash.ok()) << hash.status();
      EXPECT_EQ(ToHex(*hash), vector.digest) << vector.name << ", " << piece;
    }
  }
}

TEST(RequestHasherTest, ItCanBeMovedInTheMiddleOfAPart) {
  RequestHasher first;
  first.Add("a");
  first.Begin(4);
  first.Append("bc");
  RequestHasher second = std::move(first);
  second.Append("de");
  const auto hash = std::move(second).Finish();
  ASSERT_TRUE(hash.ok()) << hash.status();
  EXPECT_EQ(*hash, RequestHashOfParts({"a", "bcde"}));
}

// What an ended hasher was given, as a status.
template <typename Steps>
absl::StatusCode CodeAfter(Steps steps) {
  RequestHasher hasher;
  steps(hasher);
  return std::move(hasher).Finish().status().code();
}

TEST(RequestHasherTest, ABodyThatBrokeOffHasNoHash) {
  EXPECT_EQ(CodeAfter([](RequestHasher& hasher) {
              hasher.Begin(3);
              hasher.Append("ab");
            }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeAfter([](RequestHasher& hasher) {
              hasher.Begin(3);
              hasher.Append("ab");
              hasher.Add("c");
            }),
            absl::StatusCode::kInvalidArgument);
}

TEST(RequestHasherTest, MoreBytesThanAnnouncedHaveNoHash) {
  EXPECT_EQ(CodeAfter([](RequestHasher& hasher) {
              hasher.Begin(3);
              hasher.Append("ab");
              hasher.Append("cd");
              hasher.Append("c");
            }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeAfter([](RequestHasher& hasher) { hasher.Append("a"); }),
            absl::StatusCode::kInvalidArgument);
}

TEST(RequestHasherTest, AHasherThatWasFinishedGivesNothingMore) {
  RequestHasher hasher;
  ASSERT_TRUE(std::move(hasher).Finish().ok());
  hasher.Add("a");
  EXPECT_FALSE(std::move(hasher).Finish().ok());
}

}  // namespace
}  // namespace idempotency
