#include "client/http/recorded_headers.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace idempotency {
namespace {

constexpr std::string_view kOfOneMessage[] = {
    "connection", "content-length", "keep-alive",        "proxy-connection",
    "te",         "trailer",        "transfer-encoding", "upgrade"};

constexpr std::string_view kOfOneMomentOrClient[] = {
    "age",
    "alt-svc",
    "authentication-info",
    "authorization",
    "cookie",
    "date",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "set-cookie",
    "set-cookie2",
    "www-authenticate"};

template <typename Names>
bool IsAmong(std::string_view name, const Names& names) {
  return std::any_of(
      std::begin(names), std::end(names),
      [&](std::string_view other) { return IsSameField(name, other); });
}

// The fields that Connection says belong to the connection as well.
std::vector<std::string> NamedByConnection(const v1::Response& response) {
  std::vector<std::string> names;
  for (const v1::Header& header : response.headers()) {
    if (!IsSameField(header.name(), "connection")) continue;
    for (const absl::string_view name : absl::StrSplit(header.value(), ',')) {
      names.emplace_back(absl::StripAsciiWhitespace(name));
    }
  }
  return names;
}

template <typename Keeps>
void KeepHeaders(v1::Response& response, const Keeps& keeps) {
  google::protobuf::RepeatedPtrField<v1::Header> kept;
  for (v1::Header& header : *response.mutable_headers()) {
    if (keeps(header)) *kept.Add() = std::move(header);
  }
  response.mutable_headers()->Swap(&kept);
}

// Keeps what another message can have too.
void LeaveOutOfOneMessage(const HttpRoute& route, v1::Response& response) {
  const std::vector<std::string> of_connection = NamedByConnection(response);
  KeepHeaders(response, [&](const v1::Header& header) {
    return CanBeSent(header) && !IsAmong(header.name(), kOfOneMessage) &&
           !IsAmong(header.name(), of_connection) &&
           !IsSameField(header.name(), route.replayed_header);
  });
}

}  // namespace

bool CanBeSent(const v1::Header& header) {
  constexpr std::string_view kTokenMarks = "!#$%&'*+-.^_`|~";
  return !header.name().empty() &&
         std::all_of(
             header.name().begin(), header.name().end(),
             [&](char c) {
               return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                      kTokenMarks.find(c) != std::string_view::npos;
             }) &&
         header.value().find_first_of(std::string_view("\r\n\0", 3)) ==
             std::string::npos;
}

void KeepRecordedHeaders(const HttpRoute& route, v1::Response& response) {
  LeaveOutOfOneMessage(route, response);
  KeepHeaders(response, [&](const v1::Header& header) {
    return !IsAmong(header.name(), route.headers_left_out) &&
           (!IsAmong(header.name(), kOfOneMomentOrClient) ||
            IsAmong(header.name(), route.headers_recorded));
  });
}

void KeepSendableHeaders(const HttpRoute& route, v1::Response& response) {
  LeaveOutOfOneMessage(route, response);
}

}  // namespace idempotency
