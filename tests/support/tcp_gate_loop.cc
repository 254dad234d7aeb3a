#include "tests/support/tcp_gate_loop.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace idempotency {
namespace {

constexpr std::size_t kReadBytes = 64 * 1024;
// A direction that holds as much is not read further.
constexpr std::size_t kStreamBytesMax = 1024 * 1024;
// An answer that gets longer is taken to be complete.
constexpr std::size_t kAnswerBytesMax = 16 * 1024 * 1024;
constexpr int kBacklog = 1024;
// A throttled direction is read in pieces of so long.
constexpr std::chrono::milliseconds kThrottledPiece{10};

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<in_port_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int MakeSocket() {
  return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

void SendAtOnce(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// Closes with RST, whatever was sent or is unread.
void ResetSocket(int fd) {
  if (fd < 0) return;
  const linger at_once{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  close(fd);
}

bool WouldBlock() { return errno == EAGAIN || errno == EINTR; }

}  // namespace

TcpGate::Loop::~Loop() {
  if (!thread_.joinable()) return;
  Do([this] {
    stopping_ = true;
    StopListening();
    ResetAll();
  });
  thread_.join();
  close(wake_fd_);
}

absl::Status TcpGate::Loop::Start() {
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) return absl::ErrnoToStatus(errno, "eventfd");
  Listen();
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void TcpGate::Loop::Do(std::function<void()> command) {
  MutexLock lock(mutex_);
  commands_.push_back(std::move(command));
  const std::int64_t mine = ++commands_given_;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t woken = write(wake_fd_, &one, sizeof(one));
  while (commands_done_ < mine) changed_.wait(mutex_);
}

TcpGate::Counters TcpGate::Loop::counters() const {
  MutexLock lock(mutex_);
  return published_;
}

bool TcpGate::Loop::WaitUntil(
    const std::function<bool(const Counters&)>& condition,
    std::chrono::milliseconds timeout) const {
  const Clock::time_point deadline = Clock::now() + timeout;
  while (true) {
    Counters seen;
    std::int64_t publication;
    {
      MutexLock lock(mutex_);
      seen = published_;
      publication = publications_;
    }
    if (condition(seen)) return true;
    MutexLock lock(mutex_);
    while (publications_ == publication) {
      if (changed_.wait_until(mutex_, deadline) == std::cv_status::timeout) {
        return false;
      }
    }
  }
}

void TcpGate::Loop::Listen() {
  if (listener_ >= 0) return;
  listener_ = MakeSocket();
  const int on = 1;
  setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const sockaddr_in address = Loopback(port_);
  if (bind(listener_, reinterpret_cast<const sockaddr*>(&address),
           sizeof(address)) != 0 ||
      listen(listener_, kBacklog) != 0) {
    std::perror("a gate cannot listen");
    std::abort();
  }
}

void TcpGate::Loop::StopListening() {
  if (listener_ >= 0) close(listener_);
  listener_ = -1;
}

void TcpGate::Loop::ResetAll() {
  for (Connection& connection : connections_) Reset(connection);
  connections_.clear();
}

void TcpGate::Loop::ResetBacklog() {
  while (listener_ >= 0) {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) return;
    ResetSocket(client);
  }
}

void TcpGate::Loop::HalfCloseAll(Way way) {
  for (Connection& connection : connections_) HalfClose(connection, way);
}

void TcpGate::Loop::Reset(Connection& connection) {
  ResetSocket(std::exchange(connection.client, -1));
  ResetSocket(std::exchange(connection.server, -1));
}

void TcpGate::Loop::Run() {
  while (!stopping_) {
    now_ = Clock::now();
    std::vector<Polled> polled;
    std::vector<pollfd> fds = Poll(&polled);
    if (poll(fds.data(), fds.size(), PollTimeout()) < 0) continue;
    now_ = Clock::now();
    if (fds[1].revents != 0) Accept();
    for (const Polled& p : polled) {
      if (!Serve(*p.connection, fds[p.client].revents, fds[p.server].revents)) {
        connections_.erase(p.connection);
      }
    }
    // Last, since commands take connections away.
    RunCommands();
  }
}

void TcpGate::Loop::RunCommands() {
  std::uint64_t wakes;
  [[maybe_unused]] const ssize_t got = read(wake_fd_, &wakes, sizeof(wakes));
  std::vector<std::function<void()>> commands;
  {
    MutexLock lock(mutex_);
    commands.swap(commands_);
  }
  for (const std::function<void()>& command : commands) command();
  current_.connections_open = static_cast<std::int64_t>(connections_.size());
  MutexLock lock(mutex_);
  commands_done_ += static_cast<std::int64_t>(commands.size());
  if (published_ != current_) {
    published_ = current_;
    ++publications_;
  } else if (commands.empty()) {
    return;
  }
  changed_.notify_all();
}

bool TcpGate::Loop::HoldsBack() const {
  return modes_.black_hole || now_ < modes_.stalled_until;
}

bool TcpGate::Loop::IsDue(const Stream& stream) const {
  if (HoldsBack()) return false;
  if (stream.chunks.empty()) {
    return stream.source_ended && !stream.end_passed_on;
  }
  return stream.chunks.front().due <= now_;
}

// Sockets of which nothing is wanted are left out (-1): poll would report
// their hang-up again and again.
std::vector<pollfd> TcpGate::Loop::Poll(std::vector<Polled>* polled) {
  const bool holds_back = HoldsBack();
  std::vector<pollfd> fds = {{wake_fd_, POLLIN, 0},
                             {holds_back ? -1 : listener_, POLLIN, 0}};
  const auto add = [&fds](int fd, bool readable, bool writable) {
    const int events = (readable ? POLLIN : 0) | (writable ? POLLOUT : 0);
    fds.push_back({events == 0 ? -1 : fd, static_cast<short>(events), 0});
  };
  const auto has_room = [holds_back](const Stream& stream) {
    return !holds_back && !stream.source_ended &&
           stream.bytes < kStreamBytesMax;
  };
  for (auto c = connections_.begin(); c != connections_.end(); ++c) {
    polled->push_back({c, fds.size(), fds.size() + 1});
    add(c->client, has_room(c->requests), IsDue(c->replies));
    if (c->connecting) {
      add(c->server, false, !holds_back);
    } else {
      add(c->server, has_room(c->replies), IsDue(c->requests));
    }
  }
  return fds;
}

int TcpGate::Loop::PollTimeout() const {
  if (modes_.black_hole) return -1;
  std::optional<Clock::time_point> next;
  const auto consider = [this, &next](const Stream& stream) {
    if (stream.chunks.empty()) return;
    const Clock::time_point due = stream.chunks.front().due;
    // One that is due waits for its socket, not for the time.
    if (due > now_ && (!next || due < *next)) next = due;
  };
  if (HoldsBack()) {
    next = modes_.stalled_until;
  } else {
    for (const Connection& connection : connections_) {
      consider(connection.requests);
      consider(connection.replies);
    }
  }
  if (!next) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - now_);
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60000));
}

void TcpGate::Loop::Accept() {
  while (true) {
    const int client =
        accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client < 0) return;
    ++current_.connections_accepted;
    Connection connection;
    connection.client = client;
    connection.server = MakeSocket();
    SendAtOnce(connection.client);
    SendAtOnce(connection.server);
    const sockaddr_in address = Loopback(target_port_);
    if (connect(connection.server, reinterpret_cast<const sockaddr*>(&address),
                sizeof(address)) != 0 &&
        errno != EINPROGRESS) {
      Reset(connection);
      continue;
    }
    connections_.push_back(std::move(connection));
  }
}

bool TcpGate::Loop::Serve(Connection& connection, short client_events,
                          short server_events) {
  if (connection.connecting && server_events != 0) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(connection.server, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
      Reset(connection);
      return false;
    }
    connection.connecting = false;
  }
  constexpr short kReadable = POLLIN | POLLHUP | POLLERR;
  if ((client_events & kReadable) != 0 && !ReadRequests(connection)) {
    return false;
  }
  if (!connection.connecting && (server_events & kReadable) != 0 &&
      !ReadReplies(connection)) {
    return false;
  }
  if (!connection.connecting && IsDue(connection.requests) &&
      !Write(connection, Way::kRequests)) {
    return false;
  }
  if (IsDue(connection.replies) && !Write(connection, Way::kReplies)) {
    return false;
  }
  if (connection.requests.end_passed_on && connection.replies.end_passed_on) {
    close(std::exchange(connection.client, -1));
    close(std::exchange(connection.server, -1));
    return false;
  }
  return true;
}

std::size_t TcpGate::Loop::BytesToRead() const {
  if (modes_.bytes_per_second == 0) return kReadBytes;
  const std::int64_t piece =
      modes_.bytes_per_second * kThrottledPiece.count() / 1000;
  return static_cast<std::size_t>(std::clamp<std::int64_t>(
      piece, 1, static_cast<std::int64_t>(kReadBytes)));
}

TcpGate::Loop::Clock::time_point TcpGate::Loop::Due(const Stream& stream,
                                                    std::size_t bytes,
                                                    Way way) {
  Clock::time_point due = now_;
  if (modes_.bytes_per_second > 0) {
    Clock::time_point& passed =
        way == Way::kRequests ? requests_passed_ : replies_passed_;
    passed = std::max(passed, due) +
             std::chrono::microseconds(static_cast<std::int64_t>(bytes) *
                                       1'000'000 / modes_.bytes_per_second);
    due = passed;
  }
  due += way == Way::kRequests ? modes_.request_delay : modes_.reply_delay;
  return stream.chunks.empty() ? due : std::max(due, stream.chunks.back().due);
}

bool TcpGate::Loop::ReadRequests(Connection& connection) {
  Stream& stream = connection.requests;
  if (stream.source_ended) return true;
  std::string bytes(BytesToRead(), '\0');
  const ssize_t got = recv(connection.client, bytes.data(), bytes.size(), 0);
  if (got < 0) {
    if (WouldBlock()) return true;
    Reset(connection);
    return false;
  }
  if (got == 0) {
    stream.source_ended = true;
    return true;
  }
  bytes.resize(static_cast<std::size_t>(got));
  if (stream.half_closed) {
    current_.swallowed_bytes += got;
    return true;
  }
  const bool begins_cut = MatchesCut(connection, bytes);
  stream.bytes += bytes.size();
  const Clock::time_point due = Due(stream, bytes.size(), Way::kRequests);
  stream.chunks.push_back({due, std::move(bytes), 0, begins_cut});
  return true;
}

bool TcpGate::Loop::MatchesCut(Connection& connection,
                               const std::string& bytes) {
  if (!modes_.cut) return false;
  const std::string& wanted = modes_.cut->request_contains;
  const std::string both = connection.request_tail + bytes;
  if (both.find(wanted) != std::string::npos) {
    connection.cut = std::move(modes_.cut);
    return true;
  }
  const std::size_t kept = std::min(both.size(), wanted.size() - 1);
  connection.request_tail = both.substr(both.size() - kept);
  return false;
}

bool TcpGate::Loop::ReadReplies(Connection& connection) {
  Stream& stream = connection.replies;
  if (stream.source_ended) return true;
  std::string bytes(BytesToRead(), '\0');
  const ssize_t got = recv(connection.server, bytes.data(), bytes.size(), 0);
  if (got < 0 && WouldBlock()) return true;
  if (got > 0) {
    bytes.resize(static_cast<std::size_t>(got));
    return TakeReply(connection, std::move(bytes));
  }
  if (connection.cutting) ++current_.cuts;
  if (got < 0 || connection.cutting) {
    Reset(connection);
    return false;
  }
  stream.source_ended = true;
  return true;
}

bool TcpGate::Loop::TakeReply(Connection& connection, std::string bytes) {
  if (connection.cutting) {
    current_.swallowed_bytes += static_cast<std::int64_t>(bytes.size());
    connection.answer += bytes;
    const auto& answered = connection.cut->answered;
    const bool complete = answered ? answered(connection.answer)
                                   : EndsWithReadyForQuery(connection.answer);
    if (!complete && connection.answer.size() < kAnswerBytesMax) return true;
    ++current_.cuts;
    Reset(connection);
    return false;
  }
  Stream& stream = connection.replies;
  if (modes_.swallow_replies || stream.half_closed) {
    current_.swallowed_bytes += static_cast<std::int64_t>(bytes.size());
    return true;
  }
  stream.bytes += bytes.size();
  const Clock::time_point due = Due(stream, bytes.size(), Way::kReplies);
  stream.chunks.push_back({due, std::move(bytes), 0, false});
  return true;
}

void TcpGate::Loop::HalfClose(Connection& connection, Way way) {
  const bool requests = way == Way::kRequests;
  Stream& stream = requests ? connection.requests : connection.replies;
  shutdown(requests ? connection.server : connection.client, SHUT_WR);
  stream.chunks.clear();
  stream.bytes = 0;
  stream.half_closed = stream.end_passed_on = true;
}

bool TcpGate::Loop::Write(Connection& connection, Way way) {
  const bool requests = way == Way::kRequests;
  Stream& stream = requests ? connection.requests : connection.replies;
  const int receiver = requests ? connection.server : connection.client;
  while (!stream.chunks.empty() && IsDue(stream)) {
    Chunk& chunk = stream.chunks.front();
    if (chunk.begins_cut) connection.cutting = true;
    std::size_t size = chunk.bytes.size() - chunk.written;
    std::optional<EndingByte>& ending = modes_.end_at_byte;
    const bool counts = ending.has_value() && ending->way == way;
    if (counts) size = std::min(size, static_cast<std::size_t>(ending->left));
    const ssize_t sent =
        send(receiver, chunk.bytes.data() + chunk.written, size, MSG_NOSIGNAL);
    if (sent < 0) {
      if (WouldBlock()) return true;
      Reset(connection);
      return false;
    }
    (requests ? current_.request_bytes : current_.reply_bytes) += sent;
    stream.bytes -= static_cast<std::size_t>(sent);
    chunk.written += static_cast<std::size_t>(sent);
    if (chunk.written == chunk.bytes.size()) stream.chunks.pop_front();
    if (!counts || (ending->left -= sent) > 0) continue;
    const End end = std::exchange(ending, std::nullopt)->end;
    ++current_.cuts;
    if (end == End::kHalfClose) {
      HalfClose(connection, way);
      return true;
    }
    Reset(connection);
    return false;
  }
  if (stream.chunks.empty() && stream.source_ended && !stream.half_closed) {
    shutdown(receiver, SHUT_WR);
    stream.end_passed_on = true;
  }
  return true;
}

}  // namespace idempotency
