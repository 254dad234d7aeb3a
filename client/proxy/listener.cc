#include "client/proxy/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace idempotency::internal {
namespace {

using std::chrono::milliseconds;

// How long the acceptor rests when the process has no descriptor left.
constexpr int kRestMs = 20;

// The listening socket, or -1.
int ListenOn(const HostAndPort& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found) !=
      0) {
    return -1;
  }
  int descriptor = -1;
  for (const addrinfo* at = found; at != nullptr && descriptor < 0;
       at = at->ai_next) {
    descriptor =
        socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0) continue;
    const int on = 1;
    setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(descriptor, at->ai_addr, at->ai_addrlen) != 0 ||
        listen(descriptor, SOMAXCONN) != 0) {
      close(descriptor);
      descriptor = -1;
    }
  }
  freeaddrinfo(found);
  return descriptor;
}

int PortOf(int descriptor) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Start(
    ListenerOptions options, const Alarm& stop, const Alarm& cut, Serve serve) {
  const absl::StatusOr<HostAndPort> address = ParseHostAndPort(options.listen);
  if (!address.ok()) return address.status();
  const int descriptor = ListenOn(*address);
  if (descriptor < 0) {
    return absl::UnavailableError(
        absl::StrCat(options.listen, " cannot be listened on"));
  }
  return std::unique_ptr<Listener>(new Listener(std::move(options), descriptor,
                                                PortOf(descriptor), stop, cut,
                                                std::move(serve)));
}

Listener::Listener(ListenerOptions options, int descriptor, int port,
                   const Alarm& stop, const Alarm& cut, Serve serve)
    : options_(std::move(options)),
      descriptor_(descriptor),
      port_(port),
      stop_(stop),
      cut_(cut),
      serve_(std::move(serve)),
      acceptor_([this] { Accept(); }) {}

Listener::~Listener() {
  acceptor_.join();
  AwaitNone();
  JoinEnded();
}

std::size_t Listener::connections() const {
  MutexLock lock(mutex_);
  return connections_;
}

bool Listener::AwaitNone(milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(mutex_);
  while (connections_ > 0) {
    if (changed_.wait_until(mutex_, deadline) == std::cv_status::timeout) {
      return connections_ == 0;
    }
  }
  return true;
}

void Listener::AwaitNone() {
  MutexLock lock(mutex_);
  while (connections_ > 0) changed_.wait(mutex_);
}

void Listener::Accept() {
  pollfd waiting[2] = {{descriptor_, POLLIN, 0},
                       {stop_.descriptor(), POLLIN, 0}};
  for (;;) {
    if (poll(waiting, 2, -1) < 0 && errno != EINTR) break;
    if (waiting[1].revents != 0) break;
    const int accepted =
        accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (accepted >= 0) {
      Take(accepted);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
               errno == ENOMEM) {
      poll(&waiting[1], 1, kRestMs);
    }
    JoinEnded();
  }
  // Whoever connects from now on is refused, and not left to wait.
  close(descriptor_);
}

void Listener::Take(int descriptor) {
  {
    MutexLock lock(mutex_);
    if (connections_ >= options_.connections_max) {
      send(descriptor, options_.full.data(), options_.full.size(),
           MSG_NOSIGNAL);
      close(descriptor);
      return;
    }
    ++connections_;
    try {
      // It cannot end before it is in the list: that takes the lock.
      const auto at = running_.emplace(running_.end());
      *at = std::thread([this, descriptor, at] {
        serve_(Socket(descriptor, cut_));
        MutexLock ending(mutex_);
        ended_.splice(ended_.end(), running_, at);
        --connections_;
        changed_.notify_all();
      });
      return;
    } catch (const std::system_error&) {
      running_.pop_back();
      --connections_;
    }
  }
  close(descriptor);
}

void Listener::JoinEnded() {
  std::list<std::thread> ended;
  {
    MutexLock lock(mutex_);
    ended.swap(ended_);
  }
  for (std::thread& thread : ended) thread.join();
}

}  // namespace idempotency::internal
