// Channels whose calls are written into a history as they go: what was on the
// wire, whoever made the call and however often it was tried.
#ifndef IDEMPOTENCY_TESTS_FAULT_CALLER_RECORDER_H_
#define IDEMPOTENCY_TESTS_FAULT_CALLER_RECORDER_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "grpcpp/channel.h"
#include "grpcpp/support/channel_arguments.h"
#include "server/core/mutex.h"
#include "tests/fault/checker/history.h"

namespace idempotency::fault {

// Ends the process when the history cannot be written: a call that is not in it
// must not be made. Thread-safe.
class Recorder {
 public:
  // How often each answer was given: "claimed", "CLAIM_SUPERSEDED"; for an
  // error without a reason its code.
  using Counts = std::map<std::string, std::int64_t>;

  // Its operations are called `caller`-1, -2 ... `history` must outlive it.
  Recorder(HistoryWriter& history, std::string caller);
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Without gRPC's own retries, unless `arguments` asks for them: each unary
  // call is then a call of `path`, else one that is sent once. The commands of
  // a stream Bulk are calls of their own. The channel must not outlive this
  // object.
  std::shared_ptr<grpc::Channel> Connect(const std::string& target,
                                         grpc::ChannelArguments arguments,
                                         Path path = Path::kUnary);

  // Calls begun so far, and of that key in the last minutes.
  std::int64_t calls() const { return calls_; }
  std::int64_t CallsOf(const std::string& key) const;
  Counts answers() const;

  // What the interceptors tell. Begin: fills op and t in, and returns the op.
  std::string Begin(CallEvent call);
  void End(const std::string& op, AnswerEvent answer);

 private:
  void Write(const Event& event);

  HistoryWriter& history_;
  const std::string caller_;
  std::atomic<std::int64_t> calls_{0};

  mutable Mutex mutex_;
  absl::flat_hash_map<std::string, std::int64_t> calls_of_keys_
      ABSL_GUARDED_BY(mutex_);
  Counts answers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CALLER_RECORDER_H_
