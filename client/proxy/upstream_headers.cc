#include "client/proxy/upstream_headers.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace idempotency {
namespace {

constexpr char kAttempt[] = "idempotency-attempt";
constexpr char kFencingToken[] = "idempotency-fencing-token";
constexpr char kDownstreamKey[] = "idempotency-downstream-key";
constexpr char kAbandoned[] = "idempotency-abandoned";

const char* NameOf(v1::Abandoned::Reason reason) {
  switch (reason) {
    case v1::Abandoned::REASON_LEASE_LAPSED:
      return "lease-lapsed";
    case v1::Abandoned::REASON_SERVER_ERROR:
      return "server-error";
    default:
      // Of a reason that is not known here, this much holds.
      return "outcome-unknown";
  }
}

std::string Describe(const v1::Abandoned& abandoned) {
  std::string text = absl::StrCat("attempt=", abandoned.attempt(),
                                  ", reason=", NameOf(abandoned.reason()));
  if (abandoned.status_code() != 0) {
    absl::StrAppend(&text, ", status=", abandoned.status_code());
  }
  absl::StrAppend(&text, ", fencing-token=", abandoned.fencing_token(),
                  ", downstream-key=\"", abandoned.downstream_key(), "\"",
                  ", claimed-at=", abandoned.claimed_at().seconds(),
                  ", abandoned-at=", abandoned.abandoned_at().seconds());
  return text;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> UpstreamHeaders(
    const v1::Claimed& claimed) {
  std::vector<std::pair<std::string, std::string>> headers = {
      {kAttempt, absl::StrCat(claimed.attempt())},
      {kFencingToken, absl::StrCat(claimed.fencing_token())},
      {kDownstreamKey, claimed.downstream_key()}};
  if (claimed.has_abandoned()) {
    headers.emplace_back(kAbandoned, Describe(claimed.abandoned()));
  }
  return headers;
}

bool IsUpstreamHeader(std::string_view name) {
  const absl::string_view text(name.data(), name.size());
  for (const char* own :
       {kAttempt, kFencingToken, kDownstreamKey, kAbandoned}) {
    if (absl::EqualsIgnoreCase(text, own)) return true;
  }
  return false;
}

}  // namespace idempotency
