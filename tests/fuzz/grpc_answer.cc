// Input: a serialised idempotency.v1.Response, as another program may have
// recorded it.
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <string>

#include "client/grpc/recorded_call.h"
#include "tests/fuzz/check.h"

namespace idempotency {
namespace {

using fuzz::Require;

constexpr int kHeadersMax = 64;
constexpr std::size_t kHeaderBytesMax = std::size_t{16} << 10;

bool IsSame(const GrpcAnswer& a, const GrpcAnswer& b) {
  return a.status.error_code() == b.status.error_code() &&
         a.status.error_message() == b.status.error_message() &&
         a.status.error_details() == b.status.error_details() &&
         a.trailers == b.trailers && a.message == b.message;
}

bool HasTrailer(const GrpcAnswer& answer, std::string_view name) {
  return std::any_of(
      answer.trailers.begin(), answer.trailers.end(),
      [&](const auto& trailer) { return trailer.first == name; });
}

bool Fits(const v1::Response& response) {
  std::size_t bytes = 0;
  for (const v1::Header& header : response.headers()) {
    bytes += header.name().size() + header.value().size();
  }
  return response.headers_size() <= kHeadersMax && bytes <= kHeaderBytesMax;
}

void CheckAnswer(const GrpcAnswer& answer) {
  Require(answer.status.error_code() >= grpc::StatusCode::OK &&
              answer.status.error_code() <= grpc::StatusCode::UNAUTHENTICATED,
          "an answer has a code that there is");
  Require(answer.status.ok() || answer.message.empty(),
          "only an OK has a message");
  Require(!HasTrailer(answer, kReplayedTrailer),
          "a record does not say by itself that it is replayed");
  for (const auto& [name, value] : answer.trailers) {
    Require(IsHandedOn(name, value), "gRPC can send the trailers");
  }
}

void FuzzAnswer(const v1::Response& response) {
  const GrpcAnswer answer = ToAnswer(response);
  CheckAnswer(answer);

  const v1::Response recorded = ToResponse(answer);
  Require(Fits(recorded), "what is recorded fits a record");
  Require(recorded.status_code() == HttpStatusOf(answer.status.error_code()),
          "the HTTP status is that of the code");
  const GrpcAnswer replayed = ToAnswer(recorded);
  CheckAnswer(replayed);
  Require(replayed.status.error_code() == answer.status.error_code() &&
              replayed.message == answer.message,
          "code and message are replayed, whatever does not fit");
  if (!HasTrailer(replayed, kHeadersOmittedTrailer)) {
    Require(IsSame(replayed, answer), "what was recorded is replayed");
  }
}

}  // namespace
}  // namespace idempotency

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  // Nearly every input that is no message would be a line of the report.
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  idempotency::v1::Response response;
  if (!response.ParseFromArray(data, static_cast<int>(size))) return -1;
  idempotency::FuzzAnswer(response);
  return 0;
}
