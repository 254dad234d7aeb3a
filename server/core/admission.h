// Decides what a lane takes in when more comes than its store can carry.
//
// While less than a full batch is queued everything is taken in: the next
// round carries all of it. Beyond that a call is refused at once if its answer
// is expected too late, so that its caller can go elsewhere or come back,
// instead of waiting in a queue for an answer that nobody needs any more. What
// is queued always fills the next round, so that refusals cost no throughput.
#ifndef IDEMPOTENCY_SERVER_CORE_ADMISSION_H_
#define IDEMPOTENCY_SERVER_CORE_ADMISSION_H_

#include <chrono>
#include <cstddef>
#include <optional>

#include "server/core/clock.h"

namespace idempotency {

struct AdmissionOptions {
  // Of a round's statement.
  std::size_t batch_items_max = 1;
  std::size_t batch_bytes_max = 1;
  // How long an answer may take; zero: everything is taken in.
  std::chrono::milliseconds wait_max{0};
};

// What is queued and will go into statements. Calls that are answered from the
// outcome of another one cost nothing and are no load.
struct QueueLoad {
  std::size_t items = 0;
  std::size_t bytes = 0;
};

enum class Work {
  kNew,
  // What would be lost, or lose its lease, if it came too late: it is given
  // four times the time, so that new work does not push it out.
  kBegun,
};

// A calculation over what it is told; reads no clock. Not thread-safe.
class Admission {
 public:
  explicit Admission(const AdmissionOptions& options);

  // Around each round of the lane. `carried`: the store was asked and answered,
  // so that the time is one to learn from.
  void BeginRound(SteadyTime now);
  void EndRound(SteadyTime now, bool carried);

  // How long it takes until a call is answered that comes `now` behind `load`:
  // the rest of the present round, the rounds before its own, its own. That the
  // present round takes long is taken into account as if it ended now.
  SteadyTime::duration ExpectedTime(SteadyTime now,
                                    const QueueLoad& load) const;

  // nullopt: take the call in. Else after what time it should come back.
  std::optional<SteadyTime::duration> Refuse(Work work, SteadyTime now,
                                             SteadyTime deadline,
                                             const QueueLoad& load) const;

 private:
  // The average, once a round that `took` so long is counted.
  SteadyTime::duration AverageWith(SteadyTime::duration took) const;
  std::size_t FullBatches(const QueueLoad& load) const;

  const AdmissionOptions options_;
  // Moving average of the time a round takes.
  SteadyTime::duration round_{0};
  std::optional<SteadyTime> began_;  // the present round
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_ADMISSION_H_
