#ifndef IDEMPOTENCY_TESTS_SUPPORT_TCP_GATE_H_
#define IDEMPOTENCY_TESTS_SUPPORT_TCP_GATE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace idempotency {

// A TCP proxy on 127.0.0.1 in front of a server on 127.0.0.1, that can be a
// bad network. "Request" bytes go from client to server, "reply" bytes back.
//
// Every control has taken effect when its call returns. Thread-safe. All waits
// are bounded and return whether the thing happened.
class TcpGate {
 public:
  struct Counters {
    std::int64_t connections_accepted = 0;
    std::int64_t connections_open = 0;
    std::int64_t request_bytes = 0;  // forwarded to the server
    std::int64_t reply_bytes = 0;    // forwarded to clients
    std::int64_t swallowed_bytes = 0;
    // Connections that CutAfterNextRequest or EndAtByte has ended.
    std::int64_t cuts = 0;
    friend bool operator==(const Counters&, const Counters&) = default;
  };

  // What CutAfterNextRequest waits for.
  struct Cut {
    // Only a request with these bytes in it counts. Empty: the next chunk.
    std::string request_contains;
    // Whether the reply bytes since the request are the whole answer. Unset:
    // EndsWithReadyForQuery. For gRPC, whose replies may begin with frames
    // that are no answer, give one that knows the answer.
    std::function<bool(std::string_view reply)> answered;
  };

  enum class Way { kRequests, kReplies };
  enum class End {
    kReset,      // on both sides
    kHalfClose,  // as HalfClose
  };

  // Whether PostgreSQL's reply ends with ReadyForQuery outside a transaction
  // block: what it was asked to do is committed or rolled back.
  static bool EndsWithReadyForQuery(std::string_view reply);

  // Listens at a free port and forwards to `target_port`.
  static absl::StatusOr<std::unique_ptr<TcpGate>> Make(int target_port);

  TcpGate(const TcpGate&) = delete;
  TcpGate& operator=(const TcpGate&) = delete;
  // Resets all connections.
  ~TcpGate();

  // Where clients connect, the same over Refuse and Open.
  int port() const;

  // Forwards, at once and in both directions. Ends Refuse, BlackHole, Stall,
  // SwallowReplies, Delay and Throttle, and disarms CutAfterNextRequest and
  // EndAtByte. What a black hole held back arrives now.
  void Open();

  // Resets all connections and refuses new ones.
  void Refuse();

  // Resets all connections of now. New ones are served as before.
  void CutAll();

  // Keeps connections and forwards nothing. New connections seem to succeed
  // (the kernel accepts them) and get no answer.
  void BlackHole();

  // A black hole that ends by itself after that time.
  void Stall(std::chrono::milliseconds time);

  // While set, replies are read and thrown away; requests are forwarded.
  void SwallowReplies(bool swallow);

  // From the next request of any connection on, that connection's replies are
  // thrown away; when they make up the answer, it is reset on both sides. So
  // the server has done what the client never hears of. Happens once a call.
  // A connection with several requests under way may have the answer to an
  // earlier one taken for it.
  void CutAfterNextRequest() { CutAfterNextRequest(Cut()); }
  void CutAfterNextRequest(Cut cut);

  // Counts from now: the connection that the byte of that number belongs to
  // ends right behind it, which may be within a message. 1 or more, of all
  // connections together. Happens once a call.
  void EndAtByte(Way way, std::int64_t byte, End end);

  // On all connections of now: whoever receives that way sees the end of the
  // stream, and what is still sent to it is thrown away. The other way goes on.
  void HalfClose(Way way);

  // Delays each direction's bytes, those that arrive from now on.
  void Delay(std::chrono::milliseconds requests,
             std::chrono::milliseconds replies);

  // Each way, all connections together, for the bytes that arrive from now on.
  // 0: as fast as they come.
  void Throttle(std::int64_t bytes_per_second);

  Counters counters() const;

  // Waits until the counters satisfy `condition`, which must not call the gate.
  bool WaitUntil(const std::function<bool(const Counters&)>& condition,
                 std::chrono::milliseconds timeout) const;
  // Waits until CutAfterNextRequest has cut that many connections in all.
  bool WaitForCuts(std::int64_t cuts, std::chrono::milliseconds timeout) const;

 private:
  class Loop;

  explicit TcpGate(std::unique_ptr<Loop> loop);

  const std::unique_ptr<Loop> loop_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SUPPORT_TCP_GATE_H_
