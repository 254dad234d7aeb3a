// Callers that keep a server busy and remember what they were promised.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_LOAD_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_LOAD_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "idempotency/v1/idempotency.grpc.pb.h"
#include "server/core/mutex.h"
#include "tests/integration/fault_calls.h"

namespace idempotency {

// Each thread claims a new key, sends the claim again until it is answered, and
// then finalizes in the same way. A call that is not answered within its
// attempts is left open. Thread-safe.
class Load {
 public:
  struct Options {
    int threads = 16;
    std::chrono::milliseconds timeout{1000};  // of one attempt
    int attempts = 30;
    // Like a client with other replicas to go to: a thread whose call is
    // refused because the server drains makes no more.
    bool leaves_a_draining_server = false;
  };

  // `channels` are used in turn.
  Load(std::vector<std::shared_ptr<grpc::Channel>> channels, Options options);
  ~Load();

  // Lets every thread finish its call, and ends.
  void Stop();

  // Waits until that many Finalizes were acknowledged since the call.
  bool WaitForAcknowledged(std::size_t more,
                           std::chrono::milliseconds timeout) const;

  std::vector<Recorded> acknowledged() const;
  // Finalizes that were sent and never answered.
  std::vector<Recorded> open() const;
  // Answers that must not be: a new key that is not granted, a Finalize of the
  // owner that is refused, an attempt that outlives its deadline.
  std::vector<std::string> wrong() const;
  // Attempts that were not served.
  std::int64_t unserved() const { return unserved_; }

 private:
  void Run(std::shared_ptr<grpc::Channel> channel);
  // Sets `left` when the thread is to end.
  void RunOne(Stub& stub, bool& left);
  template <typename Request>
  auto SendUntilAnswered(Stub& stub, const Request& request, bool& left);
  void NoteWrong(const std::string& what);

  const Options options_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::int64_t> unserved_{0};

  mutable Mutex mutex_;
  mutable ConditionVariable changed_;
  std::vector<Recorded> acknowledged_ ABSL_GUARDED_BY(mutex_);
  std::vector<Recorded> open_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> wrong_ ABSL_GUARDED_BY(mutex_);

  std::vector<std::thread> threads_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_LOAD_H_
