// How many rows a statement of the reaper is to take.
#ifndef IDEMPOTENCY_SERVER_CORE_SWEEP_STEP_H_
#define IDEMPOTENCY_SERVER_CORE_SWEEP_STEP_H_

#include <chrono>
#include <cstdint>

#include "server/core/clock.h"

namespace idempotency {

// Grows while there is a backlog and statements are quick, since large ones
// cost less a row; shrinks when they take long, since they hold locks and the
// disk that callers wait for. A calculation only; not thread-safe.
class SweepStep {
 public:
  // What a statement may take.
  static constexpr std::chrono::milliseconds kTimeMax{25};

  // `rows_max`: at least 1.
  explicit SweepStep(int rows_max);

  int rows() const { return rows_; }

  // A statement for rows() rows found `found` and took so long.
  void Note(std::int64_t found, SteadyTime::duration took);
  void NoteFailure();

 private:
  void SetRows(std::int64_t rows);

  const int rows_max_;
  int rows_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_SWEEP_STEP_H_
