// A std::mutex that Clang's thread-safety analysis understands, for the
// client's own sources; not installed.
#ifndef IDEMPOTENCY_CLIENT_MUTEX_H_
#define IDEMPOTENCY_CLIENT_MUTEX_H_

#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace idempotency::internal {

class ABSL_LOCKABLE Mutex {
 public:
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex)
      : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits need the mutex itself, which the analysis sees as held throughout.
using ConditionVariable = std::condition_variable_any;

}  // namespace idempotency::internal

#endif  // IDEMPOTENCY_CLIENT_MUTEX_H_
