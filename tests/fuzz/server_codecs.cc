// Input: any bytes, taken for each thing that the server reads back from the
// database or from text, and cut at U+001E into parts that it writes.
#include <string>

#include "absl/strings/ascii.h"
#include "server/core/digest.h"
#include "server/core/header_codec.h"
#include "server/core/uuid.h"
#include "server/store/postgres/pg_arrays.h"
#include "tests/fuzz/check.h"

namespace idempotency {
namespace {

using fuzz::Require;

std::string Encoded(const std::vector<HeaderView>& headers) {
  std::string encoded;
  for (const HeaderView& header : headers) AppendHeader(header, encoded);
  return encoded;
}

void CheckHeaders(std::string_view input) {
  if (const auto headers = DecodeHeaders(input); headers.has_value()) {
    Require(Encoded(*headers) == input,
            "headers have one encoding: the one they were read from");
  }
  const std::vector<std::string_view> parts =
      fuzz::Parts(input, input.size() + 1);
  std::vector<HeaderView> headers;
  for (std::size_t i = 0; i + 1 < parts.size(); i += 2) {
    headers.push_back({parts[i], parts[i + 1]});
  }
  const std::string encoded = Encoded(headers);
  Require(DecodeHeaders(encoded) == headers, "what is written is read back");
  for (std::size_t size = 1; size < 9 && size < encoded.size(); ++size) {
    Require(!DecodeHeaders(std::string_view(encoded).substr(0, size)),
            "half a header is none");
  }
}

void CheckUuid(std::string_view text) {
  const std::optional<Uuid> uuid = ParseUuid(text);
  if (!uuid.has_value()) return;
  Require(FormatUuid(*uuid) == absl::AsciiStrToLower(
                                   absl::string_view(text.data(), text.size())),
          "a UUID is written as it was read, in lower case");
}

void CheckDigest(std::string_view input) {
  const std::vector<std::string_view> parts = fuzz::ExactlyParts(input, 4);
  const Response one{.headers = std::string(parts[0]),
                     .body = std::string(parts[1])};
  const Response other{.headers = std::string(parts[2]),
                       .body = std::string(parts[3])};
  Require((ResponseDigest(one) == ResponseDigest(other)) == (one == other),
          "two responses have one digest exactly if they are the same");
  const RecordId id{std::string(parts[0]), std::string(parts[1])};
  const RecordId another{std::string(parts[2]), std::string(parts[3])};
  Require((DownstreamKey({}, id, 0) == DownstreamKey({}, another, 0)) ==
              (id == another),
          "two records never have one downstream key");
}

void CheckTime(std::string_view bytes) {
  const std::optional<absl::Time> time = DecodeBinaryTime(bytes);
  Require(time.has_value() == (bytes.size() == 8), "a time has 8 bytes");
  if (!time.has_value()) return;
  // The years that PostgreSQL has, and some more.
  if (*time != absl::InfiniteFuture() && *time != absl::InfinitePast() &&
      (*time < absl::FromUnixSeconds(-300'000'000'000) ||
       *time > absl::FromUnixSeconds(9'000'000'000'000))) {
    return;
  }
  ArrayWriter writer(ArrayWriter::Element::kTimestampTz);
  writer.AddTime(*time);
  Require(std::move(writer).Finish().ends_with(std::string(bytes)),
          "a time is written as it was read");
}

}  // namespace
}  // namespace idempotency

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  const std::string_view input = idempotency::fuzz::Text(data, size);
  idempotency::CheckHeaders(input);
  idempotency::CheckUuid(input);
  idempotency::CheckDigest(input);
  idempotency::CheckTime(input);
  return 0;
}
