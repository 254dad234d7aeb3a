// A TCP connection whose reads and writes end: with their deadline, or when the
// sidecar has had enough. A SyncStream of Boost.Beast.
#ifndef IDEMPOTENCY_CLIENT_PROXY_SOCKET_H_
#define IDEMPOTENCY_CLIENT_PROXY_SOCKET_H_

#include <sys/uio.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/system/error_code.hpp>
#include <boost/system/system_error.hpp>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace idempotency::internal {

// Wakes all who wait with it. Once rung it stays so. Thread-safe.
class Alarm {
 public:
  Alarm();
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  void Ring();
  bool rung() const;
  int descriptor() const { return descriptor_; }

 private:
  const int descriptor_;
};

// "127.0.0.1:8080", "[::1]:8080", "localhost:8080".
struct HostAndPort {
  std::string host;
  std::string port;
};
// INVALID_ARGUMENT for what is no such text, or has no port of 0 to 65535.
absl::StatusOr<HostAndPort> ParseHostAndPort(const std::string& text);

// Owns its descriptor. Of one thread at a time.
class Socket {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using ErrorCode = boost::system::error_code;

  // Over a connected socket. `cut` must outlive it: once it rings, every
  // operation ends with operation_canceled.
  Socket(int descriptor, const Alarm& cut);
  Socket(Socket&& other) noexcept;
  ~Socket();
  Socket& operator=(Socket&&) = delete;

  // UNAVAILABLE where nobody answers, DEADLINE_EXCEEDED, CANCELLED. A name is
  // looked up for as long as the system takes.
  static absl::StatusOr<Socket> Connect(const HostAndPort& address,
                                        TimePoint deadline, const Alarm& cut);

  // Of the operations to come: they end with timed_out.
  void SetDeadline(TimePoint deadline) { deadline_ = deadline; }
  void SetTimeout(std::chrono::milliseconds timeout) {
    deadline_ = std::chrono::steady_clock::now() + timeout;
  }

  // Whether there is something to read, or the end, before the deadline and
  // before either alarm.
  bool WaitForBytes(const Alarm& stop);
  // Ends the connection so that the other side still reads what was sent,
  // although it may not have sent all yet. Takes a second at most.
  void CloseGently();

  template <typename Buffers>
  std::size_t read_some(const Buffers& buffers, ErrorCode& error) {
    const Parts parts(buffers);
    return Read(parts.vectors.data(), parts.count, error);
  }
  template <typename Buffers>
  std::size_t write_some(const Buffers& buffers, ErrorCode& error) {
    const Parts parts(buffers);
    return Write(parts.vectors.data(), parts.count, error);
  }
  template <typename Buffers>
  std::size_t read_some(const Buffers& buffers) {
    ErrorCode error;
    const std::size_t size = read_some(buffers, error);
    if (error) throw boost::system::system_error(error);
    return size;
  }
  template <typename Buffers>
  std::size_t write_some(const Buffers& buffers) {
    ErrorCode error;
    const std::size_t size = write_some(buffers, error);
    if (error) throw boost::system::system_error(error);
    return size;
  }

 private:
  // As much of a buffer sequence as one system call takes here.
  struct Parts {
    template <typename Buffers>
    explicit Parts(const Buffers& buffers) {
      auto at = boost::asio::buffer_sequence_begin(buffers);
      const auto end = boost::asio::buffer_sequence_end(buffers);
      for (; at != end && count < vectors.size(); ++at) {
        const boost::asio::const_buffer buffer(*at);
        if (buffer.size() == 0) continue;
        vectors[count++] = {const_cast<void*>(buffer.data()), buffer.size()};
      }
    }
    std::array<iovec, 16> vectors{};
    std::size_t count = 0;
  };

  std::size_t Read(const iovec* vectors, std::size_t count, ErrorCode& error);
  std::size_t Write(const iovec* vectors, std::size_t count, ErrorCode& error);
  // Waits until the descriptor is ready for `events`.
  ErrorCode Await(short events) const;

  int descriptor_;
  const Alarm& cut_;
  TimePoint deadline_ = TimePoint::max();
};

}  // namespace idempotency::internal

#endif  // IDEMPOTENCY_CLIENT_PROXY_SOCKET_H_
