// What the coordinator counts. Thread-safe; a reader sees each counter's
// latest value, not one moment of all of them.
#ifndef IDEMPOTENCY_SERVER_CORE_METRICS_H_
#define IDEMPOTENCY_SERVER_CORE_METRICS_H_

#include <atomic>
#include <cstdint>

namespace idempotency {

struct Metrics {
  using Counter = std::atomic<std::uint64_t>;

  // Refused responses below 500 (each is work that was done twice), those of
  // 500 and above, and those beyond the bound of kept rows a record.
  Counter conflicts{0};
  Counter conflicts_server_error{0};
  Counter conflicts_not_kept{0};

  // Rounds of the lanes, the calls they carried, and calls answered from the
  // outcome of another call for the same key.
  Counter batches{0};
  Counter batch_items{0};
  Counter followers_answered{0};

  // Calls refused before the database saw them.
  Counter overloaded{0};
  Counter expired_in_queue{0};
  Counter cancelled_in_queue{0};

  // Statements whose outcome was lost, and that met a lock or a deadlock.
  Counter store_unknown{0};
  Counter store_contended{0};
  Counter store_unavailable{0};

  // The reaper's work; unfinished records are counted by policy in its log.
  Counter reaped{0};
  Counter reaped_unfinished{0};
  Counter parked{0};
};

// The order of counts among each other is nobody's business.
inline void Count(Metrics::Counter& counter, std::uint64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_METRICS_H_
