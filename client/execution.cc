#include "client/execution.h"

#include <atomic>
#include <utility>

namespace idempotency {
namespace {

void Unanswered(FunctionResult& answer) {
  answer = OutcomeUnknown{
      absl::UnknownError("the function was dropped without an answer")};
}

void Unanswered(Resolution& answer) {
  answer = StillUnknown{
      absl::UnknownError("the resolver was dropped without an answer")};
}

}  // namespace

template <typename Answer>
struct Completion<Answer>::Once {
  explicit Once(std::function<void(Answer)> callback)
      : answered(std::move(callback)) {}
  ~Once() {
    if (taken) return;
    Answer answer;
    Unanswered(answer);
    answered(std::move(answer));
  }

  const std::function<void(Answer)> answered;
  std::atomic<bool> taken{false};
};

template <typename Answer>
Completion<Answer>::Completion(std::function<void(Answer)> answered)
    : once_(std::make_shared<Once>(std::move(answered))) {}

template <typename Answer>
void Completion<Answer>::operator()(Answer answer) const {
  if (!once_->taken.exchange(true)) once_->answered(std::move(answer));
}

template class Completion<FunctionResult>;
template class Completion<Resolution>;

}  // namespace idempotency
