// Input: rows of values of every type that the store writes, and NULLs among
// them (FuzzedDataProvider). They go to a real PostgreSQL as binary arrays and
// come back through PgRow.
// libFuzzer: -len_control=0 -max_len=4000
#include "server/store/postgres/pg_arrays.h"

#include <fuzzer/FuzzedDataProvider.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/store/postgres/pg_row.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/postgres.h"

namespace idempotency {
namespace {

using fuzz::Require;
using Element = ArrayWriter::Element;

constexpr int kRowsMax = 20;
constexpr std::size_t kBytesMax = 300;
// In microseconds since 2000: PostgreSQL's years from -4712 to 294276.
constexpr std::int64_t kTimeMin = -211'813'488'000'000'000;
constexpr std::int64_t kTimeMax = 9'223'371'331'199'999'999;

constexpr Statement kThereAndBack = {"there_and_back", R"sql(
SELECT a, b, c, d, e, f, timestamptz_send(g), h
FROM unnest($1::boolean[], $2::bytea[], $3::bigint[], $4::smallint[],
            $5::integer[], $6::text[], $7::timestamptz[], $8::uuid[])
  AS t (a, b, c, d, e, f, g, h)
)sql",
                                     Effect::kRead, Plan::kFresh};

struct Row {
  std::optional<bool> boolean;
  std::optional<std::string> bytes;
  std::optional<std::int64_t> int8;
  std::optional<std::int16_t> int2;
  std::optional<std::int32_t> int4;
  std::optional<std::string> text;
  std::optional<absl::Time> time;
  std::optional<Uuid> uuid;

  bool operator==(const Row&) const = default;
};

// Code points, none of them 0 or a surrogate, as UTF-8.
std::string AnyText(FuzzedDataProvider& in) {
  std::string text;
  const auto continued = [&](std::uint32_t bits) {
    text += static_cast<char>(0x80 | (bits & 0x3f));
  };
  for (int left = in.ConsumeIntegralInRange(0, 20); left > 0; --left) {
    auto code = in.ConsumeIntegralInRange<std::uint32_t>(1, 0x10ffff);
    if (in.ConsumeBool()) code = code % 0x7f + 1;
    if (code >= 0xd800 && code <= 0xdfff) code = 0xfffd;
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else if (code < 0x800) {
      text += static_cast<char>(0xc0 | code >> 6);
      continued(code);
    } else if (code < 0x10000) {
      text += static_cast<char>(0xe0 | code >> 12);
      continued(code >> 6);
      continued(code);
    } else {
      text += static_cast<char>(0xf0 | code >> 18);
      continued(code >> 12);
      continued(code >> 6);
      continued(code);
    }
  }
  return text;
}

absl::Time AnyTime(FuzzedDataProvider& in) {
  switch (in.ConsumeIntegralInRange(0, 7)) {
    case 0:
      return absl::InfiniteFuture();
    case 1:
      return absl::InfinitePast();
    default:
      return absl::FromUnixSeconds(946'684'800) +
             absl::Microseconds(in.ConsumeIntegralInRange(kTimeMin, kTimeMax));
  }
}

template <typename Make>
auto Perhaps(FuzzedDataProvider& in, Make make) {
  return in.ConsumeIntegralInRange(0, 3) == 0 ? std::nullopt
                                              : std::optional(make());
}

Row AnyRow(FuzzedDataProvider& in) {
  Row row;
  row.boolean = Perhaps(in, [&] { return in.ConsumeBool(); });
  row.bytes =
      Perhaps(in, [&] { return in.ConsumeRandomLengthString(kBytesMax); });
  row.int8 = Perhaps(in, [&] { return in.ConsumeIntegral<std::int64_t>(); });
  row.int2 = Perhaps(in, [&] { return in.ConsumeIntegral<std::int16_t>(); });
  row.int4 = Perhaps(in, [&] { return in.ConsumeIntegral<std::int32_t>(); });
  row.text = Perhaps(in, [&] { return AnyText(in); });
  row.time = Perhaps(in, [&] { return AnyTime(in); });
  row.uuid = Perhaps(in, [&] {
    Uuid uuid;
    for (std::uint8_t& byte : uuid.bytes) {
      byte = in.ConsumeIntegral<std::uint8_t>();
    }
    return uuid;
  });
  return row;
}

void Write(const Row& row, BatchWriter& out) {
  const auto write = [&](const auto& value, Element element, auto add) {
    if (value.has_value()) {
      (out.*add)(*value);
    } else {
      out.Null(element);
    }
  };
  write(row.boolean, Element::kBool, &BatchWriter::Bool);
  out.OptionalBytes(row.bytes);
  write(row.int8, Element::kInt8, &BatchWriter::Int8);
  write(row.int2, Element::kInt2, &BatchWriter::Int2);
  write(row.int4, Element::kInt4, &BatchWriter::Int4);
  write(row.text, Element::kText, &BatchWriter::Text);
  write(row.time, Element::kTimestampTz, &BatchWriter::Time);
  write(row.uuid, Element::kUuid, &BatchWriter::Id);
  out.EndRow();
}

Row ReadBack(const pqxx::row& from) {
  PgRow fields(from);
  Row row;
  int column = 0;
  const auto read = [&](auto& value, auto get) {
    if (!fields.IsNull(column)) value = (fields.*get)(column);
    ++column;
  };
  read(row.boolean, &PgRow::Bool);
  row.bytes = fields.OptionalBytes(column++);
  row.int8 = fields.OptionalInt8(column++);
  read(row.int2, &PgRow::Int4);
  read(row.int4, &PgRow::Int4);
  read(row.text, &PgRow::Text);
  read(row.time, &PgRow::Time);
  read(row.uuid, &PgRow::Id);
  Require(fields.ok(), "what was written can be read");
  return row;
}

void ThereAndBack(FuzzedDataProvider& in) {
  std::vector<Row> rows;
  BatchWriter out;
  while (rows.size() < kRowsMax && in.remaining_bytes() > 0) {
    Write(rows.emplace_back(AnyRow(in)), out);
  }
  if (rows.empty()) return;
  const absl::StatusOr<pqxx::result> result =
      fuzz::TheConnection().Run(kThereAndBack, std::move(out).Finish());
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
  }
  Require(result.ok(), "PostgreSQL takes the arrays");
  Require(static_cast<std::size_t>(result->size()) == rows.size(),
          "as many rows come back");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Require(ReadBack((*result)[static_cast<int>(i)]) == rows[i],
            "every value comes back as it was");
  }
}

}  // namespace
}  // namespace idempotency

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  FuzzedDataProvider in(data, size);
  idempotency::ThereAndBack(in);
  return 0;
}
