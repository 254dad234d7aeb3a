#include "server/core/digest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/core/header_codec.h"
#include "server/core/types.h"
#include "tests/support/vectors.h"

namespace idempotency {
namespace {

TEST(DigestTest, DownstreamKeysAreThoseOfTheVectors) {
  const auto rows = ReadVectors("downstream_key.tsv");
  ASSERT_EQ(rows.size(), 120u);
  for (const std::vector<std::string>& row : rows) {
    ASSERT_EQ(row.size(), 5u);
    EXPECT_EQ(DownstreamKey(*ParseUuid(row[0]), {row[1], FromHex(row[2])},
                            std::stoi(row[3])),
              row[4])
        << row[1] << " " << row[2] << " " << row[3];
  }
}

TEST(DigestTest, ResponseDigestsAreThoseOfTheVectors) {
  const auto rows = ReadVectors("response_digest.tsv");
  ASSERT_EQ(rows.size(), 10u);
  for (const std::vector<std::string>& row : rows) {
    ASSERT_EQ(row.size(), 6u);
    const Response response{.status_code = std::stoi(row[0]),
                            .headers = FromHex(row[3]),
                            .body = FromHex(row[4]),
                            .body_omitted = row[1] == "1",
                            .headers_omitted = row[2] == "1"};
    EXPECT_EQ(ToHex(ResponseDigest(response)), row[5]) << row[0];
  }
}

TEST(DigestTest, TheVectorsHeadersAreInTheEncodingOfTheStore) {
  std::string encoded;
  AppendHeader({"set-cookie", "a=1"}, encoded);
  AppendHeader({"set-cookie", "b=2"}, encoded);
  EXPECT_EQ(ReadVectors("response_digest.tsv").at(6).at(3), ToHex(encoded));
}

TEST(DigestTest, EveryPartOfAResponseHasASay) {
  const Response base{.status_code = 200, .headers = "h", .body = "b"};
  std::vector<Response> others(5, base);
  others[0].status_code = 201;
  others[1].headers = "hb";
  others[2].body = "";
  others[3].body_omitted = true;
  others[4].headers_omitted = true;
  for (const Response& other : others) {
    EXPECT_NE(ResponseDigest(other), ResponseDigest(base));
  }
  EXPECT_NE(ResponseDigest({.status_code = 200, .headers = "hb", .body = ""}),
            ResponseDigest({.status_code = 200, .headers = "h", .body = "b"}));
}

TEST(DigestTest, PartsAreFramedByTheirLength) {
  std::string framed;
  AppendFramed("ab", framed);
  AppendFramed("", framed);
  EXPECT_EQ(framed, std::string("\0\0\0\0\0\0\0\2ab\0\0\0\0\0\0\0\0", 18));
}

}  // namespace
}  // namespace idempotency
