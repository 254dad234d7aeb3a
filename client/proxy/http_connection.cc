#include "client/proxy/http_connection.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/http/idempotency_key.h"
#include "client/proxy/http_fields.h"

namespace idempotency::internal {
namespace {

constexpr std::size_t kChunkBytes = 16'384;

std::string_view Text(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

// How a guarded request was answered.
ProxyAnswer AnswerOf(const GuardedRequest& guarded, const HttpRoute& rule,
                     const v1::Response& response, bool unguarded) {
  const bool marked =
      std::any_of(response.headers().begin(), response.headers().end(),
                  [&](const v1::Header& header) {
                    return IsSameField(header.name(), rule.replayed_header);
                  });
  switch (guarded.state()) {
    case GuardedRequest::State::kNotSent:
      return marked ? ProxyAnswer::kReplayed : ProxyAnswer::kRefused;
    case GuardedRequest::State::kFailed:
      return ProxyAnswer::kFailed;
    case GuardedRequest::State::kAnswered:
      break;
  }
  if (unguarded) return ProxyAnswer::kUnguarded;
  // Another attempt's answer may count.
  return marked ? ProxyAnswer::kReplayed : ProxyAnswer::kExecuted;
}

// Frames a body whose length is not known. Whether the connection outlives it:
// without chunks it is the connection's end that ends the body.
bool Frame(const RequestHead& request, ResponseHead& answer) {
  if (!answer.has_body) {
    answer.framing.chunked = false;
    return true;
  }
  if (answer.framing.length.has_value()) return true;
  answer.framing.chunked = request.knows_chunks;
  return request.knows_chunks;
}

}  // namespace

void HttpConnection::Serve() {
  while (ServeOne()) {
  }
  if (close_gently_) caller_.CloseGently();
}

bool HttpConnection::ServeOne() {
  const HttpProxyOptions& options = context_.options;
  const absl::StatusOr<std::optional<RequestHead>> head = caller_.ReadHead(
      options.idle_timeout, options.request_timeout, context_.stop);
  if (!head.ok()) return RefuseFor(head.status());
  return head->has_value() && Take(**head);
}

bool HttpConnection::Take(const RequestHead& head) {
  if (!IsServed(head)) return false;
  const std::shared_ptr<const HttpProxyRoute> route =
      RouteOf(*context_.rules.Get(), head.method, head.target);
  if (route != nullptr && IsGuarded({.method = head.method,
                                     .target = head.target,
                                     .headers = ViewsOf(head.fields)},
                                    route->rule)) {
    return Guard(head, *route);
  }
  return PassThrough(head);
}

bool HttpConnection::IsServed(const RequestHead& head) {
  if (head.method == "CONNECT") {
    return Refuse(kNotImplemented, ProxyAnswer::kRefused, "CONNECT");
  }
  // A route would not be found for "http://host/payments".
  if (!head.target.starts_with('/') && head.target != "*") {
    return Refuse(kMalformed, ProxyAnswer::kRefused,
                  "the target has to begin with /");
  }
  for (const std::string_view coding :
       ValuesOf(head.fields, "transfer-encoding")) {
    if (!IsSameField(coding, "chunked")) {
      return Refuse(kNotImplemented, ProxyAnswer::kRefused,
                    "a transfer coding other than chunked");
    }
  }
  for (const std::string_view expected : ValuesOf(head.fields, "expect")) {
    if (!IsSameField(expected, "100-continue")) {
      return Refuse(kExpectationFailed, ProxyAnswer::kRefused);
    }
  }
  return true;
}

// ------------------------------------------------------- requests with a key

bool HttpConnection::Guard(const RequestHead& head,
                           const HttpProxyRoute& route) {
  const HttpRoute& rule = route.rule;
  const auto key = ParseIdempotencyKey(ValuesOf(head.fields, rule.key_header));
  // Without a key the middleware refuses whatever the body is.
  const bool has_key = key.ok() && key->has_value();
  std::string body;
  if (has_key && !ReadBody(head, body)) return false;

  GuardedRequest guarded({.upstream = context_.upstream,
                          .cut = context_.cut,
                          .connect_timeout = context_.options.connect_timeout,
                          .timeout = route.timeout,
                          .body_bytes_max = rule.body_bytes_max},
                         head, body);
  bool unguarded = false;
  HttpResolver resolver;
  if (route.resolves) {
    // The service itself finds out, being told.
    resolver = [](Execution&) { return Resolution(NeverExecuted{}); };
  }
  const v1::Response response = context_.middleware.Handle(
      {.method = head.method,
       .target = head.target,
       .headers = ViewsOf(head.fields),
       .body = body},
      rule,
      [&](Execution* execution) {
        unguarded = execution == nullptr;
        return guarded.Send(execution);
      },
      resolver);
  Answered(AnswerOf(guarded, rule, response, unguarded), rule.scope);

  const bool whole = has_key || !head.has_body();
  close_gently_ = !whole;
  const bool keep_alive = whole && KeepsAlive(head);
  if (!response.body_omitted()) return WriteResponse(response, keep_alive);
  ResponseHead answer = HeadOf(response);
  answer.framing = guarded.response_head().framing;
  const bool is_kept = Frame(head, answer) && keep_alive;
  return WriteLong(guarded, answer, is_kept);
}

bool HttpConnection::ReadBody(const RequestHead& head, std::string& body) {
  const std::size_t most = context_.options.request_bytes_max;
  const auto too_large = [&] {
    return Refuse(kRequestTooLong, ProxyAnswer::kRefused,
                  absl::StrCat("at most ", most, " bytes"));
  };
  if (head.framing.length.value_or(0) > most) return too_large();
  caller_.SetDeadline(Within(context_.options.request_timeout));
  if (!AskForBody(head)) return false;
  char bytes[kChunkBytes];
  for (;;) {
    const absl::StatusOr<std::size_t> size = caller_.ReadBody(bytes);
    if (!size.ok()) return RefuseFor(size.status());
    if (*size == 0) return true;
    body.append(bytes, *size);
    if (body.size() > most) return too_large();
  }
}

bool HttpConnection::WriteResponse(const v1::Response& response,
                                   bool keep_alive) {
  caller_.SetDeadline(Within(context_.options.stream_timeout));
  const ResponseHead head = HeadOf(response);
  return caller_.WriteHead(head, keep_alive).ok() &&
         (!head.has_body || (caller_.WriteBody(response.body()).ok() &&
                             caller_.EndBody().ok())) &&
         keep_alive;
}

bool HttpConnection::WriteLong(GuardedRequest& guarded,
                               const ResponseHead& head, bool keep_alive) {
  caller_.SetDeadline(Within(context_.options.stream_timeout));
  return caller_.WriteHead(head, keep_alive).ok() &&
         caller_.WriteBody(guarded.beginning()).ok() &&
         RelayResponse(guarded.rest()) && keep_alive;
}

// ---------------------------------------------------- requests without a key

bool HttpConnection::PassThrough(const RequestHead& head) {
  absl::StatusOr<Socket> socket =
      Socket::Connect(context_.upstream,
                      Within(context_.options.connect_timeout), context_.cut);
  if (!socket.ok()) return Refuse(kUpstreamUnreachable, ProxyAnswer::kFailed);
  UpstreamStream upstream(*std::move(socket));
  bool whole = false;
  if (!RelayRequest(head, upstream, whole)) return false;

  upstream.SetDeadline(Within(context_.options.stream_timeout));
  absl::StatusOr<ResponseHead> answer = upstream.ReadHead();
  if (!answer.ok()) {
    return Refuse(absl::IsDeadlineExceeded(answer.status()) ? kUpstreamTimeout
                                                            : kUpstreamLost,
                  ProxyAnswer::kFailed);
  }
  Answered(ProxyAnswer::kPassed);
  answer->fields = EndToEnd(answer->fields);
  const bool keep_alive = Frame(head, *answer) && whole && KeepsAlive(head);
  close_gently_ = !whole;
  caller_.SetDeadline(Within(context_.options.stream_timeout));
  return caller_.WriteHead(*answer, keep_alive).ok() &&
         (!answer->has_body || RelayResponse(upstream)) && keep_alive;
}

bool HttpConnection::RelayRequest(const RequestHead& head,
                                  UpstreamStream& upstream, bool& whole) {
  const std::chrono::milliseconds timeout = context_.options.stream_timeout;
  upstream.SetDeadline(Within(timeout));
  bool taken = upstream.WriteHead(HandedOn(head, context_.upstream)).ok();
  caller_.SetDeadline(Within(timeout));
  if (taken && !AskForBody(head)) return false;
  char bytes[kChunkBytes];
  while (taken) {
    caller_.SetDeadline(Within(timeout));
    const absl::StatusOr<std::size_t> size = caller_.ReadBody(bytes);
    if (!size.ok()) return RefuseFor(size.status());
    upstream.SetDeadline(Within(timeout));
    if (*size == 0) {
      whole = true;
      taken = upstream.EndBody().ok();
      break;
    }
    taken = upstream.WriteBody({bytes, *size}).ok();
  }
  return true;
}

bool HttpConnection::RelayResponse(UpstreamStream& upstream) {
  const std::chrono::milliseconds timeout = context_.options.stream_timeout;
  char bytes[kChunkBytes];
  for (;;) {
    upstream.SetDeadline(Within(timeout));
    const absl::StatusOr<std::size_t> size = upstream.ReadBody(bytes);
    // Without its end the caller sees that there should be more.
    if (!size.ok()) return false;
    caller_.SetDeadline(Within(timeout));
    if (*size == 0) return caller_.EndBody().ok();
    if (!caller_.WriteBody({bytes, *size}).ok()) return false;
  }
}

// ---------------------------------------------------------------- the rest

bool HttpConnection::AskForBody(const RequestHead& head) {
  return !head.has_body() || ValuesOf(head.fields, "expect").empty() ||
         caller_.SendContinue().ok();
}

bool HttpConnection::Refuse(const Problem& problem, ProxyAnswer answer,
                            std::string_view detail) {
  Answered(answer);
  close_gently_ = true;
  WriteResponse(context_.middleware.Refuse(problem, detail), false);
  return false;
}

bool HttpConnection::RefuseFor(const absl::Status& error) {
  switch (error.code()) {
    case absl::StatusCode::kDeadlineExceeded:
      return Refuse(kRequestTimeout, ProxyAnswer::kRefused);
    case absl::StatusCode::kResourceExhausted:
      return Refuse(kHeadTooLarge, ProxyAnswer::kRefused,
                    absl::StrCat("at most ", kHeadBytesMax, " bytes"));
    case absl::StatusCode::kInvalidArgument:
      return Refuse(kMalformed, ProxyAnswer::kRefused, Text(error));
    default:
      return false;  // Nobody is there to be told.
  }
}

void HttpConnection::Answered(ProxyAnswer answer,
                              const std::string& scope) const {
  if (context_.options.answered) context_.options.answered(answer, scope);
}

bool HttpConnection::KeepsAlive(const RequestHead& head) const {
  return head.keep_alive && !context_.stop.rung();
}

}  // namespace idempotency::internal
