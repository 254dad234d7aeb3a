#include "client/proxy/guarded_request.h"

#include <utility>

#include "client/proxy/http_fields.h"
#include "client/proxy/upstream_headers.h"

namespace idempotency::internal {
namespace {

constexpr std::size_t kChunkBytes = 16'384;

}  // namespace

HttpResult GuardedRequest::Send(Execution* execution) {
  const auto now = std::chrono::steady_clock::now();
  absl::StatusOr<Socket> socket = Socket::Connect(
      options_.upstream, now + options_.connect_timeout, options_.cut);
  if (!socket.ok()) {
    return Fail(kUpstreamUnreachable, HttpEffect::kNothing,
                "there is no connection to it");
  }
  // A connection may take longer than the lease.
  if (execution != nullptr && !execution->permitted()) {
    return Fail(kUpstreamUnreachable, HttpEffect::kNothing,
                "the claim was lost before there was a connection");
  }
  stream_.emplace(*std::move(socket));
  stream_->SetDeadline(std::chrono::steady_clock::now() + options_.timeout);
  const absl::Status written = Write(execution);
  // A service that takes no more may have said why.
  absl::StatusOr<ResponseHead> answer = stream_->ReadHead();
  if (!answer.ok()) return FailFor(written.ok() ? answer.status() : written);
  response_head_ = *std::move(answer);
  response_head_.fields = EndToEnd(response_head_.fields);
  bool whole = true;
  const absl::Status read = ReadBody(whole);
  if (!read.ok()) return FailFor(read);

  state_ = State::kAnswered;
  HttpResult result;
  result.response.set_status_code(response_head_.status);
  for (const auto& [name, value] : response_head_.fields) {
    v1::Header* const header = result.response.add_headers();
    header->set_name(name);
    header->set_value(value);
  }
  if (whole) {
    result.response.set_body(std::move(beginning_));
  } else {
    result.response.set_body_omitted(true);
  }
  return result;
}

absl::Status GuardedRequest::Write(Execution* execution) {
  RequestHead head = HandedOn(head_, options_.upstream);
  head.framing = {.length = body_.size()};
  if (execution != nullptr) {
    for (auto& field : UpstreamHeaders(execution->claimed())) {
      head.fields.push_back(std::move(field));
    }
  }
  absl::Status written = stream_->WriteHead(head);
  if (written.ok()) written = stream_->WriteBody(body_);
  if (written.ok()) written = stream_->EndBody();
  return written;
}

absl::Status GuardedRequest::ReadBody(bool& whole) {
  char bytes[kChunkBytes];
  for (;;) {
    const absl::StatusOr<std::size_t> size = stream_->ReadBody(bytes);
    if (!size.ok()) return size.status();
    if (*size == 0) return absl::OkStatus();
    beginning_.append(bytes, *size);
    if (beginning_.size() > options_.body_bytes_max) {
      whole = false;
      return absl::OkStatus();
    }
  }
}

HttpResult GuardedRequest::Fail(const Problem& problem, HttpEffect effect,
                                std::string_view detail) {
  state_ = State::kFailed;
  stream_.reset();
  return {
      MakeProblem(problem, HttpMiddlewareOptions().problem_type_prefix, detail,
                  effect == HttpEffect::kNothing
                      ? std::optional(std::chrono::seconds(1))
                      : std::nullopt),
      effect};
}

HttpResult GuardedRequest::FailFor(const absl::Status& error) {
  if (absl::IsDeadlineExceeded(error)) {
    return Fail(kUpstreamTimeout, HttpEffect::kUnknown,
                "it may still carry the request out");
  }
  return Fail(kUpstreamLost, HttpEffect::kUnknown,
              "it may have carried the request out");
}

}  // namespace idempotency::internal
