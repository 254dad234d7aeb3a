#include "tests/benchmark/http2_connection.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace idempotency::benchmark {
namespace {

constexpr size_t kReadBytes = 256 * 1024;
constexpr size_t kWriteBytesMax = 256 * 1024;
constexpr int32_t kWindowBytes = 16 * 1024 * 1024;

absl::Status ErrnoError(const char* what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

absl::Status SessionError(const char* what, int64_t code) {
  return absl::UnavailableError(
      absl::StrCat(what, ": ", nghttp2_strerror(static_cast<int>(code))));
}

nghttp2_nv HeaderField(std::string_view name, std::string_view value) {
  // nghttp2 takes mutable pointers but does not write through them.
  auto bytes = [](std::string_view text) {
    return reinterpret_cast<uint8_t*>(const_cast<char*>(text.data()));
  };
  return {bytes(name), bytes(value), name.size(), value.size(),
          NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE};
}

int ParseInt(std::string_view text) {
  int value = -1;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

ssize_t ReadRequest(nghttp2_session*, int32_t, uint8_t* buffer, size_t length,
                    uint32_t* flags, nghttp2_data_source* source, void*) {
  auto* call = static_cast<Call*>(source->ptr);
  const size_t count =
      std::min(length, call->request.size() - call->request_bytes_sent);
  memcpy(buffer, call->request.data() + call->request_bytes_sent, count);
  call->request_bytes_sent += count;
  if (call->request_bytes_sent == call->request.size()) {
    *flags |= NGHTTP2_DATA_FLAG_EOF;
  }
  return static_cast<ssize_t>(count);
}

}  // namespace

// What nghttp2 calls; `context` is the Http2Connection.
struct SessionCallbacks {
  static Call* CallOf(nghttp2_session* session, int32_t stream_id) {
    return static_cast<Call*>(
        nghttp2_session_get_stream_user_data(session, stream_id));
  }

  static int OnHeader(nghttp2_session* session, const nghttp2_frame* frame,
                      const uint8_t* name_bytes, size_t name_size,
                      const uint8_t* value_bytes, size_t value_size, uint8_t,
                      void*) {
    Call* call = CallOf(session, frame->hd.stream_id);
    if (call == nullptr) return 0;
    const std::string_view name(reinterpret_cast<const char*>(name_bytes),
                                name_size);
    const std::string_view value(reinterpret_cast<const char*>(value_bytes),
                                 value_size);
    if (name == ":status") {
      call->http_status = ParseInt(value);
    } else if (name == "grpc-status") {
      call->grpc_status = ParseInt(value);
    } else if (name == "grpc-message") {
      call->grpc_message = value;
    }
    return 0;
  }

  static int OnData(nghttp2_session* session, uint8_t, int32_t stream_id,
                    const uint8_t* data, size_t size, void*) {
    if (Call* call = CallOf(session, stream_id)) {
      call->response.append(reinterpret_cast<const char*>(data), size);
    }
    return 0;
  }

  static int OnClose(nghttp2_session* session, int32_t stream_id,
                     uint32_t error_code, void* context) {
    Call* call = CallOf(session, stream_id);
    if (call == nullptr) return 0;
    call->stream_error = error_code;
    static_cast<Http2Connection*>(context)->done_(*call);
    return 0;
  }
};

absl::StatusOr<std::unique_ptr<Http2Connection>> Http2Connection::Connect(
    const std::string& host, uint16_t port, const std::string& timeout,
    DoneFunction done) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
    return absl::InvalidArgumentError("the host is not an IPv4 address");
  }
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return ErrnoError("socket");
  std::unique_ptr<Http2Connection> connection(new Http2Connection(
      fd, absl::StrCat(host, ":", port), timeout, std::move(done)));
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) !=
      0) {
    return ErrnoError("connect");
  }
  if (absl::Status status = connection->Open(); !status.ok()) return status;
  return connection;
}

Http2Connection::Http2Connection(int fd, std::string authority,
                                 std::string timeout, DoneFunction done)
    : fd_(fd),
      authority_(std::move(authority)),
      timeout_(std::move(timeout)),
      done_(std::move(done)) {
  input_.resize(kReadBytes);
}

Http2Connection::~Http2Connection() {
  nghttp2_session_del(session_);
  close(fd_);
}

absl::Status Http2Connection::Open() {
  const int on = 1;
  if (setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0 ||
      fcntl(fd_, F_SETFL, O_NONBLOCK) != 0) {
    return ErrnoError("socket options");
  }
  nghttp2_session_callbacks* callbacks = nullptr;
  if (nghttp2_session_callbacks_new(&callbacks) != 0) {
    return absl::ResourceExhaustedError("no memory");
  }
  nghttp2_session_callbacks_set_on_header_callback(callbacks,
                                                   &SessionCallbacks::OnHeader);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
      callbacks, &SessionCallbacks::OnData);
  nghttp2_session_callbacks_set_on_stream_close_callback(
      callbacks, &SessionCallbacks::OnClose);
  int result = nghttp2_session_client_new(&session_, callbacks, this);
  nghttp2_session_callbacks_del(callbacks);
  if (result != 0) return SessionError("session", result);

  const std::array<nghttp2_settings_entry, 2> settings = {
      {{NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
       {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kWindowBytes}}};
  result = nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings.data(),
                                   settings.size());
  if (result == 0) {
    result = nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE,
                                                   0, kWindowBytes);
  }
  if (result != 0) return SessionError("settings", result);
  return Flush();
}

absl::Status Http2Connection::Start(Call* call) {
  call->response.clear();
  call->grpc_message.clear();
  call->http_status = 0;
  call->grpc_status = -1;
  call->stream_error = 0;
  call->request_bytes_sent = 0;
  // The deadline is always the same text, so that HPACK sends one byte for it.
  const std::array<nghttp2_nv, 8> headers = {
      HeaderField(":method", "POST"),
      HeaderField(":scheme", "http"),
      HeaderField(":path", call->path),
      HeaderField(":authority", authority_),
      HeaderField("te", "trailers"),
      HeaderField("content-type", "application/grpc"),
      HeaderField("grpc-timeout", timeout_),
      HeaderField("idempotency-key", call->idempotency_key),
  };
  nghttp2_data_provider body{};
  body.source.ptr = call;
  body.read_callback = &ReadRequest;
  const int32_t stream_id = nghttp2_submit_request(
      session_, nullptr, headers.data(),
      headers.size() - (call->idempotency_key.empty() ? 1 : 0), &body, call);
  if (stream_id < 0) return SessionError("request", stream_id);
  return absl::OkStatus();
}

absl::Status Http2Connection::Flush() {
  for (;;) {
    if (written_ == output_.size()) {
      output_.clear();
      written_ = 0;
    }
    // Frames are gathered so that many small calls share one system call.
    bool more = false;
    while (output_.size() < kWriteBytesMax) {
      const uint8_t* data = nullptr;
      const ssize_t size = nghttp2_session_mem_send(session_, &data);
      if (size < 0) return SessionError("send", size);
      more = size > 0;
      if (!more) break;
      output_.append(reinterpret_cast<const char*>(data),
                     static_cast<size_t>(size));
    }
    if (written_ == output_.size()) return absl::OkStatus();
    const ssize_t sent = send(fd_, output_.data() + written_,
                              output_.size() - written_, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EAGAIN || errno == EINTR) return absl::OkStatus();
      return ErrnoError("send");
    }
    written_ += static_cast<size_t>(sent);
    if (!more && written_ == output_.size()) {
      output_.clear();
      written_ = 0;
      return absl::OkStatus();
    }
  }
}

absl::Status Http2Connection::OnReadable() {
  const ssize_t size = recv(fd_, input_.data(), input_.size(), 0);
  if (size < 0) {
    if (errno == EAGAIN || errno == EINTR) return absl::OkStatus();
    return ErrnoError("receive");
  }
  if (size == 0) return absl::UnavailableError("the server hung up");
  const ssize_t used = nghttp2_session_mem_recv(
      session_, reinterpret_cast<const uint8_t*>(input_.data()),
      static_cast<size_t>(size));
  if (used < 0) return SessionError("receive", used);
  return Flush();
}

}  // namespace idempotency::benchmark
