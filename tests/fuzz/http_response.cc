// Input, apart by U+001E: a problem's detail; names of header fields that the
// route records; names that it leaves out (one a line); then a response's
// header fields, a line each ("name:value").
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_split.h"
#include "client/http/problem.h"
#include "client/http/recorded_headers.h"
#include "client/operation.h"
#include "tests/fuzz/check.h"

namespace idempotency {
namespace {

using fuzz::Require;
using Json = nlohmann::json;
using Lines = std::vector<std::string>;

Lines LinesOf(std::string_view text) {
  return absl::StrSplit(absl::string_view(text.data(), text.size()), '\n',
                        absl::SkipEmpty());
}

v1::Response ResponseWith(const Lines& lines) {
  v1::Response response;
  for (const std::string& line : lines) {
    const std::vector<std::string> field =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    v1::Header* const header = response.add_headers();
    // In a message of the contract, names are UTF-8.
    header->set_name(IsUtf8(field.front()) ? field.front() : "x");
    header->set_value(field.back());
  }
  return response;
}

bool IsSame(const v1::Header& a, const v1::Header& b) {
  return a.name() == b.name() && a.value() == b.value();
}

// Whether the fields of `part` are some of `whole`, in their order.
bool IsPartOf(const v1::Response& part, const v1::Response& whole) {
  auto at = whole.headers().begin();
  for (const v1::Header& header : part.headers()) {
    at = std::find_if(at, whole.headers().end(),
                      [&](const auto& other) { return IsSame(header, other); });
    if (at == whole.headers().end()) return false;
    ++at;
  }
  return true;
}

void CheckHeaders(const HttpRoute& route, const v1::Response& response) {
  v1::Response sendable = response;
  KeepSendableHeaders(route, sendable);
  v1::Response recorded = response;
  KeepRecordedHeaders(route, recorded);
  Require(IsPartOf(sendable, response), "fields are only taken away");
  Require(IsPartOf(recorded, sendable), "what is recorded can be sent");
  for (const v1::Header& header : sendable.headers()) {
    Require(CanBeSent(header), "what HTTP cannot send is taken away");
    for (const char* name : {"Connection", "Content-Length", "Keep-Alive", "TE",
                             "Trailer", "Transfer-Encoding", "Upgrade",
                             "Proxy-Connection", "Idempotent-Replayed"}) {
      Require(!IsSameField(header.name(), name),
              "a field of one message is taken away");
    }
  }
  for (const v1::Header& header : recorded.headers()) {
    const bool wanted =
        std::any_of(route.headers_recorded.begin(),
                    route.headers_recorded.end(), [&](const std::string& name) {
                      return IsSameField(name, header.name());
                    });
    for (const char* name : {"Set-Cookie", "Authorization", "Date"}) {
      Require(wanted || !IsSameField(header.name(), name),
              "a secret or a moment is recorded only where the route says so");
    }
    for (const std::string& name : route.headers_left_out) {
      Require(!IsSameField(header.name(), name),
              "what the route leaves out is not recorded");
    }
  }
  v1::Response again = recorded;
  KeepRecordedHeaders(route, again);
  Require(again.SerializeAsString() == recorded.SerializeAsString(),
          "a second time takes nothing away");
}

void CheckProblem(const std::string& detail) {
  const v1::Response response =
      MakeProblem(kInProgress, "https://example.org/problems/", detail,
                  std::chrono::nanoseconds(detail.size()));
  const Json body = Json::parse(response.body(), nullptr, false);
  Require(body.is_object(), "a problem is a JSON object");
  Require(body["status"] == kInProgress.status, "its status is the response's");
  Require(body.contains("detail") == !detail.empty(),
          "it has a detail exactly if one was given");
  if (!detail.empty() && IsUtf8(detail)) {
    Require(body["detail"] == detail, "a detail in UTF-8 is told as it is");
  }
  Require(std::all_of(response.headers().begin(), response.headers().end(),
                      CanBeSent),
          "a problem's fields can be sent");
}

void FuzzResponse(std::string_view input) {
  const std::vector<std::string_view> parts = fuzz::ExactlyParts(input, 4);
  HttpRoute route;
  route.headers_recorded = LinesOf(parts[1]);
  route.headers_left_out = LinesOf(parts[2]);
  CheckHeaders(route, ResponseWith(LinesOf(parts[3])));
  CheckProblem(std::string(parts[0]));
}

}  // namespace
}  // namespace idempotency

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  idempotency::FuzzResponse(idempotency::fuzz::Text(data, size));
  return 0;
}
