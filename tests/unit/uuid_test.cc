#include "server/core/uuid.h"

#include <gtest/gtest.h>

#include <string>

namespace idempotency {
namespace {

constexpr char kText[] = "01234567-89ab-cdef-fedc-ba9876543210";

TEST(UuidTest, TextIsReadAndWrittenBack) {
  ASSERT_TRUE(ParseUuid(kText).has_value());
  EXPECT_EQ(FormatUuid(*ParseUuid(kText)), kText);
  EXPECT_EQ(ParseUuid(kText)->bytes[0], 0x01);
  EXPECT_EQ(ParseUuid(kText)->bytes[15], 0x10);
}

TEST(UuidTest, UpperAndLowerCaseAreTheSameToken) {
  const auto upper = ParseUuid("01234567-89AB-CDEF-FEDC-BA9876543210");
  ASSERT_TRUE(upper.has_value());
  EXPECT_EQ(*upper, *ParseUuid(kText));
}

TEST(UuidTest, EveryOtherFormIsRefused) {
  const std::string text = kText;
  for (const std::string& wrong :
       {std::string(), text.substr(1), text + "0", " " + text.substr(1),
        text.substr(0, 35) + " ", "{" + text + "}", "urn:uuid:" + text,
        std::string("0123456789abcdeffedcba9876543210"),
        std::string("012345678-9ab-cdef-fedc-ba9876543210"),
        std::string("01234567-89ab-cdef-fedc-ba987654321g"),
        std::string("01234567-89ab-cdef-fedcxba9876543210"),
        std::string("0-234567-89ab-cdef-fedc-ba9876543210"),
        std::string("01234567-89ab-cdef-fedc-ba98765432\0000", 36)}) {
    EXPECT_FALSE(ParseUuid(wrong).has_value()) << wrong;
  }
}

TEST(UuidTest, NilAndMaxAreKnown) {
  EXPECT_TRUE(ParseUuid("00000000-0000-0000-0000-000000000000")->is_nil());
  EXPECT_TRUE(ParseUuid("ffffffff-ffff-ffff-ffff-ffffffffffff")->is_max());
  EXPECT_FALSE(ParseUuid(kText)->is_nil());
  EXPECT_FALSE(ParseUuid(kText)->is_max());
  EXPECT_FALSE(ParseUuid("ffffffff-ffff-ffff-ffff-fffffffffffe")->is_max());
}

// The example of RFC 9562, appendix A.4.
TEST(UuidTest, NameBasedUuidsAreThoseOfTheStandard) {
  const Uuid dns = *ParseUuid("6ba7b810-9dad-11d1-80b4-00c04fd430c8");
  EXPECT_EQ(FormatUuid(NameBasedUuid(dns, "www.example.com")),
            "2ed6657d-e927-568b-95e1-2665a8aea6a2");
}

}  // namespace
}  // namespace idempotency
