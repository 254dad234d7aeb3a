// A lane carries the calls of its keys to its store, many at a time.
#ifndef IDEMPOTENCY_SERVER_CORE_LANE_H_
#define IDEMPOTENCY_SERVER_CORE_LANE_H_

#include <chrono>
#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "server/core/admission.h"
#include "server/core/answer_batch.h"
#include "server/core/answer_queue.h"
#include "server/core/call.h"
#include "server/core/call_queue.h"
#include "server/core/clock.h"
#include "server/core/limits.h"
#include "server/core/log.h"
#include "server/core/metrics.h"
#include "server/core/mutex.h"
#include "server/core/policies.h"
#include "server/core/store.h"
#include "server/core/waiters.h"

namespace idempotency {

struct LaneOptions {
  std::size_t batch_items_max = limits::kBatchItemsMax;
  std::size_t batch_bytes_max = limits::kBatchBytesMax;
  // Finalizes, Releases and renewals may be twice as many.
  std::size_t queue_items_max = limits::kQueueItemsMax;
  std::size_t queue_bytes_max = limits::kQueueBytesMax;
  // How long an answer may be expected to take, once more than a batch is
  // queued; for Finalizes, Releases and renewals four times that. 0: no bound.
  std::chrono::milliseconds queue_wait_max = limits::kQueueWaitMaxDefault;
  // How long a call is kept while the store is known to be away.
  std::chrono::milliseconds store_patience{2000};
  // Pause before a store that failed is asked again: doubles up to the
  // maximum, starts anew after a success.
  std::chrono::milliseconds backoff_min{20};
  std::chrono::milliseconds backoff_max{500};
  // Whoever would wait beyond these is answered InProgress at once. Those who
  // have been woken count until they are taken to the store, here and not in
  // the queue's bounds.
  std::size_t waiters_max = limits::kWaitersMax;
  std::size_t waiters_bytes_max = limits::kWaitersBytesMax;
  // Where the answers of a large batch are given; it must outlive the lane.
  // Null: the lane gives them itself.
  AnswerQueue* answers = nullptr;
};

// A step function: whoever drives it, a thread or a simulator, calls
// RunBatch() and decides when. A batch is whatever was queued while the
// previous one ran, so an idle lane adds no delay.
//
// A claim that is told InProgress and may wait is kept, and goes to the front
// of its key's queue when the owner ends: at once when this replica learns of
// it, else by a look at the records that are waited for, one for many, when
// the lease lapses and every so often (waiters.h).
class Lane {
 public:
  // The references and `aside` must outlive the lane. Calls that
  // meet another's lock are handed to `aside` so that they delay nobody; with
  // null the lane tries them again itself.
  Lane(const LaneOptions& options, const Clock& clock, FleetRulesCache& rules,
       Metrics& metrics, Log& log, std::unique_ptr<Store> store, Lane* aside);

  // Queues the one call in `call`, or answers it at once with OVERLOADED (and
  // when to come back) or DRAINING. Thread-safe.
  void Submit(std::list<Call> call);

  // From now on new calls are refused with DRAINING, and nobody waits for
  // another owner any more: the next RunBatch() answers those who do with
  // InProgress. Thread-safe.
  void StopAccepting();

  // Blocks until RunBatch() has something to do; false once Stop() was called.
  // Only for the thread that drives the lane.
  bool WaitForWork();

  // When that is, unless more is submitted: SteadyTime::min() at once,
  // SteadyTime::max() never. Thread-safe.
  SteadyTime next_work() const;

  // Takes one round of what is queued to the store and answers it. Calls whose
  // deadline has passed or whose caller has gone are answered without it. Not
  // thread-safe: one caller at a time.
  void RunBatch();

  // How many calls are queued, and how many more wait for another owner's end.
  // Thread-safe.
  std::size_t queued() const;
  std::size_t waiting() const;

  // No call is queued, waits or is on its way. Thread-safe.
  bool idle() const;

  // Ends WaitForWork(). What is still queued is answered with DRAINING, by
  // the next RunBatch(). Thread-safe.
  void Stop();

 private:
  enum class Verdict { kAnswered, kBroken, kLater, kAlone, kAside };

  // OK, or OVERLOADED.
  absl::Status Admit(const Call& call) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsDead(const Call& call, SteadyTime now) const;
  void AnswerDead(Call& call) const;
  void Refuse(Call& call, const absl::Status& why) const;
  void AnswerDeadInQueue();
  void AnswerDeadInRound(std::vector<Led>& round);
  std::vector<Led> TakeRound();
  bool ResolvePolicies(std::vector<Led>& round);
  absl::Status ReloadRules();
  void ObserveQueueTimes(const std::vector<Led>& round);
  void RunClaimsAndFinalizes(std::vector<Led>& round);
  template <typename Kind>
  void RunKind(const std::vector<Led*>& calls);
  template <typename Kind>
  void RunOnce(const std::vector<Led*>& calls, std::vector<Led*>* alone);
  template <typename Kind, typename StoreAnswer>
  void Settle(const std::vector<Led*>& calls, std::vector<StoreAnswer> answers,
              std::size_t batch_size, std::vector<Led*>* alone);
  template <typename Kind>
  void RunAgain(const std::vector<Led*>& calls);
  template <typename Kind>
  void RunNext(const std::vector<Led*>& calls);
  template <typename Kind>
  void RunAlone(const std::vector<Led*>& calls);
  bool MayBeTried(Led& led);
  Verdict Judge(const absl::Status& status, std::size_t batch_size, Call& call);
  template <typename Kind, typename Outcome>
  void AnswerFollowers(Led& led, const absl::StatusOr<Outcome>& outcome,
                       AnswerBatch<Outcome>& answers);
  void AnswerClaims(Led& led, ClaimAnswer& answer,
                    AnswerBatch<ClaimOutcome>& answers);
  bool MayWait(const Call& call) const;
  void AnswerInProgress(Call& call) const;
  Lane& HomeOf(const Led& led);
  void LetWait(std::list<Call> calls);
  void Wake(const RecordId& id);
  std::vector<Watched> TendWaiters();
  void LookAt(const std::vector<Watched>& watched);
  SteadyTime NextWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteWorkDone(bool telling);
  void PutBack(Led& led);
  void PutBackFollowers(Led& led);
  void SetAside(Led& led);
  void NoteStoreFailure(const absl::Status& status);
  void NoteStoreSuccess();
  void PauseFor(std::chrono::milliseconds pause);

  // Constant after construction.
  const LaneOptions options_;
  const Clock& clock_;
  FleetRulesCache& rules_;
  Metrics& metrics_;
  Log& log_;
  const std::unique_ptr<Store> store_;
  Lane* const aside_;

  mutable Mutex mutex_;
  ConditionVariable changed_;
  CallQueue queue_ ABSL_GUARDED_BY(mutex_);
  Admission admission_ ABSL_GUARDED_BY(mutex_);
  Waiters waiters_ ABSL_GUARDED_BY(mutex_);
  bool accepting_ ABSL_GUARDED_BY(mutex_) = true;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool working_ ABSL_GUARDED_BY(mutex_) = false;
  bool sleeping_ ABSL_GUARDED_BY(mutex_) = false;
  // Until then the store is left alone.
  SteadyTime not_before_ ABSL_GUARDED_BY(mutex_);
  // When the waiters' keys may be looked at next, and when it is next seen
  // whose caller has gone.
  SteadyTime look_not_before_ ABSL_GUARDED_BY(mutex_);
  SteadyTime next_roll_call_ ABSL_GUARDED_BY(mutex_);

  // Only touched by RunBatch().
  bool store_failed_ = false;  // when it was last asked
  SteadyTime round_began_{};
  SteadyTime next_sweep_{};  // of the queue
  std::chrono::milliseconds backoff_{0};
  std::optional<SteadyTime> rules_read_at_;
  absl::Status rules_read_;  // how that went
  int locks_met_ = 0;        // by calls that were tried alone, in this round
  bool looks_fail_ = false;  // for another reason than the store's absence
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_LANE_H_
