#include "server/core/admission.h"

#include <algorithm>

#include "server/core/limits.h"

namespace idempotency {
namespace {

// A round counts for a quarter of the average: a single slow one does not turn
// callers away for long, and a slow store is known after three or four.
constexpr int kMemory = 4;
// Rounds grow once such calls come, since they bring statements or parts of
// them along; twice the time could be used up by that alone.
constexpr int kBegunFactor = 4;
// What part of a caller's time new work may spend in the queue: a half.
constexpr int kNewShare = 2;

}  // namespace

Admission::Admission(const AdmissionOptions& options) : options_(options) {}

void Admission::BeginRound(SteadyTime now) { began_ = now; }

void Admission::EndRound(SteadyTime now, bool carried) {
  if (!began_.has_value()) return;
  const SteadyTime::duration took = now - *began_;
  began_.reset();
  if (carried) round_ = AverageWith(took);
}

SteadyTime::duration Admission::AverageWith(SteadyTime::duration took) const {
  return round_ == SteadyTime::duration::zero()
             ? took
             : round_ + (took - round_) / kMemory;
}

SteadyTime::duration Admission::ExpectedTime(SteadyTime now,
                                             const QueueLoad& load) const {
  SteadyTime::duration round = round_;
  SteadyTime::duration rest = SteadyTime::duration::zero();
  if (began_.has_value()) {
    const SteadyTime::duration elapsed =
        std::max(SteadyTime::duration::zero(), now - *began_);
    if (elapsed > round_) {
      round = AverageWith(elapsed);
    } else {
      rest = round_ - elapsed;
    }
  }
  return rest + (FullBatches(load) + 1) * round;
}

std::optional<SteadyTime::duration> Admission::Refuse(
    Work work, SteadyTime now, SteadyTime deadline,
    const QueueLoad& load) const {
  if (options_.wait_max == std::chrono::milliseconds::zero() ||
      FullBatches(load) == 0) {
    return std::nullopt;
  }
  const bool is_new = work == Work::kNew;
  const SteadyTime::duration patience =
      options_.wait_max * (is_new ? 1 : kBegunFactor);
  // An owner needs time to carry out what it claims, and the expectation is
  // none that is kept to the millisecond.
  const SteadyTime::duration time_left =
      (deadline - now - limits::kAnswerMargin) / (is_new ? kNewShare : 1);
  const SteadyTime::duration expected = ExpectedTime(now, load);
  if (expected <= std::min(patience, time_left)) return std::nullopt;
  return expected;
}

std::size_t Admission::FullBatches(const QueueLoad& load) const {
  // A call is in one batch, however long it is.
  return std::max(load.items / options_.batch_items_max,
                  std::min(load.items, load.bytes / options_.batch_bytes_max));
}

}  // namespace idempotency
