// Turns many concurrent calls into few batches. A key belongs to one lane by
// its hash; a lane has one store.
#ifndef IDEMPOTENCY_SERVER_CORE_ENGINE_H_
#define IDEMPOTENCY_SERVER_CORE_ENGINE_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "server/core/call.h"
#include "server/core/clock.h"
#include "server/core/lane.h"
#include "server/core/log.h"
#include "server/core/metrics.h"
#include "server/core/policies.h"
#include "server/core/replay_cache.h"
#include "server/core/store.h"

namespace idempotency {

class Engine {
 public:
  // One lane for each of `stores` (at least one), and one more over
  // `aside_store` for calls that met another's lock. Replays are kept in a
  // cache of `replay_cache_bytes`; 0: there is none. The references must
  // outlive the engine.
  Engine(const LaneOptions& options, const Clock& clock, FleetRulesCache& rules,
         Metrics& metrics, Log& log, std::vector<std::unique_ptr<Store>> stores,
         std::unique_ptr<Store> aside_store,
         std::size_t replay_cache_bytes = 0);

  // Each answers through `done`, exactly once: with the outcome, or with an
  // error that has a reason (errors.h) or is kCancelled. The commands have
  // passed validation. Thread-safe; never blocks on the store. A Claim whose
  // replay is cached is answered inside Submit(), whatever the store does.
  void Submit(ClaimCommand command, CallContext context,
              Done<ClaimOutcome> done);
  void Submit(FinalizeCommand command, CallContext context,
              Done<FinalizeOutcome> done);
  void Submit(LookupCommand command, CallContext context,
              Done<LookupOutcome> done);
  void Submit(ReleaseCommand command, CallContext context,
              Done<ReleaseOutcome> done);

  // For when the database answers again after it had not, since it may be
  // another one. Lanes see that for themselves as soon as they use it.
  void ForgetReplays() { replays_.Forget(clock_.Now()); }

  // From now on every call is refused with DRAINING; those queued go on, and
  // those that wait for another owner's end are answered InProgress.
  void StopAccepting();
  // How many calls are queued in all lanes, and how many more wait for another
  // owner's end.
  std::size_t queued() const;
  std::size_t waiting() const;
  // Has every queued or waiting call been taken up?
  bool idle() const;
  // Ends every lane's WaitForWork().
  void Stop();

  // The lanes to drive, the one for set-aside calls last.
  std::vector<Lane*> lanes();

 private:
  template <typename Command, typename Outcome>
  void Enqueue(Command command, CallContext context, Done<Outcome> done);

  const Clock& clock_;
  std::atomic<bool> accepting_{true};
  ReplayCache replays_;  // used by the lanes' stores
  std::unique_ptr<Lane> aside_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_ENGINE_H_
