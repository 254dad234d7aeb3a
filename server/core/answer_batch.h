// The answers of a lane's batch, on their way to their callers.
#ifndef IDEMPOTENCY_SERVER_CORE_ANSWER_BATCH_H_
#define IDEMPOTENCY_SERVER_CORE_ANSWER_BATCH_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/core/answer_queue.h"
#include "server/core/call.h"
#include "server/core/limits.h"
#include "server/core/recorded_bytes.h"

namespace idempotency {

// Gathers answers, so that they are given when the batch has been gone through,
// and many of them by the queue's thread. Each may be a copy of a long response
// and a whole crowd may get one: what passes limits::kAnswersBytesMax is given
// before more is made. Not thread-safe; no lock may be held around it.
template <typename Outcome>
class AnswerBatch {
 public:
  // `queue`: null, or outlives the batch.
  AnswerBatch(AnswerQueue* queue, std::size_t expected) : queue_(queue) {
    answers_.reserve(expected);
  }

  void Add(Done<Outcome> done, absl::StatusOr<Outcome> outcome) {
    if (outcome.ok()) bytes_ += RecordedBytes(*outcome);
    answers_.emplace_back(std::move(done), std::move(outcome));
    if (bytes_ > limits::kAnswersBytesMax) Give();
  }

  // Gives what has been added, or hands it to the queue.
  void Give() {
    // Few answers cost less than waking another thread.
    const bool few = answers_.size() < kToHandOver;
    GiveAnswers give = [answers = std::exchange(answers_, {})]() mutable {
      for (auto& [done, outcome] : answers) std::move(done)(std::move(outcome));
    };
    bytes_ = 0;
    if (few || queue_ == nullptr || !queue_->Offer(give)) std::move(give)();
  }

 private:
  static constexpr std::size_t kToHandOver = 8;

  AnswerQueue* const queue_;
  std::vector<std::pair<Done<Outcome>, absl::StatusOr<Outcome>>> answers_;
  std::size_t bytes_ = 0;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_ANSWER_BATCH_H_
