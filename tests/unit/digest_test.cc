#include "server/core/digest.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "server/core/header_codec.h"
#include "server/core/types.h"

namespace idempotency {
namespace {

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(
        static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string ToHex(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const char c : bytes) {
    hex.push_back(kDigits[static_cast<unsigned char>(c) >> 4]);
    hex.push_back(kDigits[static_cast<unsigned char>(c) & 0xf]);
  }
  return hex;
}

// The rows of a file of test vectors, without its header.
std::vector<std::vector<std::string>> ReadVectors(const std::string& name) {
  std::ifstream file(std::string(IDEMPOTENCY_VECTORS_FOLDER "/") + name);
  std::vector<std::vector<std::string>> rows;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::vector<std::string> row(1);
    for (const char c : line) {
      if (c == '\t') {
        row.emplace_back();
      } else {
        row.back().push_back(c);
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

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
