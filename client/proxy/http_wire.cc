#include "client/proxy/http_wire.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <limits>

#include "absl/strings/str_cat.h"

namespace idempotency::internal {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr std::size_t kBufferBytesMax = 2 * kHeadBytesMax;

absl::Status ToStatus(const error_code& error) {
  if (!error) return absl::OkStatus();
  if (error == boost::system::errc::timed_out) {
    return absl::DeadlineExceededError("it took too long");
  }
  if (error == boost::system::errc::operation_canceled) {
    return absl::CancelledError("draining");
  }
  if (error == http::error::header_limit ||
      error == http::error::buffer_overflow) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the head is longer than ", kHeadBytesMax, " bytes"));
  }
  if (error == http::error::end_of_stream ||
      error == http::error::partial_message ||
      error.category() != make_error_code(http::error::bad_method).category()) {
    return absl::UnavailableError(
        absl::StrCat("the connection was lost: ", error.message()));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("it is not HTTP: ", error.message()));
}

std::string ToString(beast::string_view text) {
  return std::string(text.data(), text.size());
}

template <typename Parser>
void Prepare(std::optional<Parser>& parser) {
  parser.emplace();
  parser->header_limit(kHeadBytesMax);
  // Whoever reads the body has a limit of their own. (Beast 1.74 takes none for
  // less than any.)
  parser->body_limit(std::numeric_limits<std::uint64_t>::max());
  parser->eager(true);
}

template <typename Parser>
void TakeHead(const Parser& parser, HttpHead& head) {
  for (const auto& field : parser.get()) {
    head.fields.emplace_back(ToString(field.name_string()),
                             ToString(field.value()));
  }
  if (const auto length = parser.content_length())
    head.framing.length = *length;
  head.framing.chunked = parser.chunked();
}

template <typename Parser>
absl::StatusOr<std::size_t> ReadSome(Socket& socket, beast::flat_buffer& buffer,
                                     Parser& parser, std::span<char> bytes) {
  auto& body = parser.get().body();
  while (!parser.is_done()) {
    body.data = bytes.data();
    body.size = bytes.size();
    error_code error;
    http::read_some(socket, buffer, parser, error);
    const std::size_t size = bytes.size() - body.size;
    if (error == http::error::need_buffer) error = {};
    // What came before an error is told first; the error comes again.
    if (size > 0) return size;
    if (error) return ToStatus(error);
  }
  return 0;
}

// What is written of either kind of message.
template <bool is_request>
class Writer {
 public:
  using Message = http::message<is_request, http::buffer_body>;

  absl::Status WriteHead(Socket& socket, Message message,
                         const HttpHead& head) {
    message_ = std::move(message);
    for (const auto& [name, value] : head.fields) {
      message_.insert(beast::string_view(name.data(), name.size()),
                      beast::string_view(value.data(), value.size()));
    }
    if (head.framing.chunked) {
      message_.chunked(true);
    } else if (head.framing.length.has_value()) {
      message_.content_length(*head.framing.length);
    }
    message_.body().data = nullptr;
    message_.body().more = true;
    serializer_.emplace(message_);
    error_code error;
    http::write_header(socket, *serializer_, error);
    return ToStatus(error);
  }

  absl::Status WriteBody(Socket& socket, std::string_view bytes) {
    if (bytes.empty()) return absl::OkStatus();
    // Beast takes a pointer to what it does not change.
    message_.body().data = const_cast<char*>(bytes.data());
    message_.body().size = bytes.size();
    return Write(socket);
  }

  absl::Status EndBody(Socket& socket) {
    message_.body().data = nullptr;
    message_.body().size = 0;
    message_.body().more = false;
    return Write(socket);
  }

 private:
  absl::Status Write(Socket& socket) {
    error_code error;
    http::write(socket, *serializer_, error);
    if (error == http::error::need_buffer) error = {};
    return ToStatus(error);
  }

  Message message_;
  std::optional<http::serializer<is_request, http::buffer_body>> serializer_;
};

}  // namespace

// ------------------------------------------------------------- the caller

struct CallerStream::Impl {
  explicit Impl(Socket connected) : socket(std::move(connected)) {}

  Socket socket;
  beast::flat_buffer buffer{kBufferBytesMax};
  std::optional<http::request_parser<http::buffer_body>> parser;
  Writer<false> writer;
};

CallerStream::CallerStream(Socket socket)
    : impl_(std::make_unique<Impl>(std::move(socket))) {}
CallerStream::~CallerStream() = default;

absl::StatusOr<std::optional<RequestHead>> CallerStream::ReadHead(
    std::chrono::milliseconds idle, std::chrono::milliseconds timeout,
    const Alarm& stop) {
  Impl& impl = *impl_;
  impl.socket.SetTimeout(idle);
  if (impl.buffer.size() == 0 && !impl.socket.WaitForBytes(stop)) {
    return std::nullopt;
  }
  impl.socket.SetTimeout(timeout);
  Prepare(impl.parser);
  error_code error;
  http::read_header(impl.socket, impl.buffer, *impl.parser, error);
  if (error == http::error::end_of_stream) return std::nullopt;
  if (error) return ToStatus(error);

  const auto& message = impl.parser->get();
  RequestHead head;
  TakeHead(*impl.parser, head);
  head.method = ToString(message.method_string());
  head.target = ToString(message.target());
  head.keep_alive = message.keep_alive();
  head.knows_chunks = message.version() >= 11;
  return head;
}

void CallerStream::SetDeadline(Socket::TimePoint deadline) {
  impl_->socket.SetDeadline(deadline);
}

absl::Status CallerStream::SendContinue() {
  const http::response<http::empty_body> message(http::status::continue_, 11);
  error_code error;
  http::response_serializer<http::empty_body> serializer(message);
  http::write(impl_->socket, serializer, error);
  return ToStatus(error);
}

absl::StatusOr<std::size_t> CallerStream::ReadBody(std::span<char> bytes) {
  return ReadSome(impl_->socket, impl_->buffer, *impl_->parser, bytes);
}

absl::Status CallerStream::WriteHead(const ResponseHead& head,
                                     bool keep_alive) {
  http::response<http::buffer_body> message;
  // A caller of HTTP/1.0 is answered in kind, so that it sees no chunks.
  message.version(
      impl_->parser.has_value() && impl_->parser->get().version() == 10 ? 10
                                                                        : 11);
  message.result(static_cast<unsigned>(head.status));
  message.keep_alive(keep_alive);
  return impl_->writer.WriteHead(impl_->socket, std::move(message), head);
}

absl::Status CallerStream::WriteBody(std::string_view bytes) {
  return impl_->writer.WriteBody(impl_->socket, bytes);
}

absl::Status CallerStream::EndBody() {
  return impl_->writer.EndBody(impl_->socket);
}

void CallerStream::CloseGently() { impl_->socket.CloseGently(); }

// ------------------------------------------------------------ the service

struct UpstreamStream::Impl {
  explicit Impl(Socket connected) : socket(std::move(connected)) {}

  Socket socket;
  beast::flat_buffer buffer{kBufferBytesMax};
  std::optional<http::response_parser<http::buffer_body>> parser;
  Writer<true> writer;
  bool to_head = false;
};

UpstreamStream::UpstreamStream(Socket socket)
    : impl_(std::make_unique<Impl>(std::move(socket))) {}
UpstreamStream::~UpstreamStream() = default;

void UpstreamStream::SetDeadline(Socket::TimePoint deadline) {
  impl_->socket.SetDeadline(deadline);
}

absl::Status UpstreamStream::WriteHead(const RequestHead& head) {
  impl_->to_head = head.method == "HEAD";
  http::request<http::buffer_body> message;
  message.version(11);
  message.method_string(
      beast::string_view(head.method.data(), head.method.size()));
  message.target(beast::string_view(head.target.data(), head.target.size()));
  message.keep_alive(false);
  return impl_->writer.WriteHead(impl_->socket, std::move(message), head);
}

absl::Status UpstreamStream::WriteBody(std::string_view bytes) {
  return impl_->writer.WriteBody(impl_->socket, bytes);
}

absl::Status UpstreamStream::EndBody() {
  return impl_->writer.EndBody(impl_->socket);
}

absl::StatusOr<ResponseHead> UpstreamStream::ReadHead() {
  Impl& impl = *impl_;
  int status = 0;
  do {
    Prepare(impl.parser);
    impl.parser->skip(impl.to_head);
    error_code error;
    http::read_header(impl.socket, impl.buffer, *impl.parser, error);
    if (error) return ToStatus(error);
    status = static_cast<int>(impl.parser->get().result_int());
    if (status == 101) {
      return absl::InvalidArgumentError("it changes to another protocol");
    }
  } while (status < 200);

  ResponseHead head;
  TakeHead(*impl.parser, head);
  head.status = status;
  head.has_body = !impl.to_head && status != 204 && status != 304;
  return head;
}

absl::StatusOr<std::size_t> UpstreamStream::ReadBody(std::span<char> bytes) {
  return ReadSome(impl_->socket, impl_->buffer, *impl_->parser, bytes);
}

}  // namespace idempotency::internal
