#include "client/proxy/socket.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace idempotency::internal {
namespace {

using boost::system::error_code;
using std::chrono::milliseconds;
namespace errc = boost::system::errc;

constexpr milliseconds kCloseTimeout{1'000};
constexpr std::size_t kCloseBytesMax = std::size_t{1} << 20;

error_code LastError() { return {errno, boost::system::system_category()}; }

// Until a time point, for poll(): rounded up, so that it is not called again
// and again at the end.
int MillisecondsUntil(Socket::TimePoint deadline) {
  constexpr milliseconds kAtMost = std::chrono::hours(1);
  const auto now = std::chrono::steady_clock::now();
  if (deadline <= now) return 0;
  if (deadline - now > kAtMost) return static_cast<int>(kAtMost.count());
  return static_cast<int>(
      std::chrono::ceil<milliseconds>(deadline - now).count());
}

absl::Status ToConnectStatus(const error_code& error) {
  if (error == errc::timed_out) {
    return absl::DeadlineExceededError("no connection in time");
  }
  if (error == errc::operation_canceled)
    return absl::CancelledError("draining");
  return absl::UnavailableError(
      absl::StrCat("no connection: ", error.message()));
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

}  // namespace

Alarm::Alarm() : descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
Alarm::~Alarm() { close(descriptor_); }

void Alarm::Ring() {
  const std::uint64_t one = 1;
  // It only fails if it was rung 2^64 times.
  [[maybe_unused]] const ssize_t written = write(descriptor_, &one, sizeof one);
}

bool Alarm::rung() const {
  pollfd waiting{descriptor_, POLLIN, 0};
  return poll(&waiting, 1, 0) == 1;
}

absl::StatusOr<HostAndPort> ParseHostAndPort(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  int port = -1;
  if (colon != std::string::npos &&
      absl::SimpleAtoi(text.substr(colon + 1), &port) && port >= 0 &&
      port <= 65'535) {
    std::string host = text.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
      host = host.substr(1, host.size() - 2);
    } else if (host.find(':') != std::string::npos) {
      host.clear();
    }
    if (!host.empty()) return HostAndPort{host, absl::StrCat(port)};
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is no address such as 127.0.0.1:8080"));
}

Socket::Socket(int descriptor, const Alarm& cut)
    : descriptor_(descriptor), cut_(cut) {
  const int on = 1;
  setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Socket::Socket(Socket&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      cut_(other.cut_),
      deadline_(other.deadline_) {}

Socket::~Socket() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::StatusOr<Socket> Socket::Connect(const HostAndPort& address,
                                       TimePoint deadline, const Alarm& cut) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed =
      getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found);
  if (failed != 0) {
    return absl::UnavailableError(
        absl::StrCat(address.host, ": ", gai_strerror(failed)));
  }
  const std::unique_ptr<addrinfo, FreeAddresses> addresses(found);
  error_code error = errc::make_error_code(errc::host_unreachable);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const int descriptor =
        socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0) {
      error = LastError();
      continue;
    }
    Socket made(descriptor, cut);
    made.SetDeadline(deadline);
    if (connect(descriptor, at->ai_addr, at->ai_addrlen) == 0) return made;
    error = LastError();
    if (error != errc::operation_in_progress) continue;
    error = made.Await(POLLOUT);
    if (error) continue;
    int result = 0;
    socklen_t size = sizeof result;
    getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &result, &size);
    if (result == 0) return made;
    error = {result, boost::system::system_category()};
  }
  return ToConnectStatus(error);
}

error_code Socket::Await(short events) const {
  pollfd waiting[2] = {{descriptor_, events, 0},
                       {cut_.descriptor(), POLLIN, 0}};
  for (;;) {
    const int timeout = MillisecondsUntil(deadline_);
    const int ready = poll(waiting, 2, timeout);
    if (ready < 0 && errno != EINTR) return LastError();
    if (ready > 0) {
      if (waiting[1].revents != 0) {
        return errc::make_error_code(errc::operation_canceled);
      }
      return {};
    }
    if (std::chrono::steady_clock::now() >= deadline_) {
      return errc::make_error_code(errc::timed_out);
    }
  }
}

bool Socket::WaitForBytes(const Alarm& stop) {
  pollfd waiting[3] = {{descriptor_, POLLIN, 0},
                       {stop.descriptor(), POLLIN, 0},
                       {cut_.descriptor(), POLLIN, 0}};
  for (;;) {
    const int ready = poll(waiting, 3, MillisecondsUntil(deadline_));
    if (ready > 0) return waiting[1].revents == 0 && waiting[2].revents == 0;
    if (ready < 0 && errno != EINTR) return false;
    if (std::chrono::steady_clock::now() >= deadline_) return false;
  }
}

void Socket::CloseGently() {
  shutdown(descriptor_, SHUT_WR);
  SetTimeout(kCloseTimeout);
  char unread[16'384];
  const iovec vector{unread, sizeof unread};
  std::size_t total = 0;
  error_code error;
  while (!error && total < kCloseBytesMax) total += Read(&vector, 1, error);
}

std::size_t Socket::Read(const iovec* vectors, std::size_t count,
                         error_code& error) {
  error = {};
  if (count == 0) return 0;
  for (;;) {
    // First, so that whoever sends without a pause meets the deadline too.
    error = Await(POLLIN);
    if (error) return 0;
    const ssize_t size = readv(descriptor_, vectors, static_cast<int>(count));
    if (size > 0) return static_cast<std::size_t>(size);
    if (size == 0) {
      error = boost::asio::error::eof;
      return 0;
    }
    if (errno != EAGAIN && errno != EINTR) {
      error = LastError();
      return 0;
    }
  }
}

std::size_t Socket::Write(const iovec* vectors, std::size_t count,
                          error_code& error) {
  error = {};
  if (count == 0) return 0;
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(vectors);
  message.msg_iovlen = count;
  for (;;) {
    error = Await(POLLOUT);
    if (error) return 0;
    const ssize_t size = sendmsg(descriptor_, &message, MSG_NOSIGNAL);
    if (size >= 0) return static_cast<std::size_t>(size);
    if (errno != EAGAIN && errno != EINTR) {
      error = LastError();
      return 0;
    }
  }
}

}  // namespace idempotency::internal
