#ifndef IDEMPOTENCY_TESTS_SUPPORT_TCP_GATE_LOOP_H_
#define IDEMPOTENCY_TESTS_SUPPORT_TCP_GATE_LOOP_H_

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "server/core/mutex.h"
#include "tests/support/tcp_gate.h"

namespace idempotency {

// The gate's one thread and all that it owns. Only the thread touches sockets
// and modes; others hand it functions to run (Do) and read the counters.
class TcpGate::Loop {
 public:
  using Clock = std::chrono::steady_clock;

  Loop(int port, int target_port) : port_(port), target_port_(target_port) {}
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  ~Loop();

  absl::Status Start();

  int port() const { return port_; }

  // Runs `command` on the thread and returns when it has run.
  void Do(std::function<void()> command);

  Counters counters() const;
  bool WaitUntil(const std::function<bool(const Counters&)>& condition,
                 std::chrono::milliseconds timeout) const;

  // The rest runs inside Do only.
  void Listen();
  void StopListening();
  void ResetAll();
  void ResetBacklog();
  void HalfCloseAll(Way way);

  struct EndingByte {
    Way way;
    std::int64_t left;  // of its direction, until the end
    End end;
  };

  struct Modes {
    bool black_hole = false;
    Clock::time_point stalled_until;
    bool swallow_replies = false;
    std::unique_ptr<Cut> cut;
    std::chrono::milliseconds request_delay{0};
    std::chrono::milliseconds reply_delay{0};
    std::optional<EndingByte> end_at_byte;
    std::int64_t bytes_per_second = 0;  // zero: no bound
  };
  Modes& modes() { return modes_; }

 private:
  struct Chunk {
    Clock::time_point due;
    std::string bytes;
    std::size_t written = 0;
    // The request that CutAfterNextRequest waited for.
    bool begins_cut = false;
  };

  // One direction of a connection.
  struct Stream {
    std::deque<Chunk> chunks;
    std::size_t bytes = 0;
    bool source_ended = false;
    bool end_passed_on = false;
    // What still comes is thrown away.
    bool half_closed = false;
  };

  struct Connection {
    int client = -1;
    int server = -1;
    bool connecting = true;
    Stream requests;
    Stream replies;
    // The last bytes of the request before this one, for a match across both.
    std::string request_tail;
    std::unique_ptr<Cut> cut;
    bool cutting = false;
    std::string answer;
  };

  // The places of a connection's sockets among the polled ones.
  struct Polled {
    std::list<Connection>::iterator connection;
    std::size_t client;
    std::size_t server;
  };

  void Run();
  void RunCommands();
  void Publish();
  std::vector<pollfd> Poll(std::vector<Polled>* polled);
  int PollTimeout() const;
  bool IsDue(const Stream& stream) const;
  // A black hole, or a stall.
  bool HoldsBack() const;

  void Accept();
  // False: the connection is over and its sockets are closed.
  bool Serve(Connection& connection, short client_events, short server_events);
  bool ReadRequests(Connection& connection);
  bool ReadReplies(Connection& connection);
  bool TakeReply(Connection& connection, std::string bytes);
  bool Write(Connection& connection, Way way);
  void HalfClose(Connection& connection, Way way);
  std::size_t BytesToRead() const;
  // When `bytes` that arrive now are passed on: never before earlier ones.
  Clock::time_point Due(const Stream& stream, std::size_t bytes, Way way);
  bool MatchesCut(Connection& connection, const std::string& bytes);
  void Reset(Connection& connection);

  const int port_;
  const int target_port_;

  // Of the thread alone.
  int wake_fd_ = -1;
  int listener_ = -1;
  bool stopping_ = false;
  Modes modes_;
  // One for all that is decided between two polls: what is found not to be due
  // yet is waited for.
  Clock::time_point now_;
  // When a throttled direction has passed on what it was given.
  Clock::time_point requests_passed_;
  Clock::time_point replies_passed_;
  std::list<Connection> connections_;
  Counters current_;

  mutable Mutex mutex_;
  mutable ConditionVariable changed_;
  std::vector<std::function<void()>> commands_ ABSL_GUARDED_BY(mutex_);
  std::int64_t commands_given_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t commands_done_ ABSL_GUARDED_BY(mutex_) = 0;
  Counters published_ ABSL_GUARDED_BY(mutex_);
  std::int64_t publications_ ABSL_GUARDED_BY(mutex_) = 0;

  std::thread thread_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SUPPORT_TCP_GATE_LOOP_H_
