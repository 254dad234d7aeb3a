#include "server/core/sweep_step.h"

#include <algorithm>

namespace idempotency {
namespace {

constexpr int kRowsAtFirst = 500;
// Below that a statement's own cost is most of it.
constexpr int kRowsMin = 100;
// One slow statement is no proof: it shrinks the step to a quarter at most.
constexpr int kShrinkMax = 4;

}  // namespace

SweepStep::SweepStep(int rows_max)
    : rows_max_(rows_max), rows_(std::min(rows_max, kRowsAtFirst)) {}

void SweepStep::Note(std::int64_t found, SteadyTime::duration took) {
  if (took > kTimeMax) {
    // One that found little was not slow for its size.
    if (found * 2 < rows_) return;
    SetRows(std::max<std::int64_t>(
        rows_ / kShrinkMax,
        static_cast<std::int64_t>(
            rows_ * (std::chrono::duration<double>(kTimeMax) / took))));
  } else if (found >= rows_ && took * 2 <= kTimeMax) {
    SetRows(std::int64_t{2} * rows_);
  }
}

void SweepStep::NoteFailure() { SetRows(rows_ / 2); }

void SweepStep::SetRows(std::int64_t rows) {
  rows_ = static_cast<int>(
      std::clamp<std::int64_t>(rows, std::min(kRowsMin, rows_max_), rows_max_));
}

}  // namespace idempotency
