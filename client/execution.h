// What a function that runs once is given, and how it answers.
#ifndef IDEMPOTENCY_CLIENT_EXECUTION_H_
#define IDEMPOTENCY_CLIENT_EXECUTION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/operation.h"

namespace idempotency {

// One attempt that was granted. Thread-safe. A function of Start(), which has
// it as a shared_ptr, may keep it after the attempt has ended: then nothing is
// permitted any more.
class Execution {
 public:
  virtual ~Execution() = default;

  // Constant.
  virtual const v1::Claimed& claimed() const = 0;
  int attempt() const { return claimed().attempt(); }
  // Send this to the channel as its idempotency key.
  const std::string& downstream_key() const {
    return claimed().downstream_key();
  }
  // Store this beside what the function writes, and refuse smaller ones there.
  std::int64_t fencing_token() const { return claimed().fencing_token(); }
  // Null, or the earlier attempt that may have acted.
  const v1::Abandoned* abandoned() const {
    return claimed().has_abandoned() ? &claimed().abandoned() : nullptr;
  }

  // False, and never true again, once the claim is lost: a renewal was refused,
  // or the lease ended by this process's clock before one was answered. To be
  // asked before each step that cannot be undone.
  virtual bool permitted() const = 0;
  // Calls `withdrawn` once, in the executor, when the permission goes while the
  // attempt runs; at once if it has gone. One callback an attempt: a later one
  // takes the earlier one's place; null takes it back. A function that returns
  // first may not see it called; and it may still run after the function has
  // returned, so let it hold what it uses by value, not by reference.
  virtual void OnWithdrawn(std::function<void()> withdrawn) = 0;

  // Stores progress, at most 4 KiB, for whoever takes over, with a renewal of
  // the lease. Of two that wait for their turn only the later one is stored,
  // which answers both. `stored` is called once, in the executor, by the end of
  // the lease or of the attempt: after an error it is not to be relied on, and
  // permitted() tells whether the claim is lost. It too may run after the
  // function has returned. Null: nobody wants to know.
  virtual void SaveCheckpoint(std::string checkpoint,
                              std::function<void(absl::Status)> stored) = 0;
  // The same, and waits for it.
  virtual absl::Status SaveCheckpoint(std::string checkpoint) = 0;
};

// The answer to come of an asynchronous function. Callable from any thread; the
// first answer counts. One that is destroyed without an answer has answered
// OutcomeUnknown (StillUnknown). Copies share the answer.
template <typename Answer>
class Completion {
 public:
  explicit Completion(std::function<void(Answer)> answered);
  void operator()(Answer answer) const;

 private:
  struct Once;
  std::shared_ptr<Once> once_;
};

using AsyncFunction =
    std::function<void(std::shared_ptr<Execution>, Completion<FunctionResult>)>;
using AsyncResolver =
    std::function<void(std::shared_ptr<Execution>, Completion<Resolution>)>;

// A started operation. Destroying it changes nothing. Thread-safe.
class Running {
 public:
  virtual ~Running() = default;
  // The caller no longer waits. An operation that was not granted ends with
  // kHungUp; one that was goes on to its end: its function is not disturbed,
  // its response is recorded.
  virtual void HangUp() = 0;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_EXECUTION_H_
