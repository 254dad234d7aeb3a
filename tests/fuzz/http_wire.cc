// Input: what the caller of the sidecar sends, its first byte how the bodies
// are cut up; or, where that byte is odd, what the service behind it answers.
// What is understood is sent on, as the sidecar does, and read again.
#include "client/proxy/http_wire.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/proxy/http_fields.h"
#include "tests/fuzz/check.h"

namespace idempotency::internal {
namespace {

using fuzz::Require;
using std::chrono::milliseconds;

// Never met: all that is to be read is there already.
constexpr milliseconds kTimeout{5'000};
constexpr int kMessagesMax = 20;

Socket::TimePoint Soon() { return std::chrono::steady_clock::now() + kTimeout; }

// A connection to the code under test, whose other end this is.
class OtherEnd {
 public:
  // Sends `bytes`, and nothing after them.
  explicit OtherEnd(std::string_view bytes) {
    Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends_) == 0,
            "there are sockets");
    Require(send(ends_[0], bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                static_cast<ssize_t>(bytes.size()),
            "a socket holds the whole input");
    shutdown(ends_[0], SHUT_WR);
  }
  ~OtherEnd() { close(ends_[0]); }
  OtherEnd(const OtherEnd&) = delete;

  // Once.
  Socket Take(const Alarm& cut) { return Socket(ends_[1], cut); }

  // All that has come so far.
  std::string Received() {
    std::string bytes;
    char some[4096];
    for (;;) {
      const ssize_t size = recv(ends_[0], some, sizeof some, 0);
      if (size <= 0) return bytes;
      bytes.append(some, static_cast<std::size_t>(size));
    }
  }

 private:
  int ends_[2];
};

void CheckError(const absl::Status& status) {
  Require(absl::IsInvalidArgument(status) || absl::IsUnavailable(status) ||
              absl::IsResourceExhausted(status),
          "what can't be read is malformed, too long or cut off");
}

// The whole body; nothing where it does not end.
template <typename Stream>
std::optional<std::string> BodyOf(Stream& stream, std::size_t piece) {
  std::string body;
  std::vector<char> bytes(piece);
  for (;;) {
    const absl::StatusOr<std::size_t> size = stream.ReadBody(bytes);
    if (!size.ok()) {
      CheckError(size.status());
      return std::nullopt;
    }
    if (*size == 0) return body;
    Require(*size <= piece, "no more is read than there is room for");
    body.append(bytes.data(), *size);
  }
}

template <typename Stream>
void WriteBody(Stream& stream, std::string_view body) {
  const std::size_t half = body.size() / 2;
  Require(stream.WriteBody(body.substr(0, half)).ok() &&
              stream.WriteBody(body.substr(half)).ok() && stream.EndBody().ok(),
          "a body can be written");
}

void CheckHead(const HttpHead& head) {
  for (const auto& [name, value] : head.fields) {
    Require(!name.empty() && name.find_first_of(" \t\r\n:") == name.npos,
            "a field has a name");
    Require(value.find_first_of("\r\n") == value.npos,
            "no field holds the end of another");
  }
  Require(!head.framing.chunked || !head.framing.length.has_value(),
          "a body has one framing");
}

// HTTP/1.1's own fields are written by the framing.
Fields WithoutFraming(Fields fields) {
  std::erase_if(fields, [](const auto& field) {
    return IsSameField(field.first, "content-length") ||
           IsSameField(field.first, "transfer-encoding") ||
           IsSameField(field.first, "connection");
  });
  return fields;
}

// A request as the service gets it is one request, the one that was read.
void CheckSentOn(const RequestHead& head, const std::string& body) {
  if (head.method == "CONNECT" ||
      (!head.target.starts_with('/') && head.target != "*")) {
    return;
  }
  for (const std::string_view coding :
       ValuesOf(head.fields, "transfer-encoding")) {
    if (!IsSameField(coding, "chunked")) return;
  }
  const Alarm cut;
  OtherEnd service("");
  const RequestHead sent = HandedOn(head, {.host = "service", .port = "80"});
  {
    UpstreamStream upstream(service.Take(cut));
    upstream.SetDeadline(Soon());
    Require(upstream.WriteHead(sent).ok(), "a head can be written");
    WriteBody(upstream, body);
  }
  OtherEnd written(service.Received());
  CallerStream again(written.Take(cut));
  auto read = again.ReadHead(kTimeout, kTimeout, cut);
  Require(read.ok() && read->has_value(), "what is sent on is a request");
  const RequestHead& got = **read;
  Require(got.method == head.method && got.target == head.target &&
              WithoutFraming(got.fields) == WithoutFraming(sent.fields),
          "a request is sent on as it was read");
  Require(!ValuesOf(got.fields, "host").empty(), "a request names a host");
  again.SetDeadline(Soon());
  Require(BodyOf(again, 1000) == body, "its body is sent on whole");
  read = again.ReadHead(kTimeout, kTimeout, cut);
  Require(read.ok() && !read->has_value(), "one request is sent on as one");
}

void FuzzRequests(std::string_view input, std::size_t piece) {
  const Alarm cut;
  OtherEnd caller(input);
  CallerStream stream(caller.Take(cut));
  for (int i = 0; i < kMessagesMax; ++i) {
    const auto head = stream.ReadHead(kTimeout, kTimeout, cut);
    if (!head.ok()) return CheckError(head.status());
    if (!head->has_value()) return;
    CheckHead(**head);
    Require(!(*head)->method.empty(), "a request has a method");
    stream.SetDeadline(Soon());
    const std::optional<std::string> body = BodyOf(stream, piece);
    if (!body.has_value()) return;
    Require(body->empty() || (*head)->has_body(),
            "a body is announced by the head");
    CheckSentOn(**head, *body);
    if (!(*head)->keep_alive) return;
  }
}

// An answer as the caller gets it is one answer, the one that was read.
void CheckAnswered(const ResponseHead& head, const std::string& body) {
  const Alarm cut;
  OtherEnd caller("GET / HTTP/1.1\r\n\r\n");
  ResponseHead sent = head;
  sent.fields = EndToEnd(head.fields);
  sent.framing = {};
  if (head.has_body) sent.framing.length = body.size();
  {
    CallerStream stream(caller.Take(cut));
    Require(stream.ReadHead(kTimeout, kTimeout, cut).ok(), "it asked");
    Require(stream.WriteHead(sent, false).ok(), "a head can be written");
    if (head.has_body) WriteBody(stream, body);
  }
  OtherEnd written(caller.Received());
  UpstreamStream again(written.Take(cut));
  again.SetDeadline(Soon());
  const absl::StatusOr<ResponseHead> got = again.ReadHead();
  Require(got.ok() && got->status == head.status, "what is sent on is one");
  Require(WithoutFraming(got->fields) == WithoutFraming(sent.fields),
          "an answer is sent on as it was read");
  Require(!got->has_body || BodyOf(again, 1000) == body,
          "its body is sent on whole");
}

void FuzzResponses(std::string_view input, std::size_t piece, bool to_head) {
  const Alarm cut;
  OtherEnd service(input);
  UpstreamStream stream(service.Take(cut));
  stream.SetDeadline(Soon());
  RequestHead asked;
  asked.method = to_head ? "HEAD" : "GET";
  asked.target = "/";
  Require(stream.WriteHead(asked).ok() && stream.EndBody().ok(), "it asks");
  const absl::StatusOr<ResponseHead> head = stream.ReadHead();
  if (!head.ok()) return CheckError(head.status());
  CheckHead(*head);
  Require(head->status >= 200 && head->status <= 999, "it has a final status");
  const std::optional<std::string> body = BodyOf(stream, piece);
  if (!body.has_value()) return;
  Require(body->empty() || head->has_body, "no body where none may be");
  if (!to_head) CheckAnswered(*head, *body);
}

}  // namespace
}  // namespace idempotency::internal

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  if (size == 0) return -1;
  const std::string_view input = idempotency::fuzz::Text(data + 1, size - 1);
  const std::size_t piece = 1 + data[0] / 4U * 64U;
  if (data[0] % 2 == 0) {
    idempotency::internal::FuzzRequests(input, piece);
  } else {
    idempotency::internal::FuzzResponses(input, piece, data[0] % 4 == 3);
  }
  return 0;
}
