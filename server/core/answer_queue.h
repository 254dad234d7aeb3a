// Answers that a thread of their own gives, so that the lane which has them
// can send its next statement meanwhile.
#ifndef IDEMPOTENCY_SERVER_CORE_ANSWER_QUEUE_H_
#define IDEMPOTENCY_SERVER_CORE_ANSWER_QUEUE_H_

#include <cstddef>
#include <deque>

#include "absl/functional/any_invocable.h"
#include "server/core/mutex.h"

namespace idempotency {

// Gives the answers of one batch.
using GiveAnswers = absl::AnyInvocable<void() &&>;

// Thread-safe.
class AnswerQueue {
 public:
  // Takes `answers` over, to be given by Run(). False, with `answers` left as
  // it is, when those before are not given yet or Stop() was called: then the
  // caller had better give them itself.
  bool Offer(GiveAnswers& answers);

  // Waits for answers and gives them, in the order of Offer(). False once
  // Stop() was called and all are given. For one thread at a time.
  bool Run();

  // Is nothing left to be given?
  bool idle() const;

  // Ends Run(), after what is left. May be called again.
  void Stop();

 private:
  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::deque<GiveAnswers> batches_ ABSL_GUARDED_BY(mutex_);
  bool giving_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_ANSWER_QUEUE_H_
