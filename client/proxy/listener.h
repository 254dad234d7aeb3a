// Takes connections and gives each a thread of its own.
#ifndef IDEMPOTENCY_CLIENT_PROXY_LISTENER_H_
#define IDEMPOTENCY_CLIENT_PROXY_LISTENER_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "client/mutex.h"
#include "client/proxy/socket.h"

namespace idempotency::internal {

struct ListenerOptions {
  std::string listen;  // host:port; port 0: any free one
  // At a time. Whoever comes beyond is sent `full` and hung up on.
  std::size_t connections_max = 512;
  std::string full = {};
};

// Thread-safe. Before it is destroyed `stop` must have rung; the destructor
// waits until every connection has been served, and `cut` is the way to hurry.
class Listener {
 public:
  // Serves one connection to its end. Must not throw.
  using Serve = std::function<void(Socket)>;

  // Listens and accepts at once, until `stop` rings. `cut` is that of the
  // sockets. Both must outlive it. UNAVAILABLE if the address cannot be
  // listened on.
  static absl::StatusOr<std::unique_ptr<Listener>> Start(
      ListenerOptions options, const Alarm& stop, const Alarm& cut,
      Serve serve);

  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const { return port_; }
  std::size_t connections() const;
  // Whether there were none left within `timeout`.
  bool AwaitNone(std::chrono::milliseconds timeout);
  void AwaitNone();

 private:
  Listener(ListenerOptions options, int descriptor, int port, const Alarm& stop,
           const Alarm& cut, Serve serve);

  void Accept();
  void Take(int descriptor);
  void JoinEnded();

  const ListenerOptions options_;
  const int descriptor_;
  const int port_;
  const Alarm& stop_;
  const Alarm& cut_;
  const Serve serve_;

  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::size_t connections_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<std::thread> running_ ABSL_GUARDED_BY(mutex_);
  std::list<std::thread> ended_ ABSL_GUARDED_BY(mutex_);

  std::thread acceptor_;
};

}  // namespace idempotency::internal

#endif  // IDEMPOTENCY_CLIENT_PROXY_LISTENER_H_
