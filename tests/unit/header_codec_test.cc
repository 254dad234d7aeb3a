#include "server/core/header_codec.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace idempotency {
namespace {

std::string Encode(const std::vector<HeaderView>& headers) {
  std::string encoded;
  for (const HeaderView& header : headers) AppendHeader(header, encoded);
  return encoded;
}

TEST(HeaderCodecTest, OrderDuplicatesEmptyAndBinaryValuesAreKept) {
  const std::string binary("\0\xff\r\n\x80", 5);
  const std::vector<HeaderView> headers = {
      {"set-cookie", "b=2"}, {"set-cookie", "a=1"}, {"Set-Cookie", "a=1"},
      {"x-empty", ""},       {"", "nameless"},      {"x-bin", binary}};
  const std::string encoded = Encode(headers);
  EXPECT_EQ(DecodeHeaders(encoded), headers);
}

TEST(HeaderCodecTest, NoHeadersAreNoBytes) {
  EXPECT_EQ(Encode({}), "");
  EXPECT_EQ(DecodeHeaders(""), std::vector<HeaderView>());
}

TEST(HeaderCodecTest, NamesAndValuesCannotBeMistakenForEachOther) {
  EXPECT_NE(Encode({{"ab", "c"}}), Encode({{"a", "bc"}}));
  EXPECT_NE(Encode({{"a", "b"}, {"c", "d"}}), Encode({{"a", "bcd"}}));
}

TEST(HeaderCodecTest, EveryTruncationIsSeen) {
  const std::string encoded = Encode({{"name", "value"}});
  for (std::size_t size = 1; size < encoded.size(); ++size) {
    EXPECT_FALSE(DecodeHeaders(encoded.substr(0, size)).has_value()) << size;
  }
}

TEST(HeaderCodecTest, LengthsBeyondTheEndAreSeen) {
  std::string encoded = Encode({{"name", "value"}});
  encoded[0] = '\xff';
  EXPECT_FALSE(DecodeHeaders(encoded).has_value());
  EXPECT_FALSE(DecodeHeaders(std::string(16, '\xff')).has_value());
}

}  // namespace
}  // namespace idempotency
