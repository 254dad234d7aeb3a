#include "client/proxy/http_fields.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/http/recorded_headers.h"
#include "client/proxy/upstream_headers.h"

namespace idempotency::internal {

Fields EndToEnd(const Fields& fields) {
  v1::Response message;
  for (const auto& [name, value] : fields) {
    v1::Header* const header = message.add_headers();
    header->set_name(name);
    header->set_value(value);
  }
  HttpRoute no_route;
  no_route.replayed_header.clear();
  KeepSendableHeaders(no_route, message);
  Fields kept;
  for (v1::Header& header : *message.mutable_headers()) {
    kept.emplace_back(std::move(*header.mutable_name()),
                      std::move(*header.mutable_value()));
  }
  return kept;
}

RequestHead HandedOn(const RequestHead& head, const HostAndPort& upstream) {
  RequestHead handed_on = head;
  handed_on.fields = EndToEnd(head.fields);
  std::erase_if(handed_on.fields, [](const auto& field) {
    std::string name = field.first;
    std::replace(name.begin(), name.end(), '_', '-');
    // What is expected is answered here.
    return IsUpstreamHeader(name) || IsSameField(name, "expect");
  });
  // HTTP/1.1 needs one, HTTP/1.0 does not.
  if (ValuesOf(handed_on.fields, "host").empty()) {
    const bool is_ipv6 = upstream.host.find(':') != std::string::npos;
    handed_on.fields.emplace_back(
        "Host", absl::StrCat(is_ipv6 ? "[" : "", upstream.host,
                             is_ipv6 ? "]:" : ":", upstream.port));
  }
  return handed_on;
}

ResponseHead HeadOf(const v1::Response& response) {
  ResponseHead head;
  head.status = response.status_code();
  for (const v1::Header& header : response.headers()) {
    head.fields.emplace_back(header.name(), header.value());
  }
  head.has_body = head.status != 204 && head.status != 304;
  if (head.has_body) head.framing.length = response.body().size();
  return head;
}

std::vector<HttpField> ViewsOf(const Fields& fields) {
  std::vector<HttpField> views;
  views.reserve(fields.size());
  for (const auto& [name, value] : fields) views.push_back({name, value});
  return views;
}

std::vector<std::string_view> ValuesOf(const Fields& fields,
                                       std::string_view name) {
  std::vector<std::string_view> values;
  for (const auto& [own, value] : fields) {
    if (IsSameField(own, name)) values.push_back(value);
  }
  return values;
}

}  // namespace idempotency::internal
