// Input, apart by U+001E: what a route of the sidecar matches, and a target.
#include <string>

#include "client/proxy/request_match.h"
#include "tests/fuzz/check.h"

namespace idempotency {
namespace {

using fuzz::Require;

void FuzzMatch(std::string_view text, std::string_view target) {
  const absl::StatusOr<RequestMatch> match = RequestMatch::Parse(text);
  if (!match.ok()) {
    return Require(absl::IsInvalidArgument(match.status()),
                   "a refusal is INVALID_ARGUMENT");
  }
  for (const char* method : {"GET", "HEAD", "OPTIONS", "TRACE"}) {
    Require(!match->Fits(method, target), "safe methods are never guarded");
  }
  const std::string_view methods = text.substr(0, text.find(' '));
  const std::string method(
      methods == "*" ? "POST" : methods.substr(0, methods.find(',')));
  const bool fits = match->Fits(method, target);
  const std::string path(target.substr(0, target.find('?')));
  Require(fits == match->Fits(method, path + "?query=/"),
          "the query does not count");
  Require(!fits || path.starts_with('/'), "what fits is a path");
  const std::string_view own = text.substr(methods.size() + 1);
  if (own.find('*') == std::string_view::npos) {
    Require(match->Fits(method, own), "a path fits itself");
  }
  if (text.ends_with("/**")) {
    Require(
        !fits || path.ends_with('/') || match->Fits(method, path + "/anything"),
        "below a path that fits ** fits as well");
  }
}

}  // namespace
}  // namespace idempotency

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  const auto parts =
      idempotency::fuzz::ExactlyParts(idempotency::fuzz::Text(data, size), 2);
  idempotency::FuzzMatch(parts[0], parts[1]);
  return 0;
}
