#include "server/core/answer_queue.h"

#include <mutex>
#include <utility>

namespace idempotency {
namespace {

// A lane that is further ahead than this gains nothing by going on.
constexpr std::size_t kBatchesMax = 4;

}  // namespace

bool AnswerQueue::Offer(GiveAnswers& answers) {
  {
    MutexLock lock(mutex_);
    if (stopped_ || batches_.size() >= kBatchesMax) return false;
    batches_.push_back(std::move(answers));
  }
  changed_.notify_one();
  return true;
}

bool AnswerQueue::Run() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  std::unique_lock<Mutex> lock(mutex_);
  while (batches_.empty() && !stopped_) changed_.wait(lock);
  if (batches_.empty()) return false;
  GiveAnswers answers = std::move(batches_.front());
  batches_.pop_front();
  giving_ = true;
  lock.unlock();
  std::move(answers)();
  lock.lock();
  giving_ = false;
  return true;
}

bool AnswerQueue::idle() const {
  MutexLock lock(mutex_);
  return batches_.empty() && !giving_;
}

void AnswerQueue::Stop() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

}  // namespace idempotency
