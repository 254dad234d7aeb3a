#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/http/idempotency_key.h"

namespace idempotency {
namespace {

using testing::HasSubstr;
using testing::Not;

absl::StatusOr<std::optional<std::string>> Parse(
    const std::vector<std::string_view>& values) {
  return ParseIdempotencyKey(values);
}

// The key that the one value stands for, or why it stands for none.
std::string Read(std::string_view value) {
  const auto key = Parse({value});
  if (!key.ok()) return "refused: " + std::string(key.status().message());
  return key->value_or("missing");
}

MATCHER(IsRefused, "") { return arg.starts_with("refused: "); }

TEST(IdempotencyKeyTest, IsMissingWhereTheFieldIs) {
  const auto key = Parse({});

  ASSERT_TRUE(key.ok()) << key.status();
  EXPECT_EQ(*key, std::nullopt);
}

TEST(IdempotencyKeyTest, IsTheStringBetweenTheQuotationMarks) {
  EXPECT_EQ(Read("\"8e03978e-40d5-43e8-bc93-6894a57f9324\""),
            "8e03978e-40d5-43e8-bc93-6894a57f9324");
  EXPECT_EQ(Read("\"a key, with; marks\""), "a key, with; marks");
  EXPECT_EQ(Read("\" spaces of its own \""), " spaces of its own ");
}

TEST(IdempotencyKeyTest, MayBeSentBare) {
  EXPECT_EQ(Read("8e03978e-40d5"), "8e03978e-40d5");
  EXPECT_EQ(Read("order/1842:a=b+c=="), "order/1842:a=b+c==");
  EXPECT_EQ(Read("abc"), Read("\"abc\""));
}

TEST(IdempotencyKeyTest, EscapesStandForQuotationMarkAndBackslashOnly) {
  EXPECT_EQ(Read(R"("say \"a\\b\"")"), R"(say "a\b")");
  EXPECT_THAT(Read(R"("a\n")"), IsRefused());
  EXPECT_THAT(Read(R"("a\")"), IsRefused());
  EXPECT_THAT(Read("\"a\\"), IsRefused());
}

TEST(IdempotencyKeyTest, IsNeverCutToAnotherKey) {
  for (const std::string_view value :
       {"a b", "a,b", "a, b", "\"a\", \"b\"", "\"a\"b", "\"a\" b", "\"a\";x=1",
        "a;x=1", "\"a", "a\"", "\"a\"\"b\"", "\"a\\", "a\\b", " a", "a ", "a\t",
        " \"a\"", "\"a\" "}) {
    EXPECT_THAT(Read(value), IsRefused()) << value;
  }
}

TEST(IdempotencyKeyTest, IsRefusedWhenSentTwice) {
  EXPECT_THAT(Parse({"a", "b"}).status().message(),
              HasSubstr("more than once"));
  EXPECT_FALSE(Parse({"a", "a"}).ok());
  EXPECT_FALSE(Parse({"", "a"}).ok());
}

TEST(IdempotencyKeyTest, IsPrintableAscii) {
  for (const std::string& value :
       {std::string("\"caf\xc3\xa9\""), std::string("caf\xc3\xa9"),
        std::string("\"\xff\""), std::string("\"a\tb\""), std::string("a\tb"),
        std::string("\"a\x7f\""), std::string("a\0b", 3),
        std::string("\"a\0\"", 4), std::string("\"a\r\nb\"")}) {
    EXPECT_THAT(Read(value), IsRefused()) << value;
  }
  std::string printable;
  for (char c = ' '; c <= '~'; ++c) {
    if (c == '"' || c == '\\') printable += '\\';
    printable += c;
  }
  EXPECT_EQ(Read("\"" + printable + "\"").size(), 95u);
}

TEST(IdempotencyKeyTest, HasOneTo255Bytes) {
  const std::string longest(255, 'k');
  EXPECT_EQ(Read(longest), longest);
  EXPECT_EQ(Read("\"" + longest + "\""), longest);
  std::string escaped = "\"";
  for (int i = 0; i < 255; ++i) escaped += "\\\\";
  EXPECT_EQ(Read(escaped + "\""), std::string(255, '\\'));

  EXPECT_THAT(Read(""), IsRefused());
  EXPECT_THAT(Read("  "), IsRefused());
  EXPECT_THAT(Read("\"\""), IsRefused());
  EXPECT_THAT(Read(longest + "k"), IsRefused());
  EXPECT_THAT(Read("\"" + longest + "k\""), IsRefused());
  EXPECT_THAT(Read(std::string(1 << 20, 'k')), IsRefused());
}

TEST(IdempotencyKeyTest, ARefusalDoesNotRepeatTheValue) {
  EXPECT_THAT(Read("secret key"), Not(HasSubstr("secret")));
}

}  // namespace
}  // namespace idempotency
