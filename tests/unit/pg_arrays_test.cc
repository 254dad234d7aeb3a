// The bytes that PostgreSQL expects of a binary array (array_recv).
#include "server/store/postgres/pg_arrays.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace idempotency {
namespace {

using Element = ArrayWriter::Element;
using std::string_literals::operator""s;

TEST(ArrayWriter, HasNoDimensionWhenItIsEmpty) {
  EXPECT_EQ(ArrayWriter(Element::kText).Finish(),
            "\0\0\0\0\0\0\0\0\0\0\0\x19"s);
}

TEST(ArrayWriter, WritesHeaderAndLengthPrefixedElements) {
  ArrayWriter writer(Element::kText);
  writer.AddBytes("ab");
  writer.AddBytes("");
  EXPECT_EQ(std::move(writer).Finish(),
            "\0\0\0\x01"  // dimensions
            "\0\0\0\0"    // no NULL
            "\0\0\0\x19"  // text
            "\0\0\0\x02"  // elements
            "\0\0\0\x01"  // lower bound
            "\0\0\0\x02"
            "ab"
            "\0\0\0\0"s);
}

TEST(ArrayWriter, KeepsBytesThatAreSpecialElsewhere) {
  const std::string special = "{\"a\\b,c'\0\xff}"s;
  ArrayWriter writer(Element::kBytea);
  writer.AddBytes(special);
  const std::string bytes = std::move(writer).Finish();
  EXPECT_EQ(bytes.substr(24), special);
  EXPECT_EQ(bytes.substr(20, 4),
            std::string("\0\0\0", 3) + static_cast<char>(special.size()));
}

TEST(ArrayWriter, TellsNullFromTheWordAndFromEmpty) {
  ArrayWriter writer(Element::kText);
  writer.AddNull();
  writer.AddBytes("NULL");
  writer.AddBytes("");
  const std::string bytes = std::move(writer).Finish();
  EXPECT_EQ(bytes.substr(4, 4), "\0\0\0\x01"s);  // has a NULL
  EXPECT_EQ(bytes.substr(20),
            "\xff\xff\xff\xff"
            "\0\0\0\x04"
            "NULL"
            "\0\0\0\0"s);
}

TEST(ArrayWriter, WritesNumbersBigEndian) {
  ArrayWriter int2(Element::kInt2);
  int2.AddInt2(-2);
  EXPECT_EQ(std::move(int2).Finish().substr(20), "\0\0\0\x02\xff\xfe"s);
  ArrayWriter int4(Element::kInt4);
  int4.AddInt4(0x01020304);
  EXPECT_EQ(std::move(int4).Finish().substr(20), "\0\0\0\x04\x01\x02\x03\x04"s);
  ArrayWriter int8(Element::kInt8);
  int8.AddInt8(-1);
  EXPECT_EQ(std::move(int8).Finish().substr(20),
            "\0\0\0\x08\xff\xff\xff\xff\xff\xff\xff\xff"s);
  ArrayWriter boolean(Element::kBool);
  boolean.AddBool(true);
  boolean.AddBool(false);
  EXPECT_EQ(std::move(boolean).Finish().substr(20),
            "\0\0\0\x01\x01\0\0\0\x01\0"s);
}

TEST(ArrayWriter, WritesUuidsAsSixteenBytes) {
  ArrayWriter writer(Element::kUuid);
  writer.AddUuid(*ParseUuid("00010203-0405-0607-0809-0a0b0c0d0e0f"));
  EXPECT_EQ(std::move(writer).Finish().substr(20),
            "\0\0\0\x10\0\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d"
            "\x0e\x0f"s);
}

// The eight bytes of one time.
std::string Encoded(absl::Time time) {
  ArrayWriter writer(Element::kTimestampTz);
  writer.AddTime(time);
  return std::move(writer).Finish().substr(24);
}

TEST(Times, CountMicrosecondsFrom2000) {
  const absl::Time epoch =
      absl::FromCivil(absl::CivilDay(2000, 1, 1), absl::UTCTimeZone());
  EXPECT_EQ(Encoded(epoch), "\0\0\0\0\0\0\0\0"s);
  EXPECT_EQ(Encoded(epoch + absl::Microseconds(258)), "\0\0\0\0\0\0\x01\x02"s);
  EXPECT_EQ(Encoded(epoch - absl::Microseconds(1)),
            "\xff\xff\xff\xff\xff\xff\xff\xff"s);
}

TEST(Times, ComeBackAsTheyWere) {
  const std::vector<absl::Time> times = {
      absl::UnixEpoch(),        absl::FromUnixMicros(1'700'000'000'123'456),
      absl::FromUnixMicros(-1), absl::FromUnixMicros(4'102'444'800'000'001),
      absl::InfiniteFuture(),   absl::InfinitePast()};
  for (const absl::Time time : times) {
    EXPECT_EQ(DecodeBinaryTime(Encoded(time)), time) << time;
  }
}

TEST(Times, LoseWhatIsBelowAMicrosecond) {
  const absl::Time time = absl::FromUnixMicros(1'700'000'000'000'000);
  EXPECT_EQ(Encoded(time + absl::Nanoseconds(999)), Encoded(time));
}

TEST(Times, OfAnotherLengthAreRefused) {
  EXPECT_EQ(DecodeBinaryTime(""), std::nullopt);
  EXPECT_EQ(DecodeBinaryTime("1234567"), std::nullopt);
  EXPECT_EQ(DecodeBinaryTime("123456789"), std::nullopt);
}

TEST(BatchWriter, PutsEachValueIntoItsColumn) {
  BatchWriter batch;
  batch.Text("a");
  batch.OptionalMicros(absl::Seconds(1));
  batch.EndRow();
  batch.Text("b");
  batch.OptionalMicros(std::nullopt);
  batch.EndRow();
  const std::vector<std::string> columns = std::move(batch).Finish();

  ArrayWriter names(Element::kText);
  names.AddBytes("a");
  names.AddBytes("b");
  ArrayWriter durations(Element::kInt8);
  durations.AddInt8(1'000'000);
  durations.AddNull();
  EXPECT_EQ(columns, (std::vector<std::string>{std::move(names).Finish(),
                                               std::move(durations).Finish()}));
}

}  // namespace
}  // namespace idempotency
