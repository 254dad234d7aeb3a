#include "server/rpc/bulk_outbox.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <cstdint>
#include <utility>

#include "server/core/limits.h"

namespace idempotency {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

// A result of this size goes by itself: copying it behind others costs more
// than a message of its own.
constexpr std::size_t kAloneBytes = limits::kBulkMessageBytes / 4;

}  // namespace

std::string SerializeResult(const v1::Result& result) {
  constexpr std::uint32_t kTag =
      WireFormatLite::MakeTag(v1::BulkResponse::kResultsFieldNumber,
                              WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  const auto size = static_cast<std::uint32_t>(result.ByteSizeLong());
  std::string bytes(CodedOutputStream::VarintSize32(kTag) +
                        CodedOutputStream::VarintSize32(size) + size,
                    '\0');
  auto* end = reinterpret_cast<std::uint8_t*>(bytes.data());
  end = CodedOutputStream::WriteTagToArray(kTag, end);
  end = CodedOutputStream::WriteVarint32ToArray(size, end);
  result.SerializeWithCachedSizesToArray(end);
  return bytes;
}

void BulkOutbox::Add(std::string result) {
  bytes_ += result.size();
  if (result.size() >= kAloneBytes) {
    messages_.push_back({std::move(result), limits::kBulkCommandsMax});
    return;
  }
  if (messages_.empty() ||
      messages_.back().results >= limits::kBulkCommandsMax ||
      messages_.back().bytes.size() + result.size() >
          limits::kBulkMessageBytes) {
    messages_.emplace_back();
  }
  messages_.back().bytes += result;
  ++messages_.back().results;
}

std::string BulkOutbox::Take() {
  std::string message = std::move(messages_.front().bytes);
  messages_.pop_front();
  bytes_ -= message.size();
  return message;
}

}  // namespace idempotency
