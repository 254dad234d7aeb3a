// What the coordinator counts. Thread-safe; a reader sees each counter's
// latest value, not one moment of all of them. Counting costs the caller an
// atomic addition or two and no lock, but for the first time that a name is
// seen. How the numbers are called outside is server/admin's business.
#ifndef IDEMPOTENCY_SERVER_CORE_METRICS_H_
#define IDEMPOTENCY_SERVER_CORE_METRICS_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "server/core/errors.h"
#include "server/core/histogram.h"
#include "server/core/limits.h"
#include "server/core/named_table.h"
#include "server/core/types.h"

namespace idempotency {

using Counter = std::atomic<std::uint64_t>;

// The order of counts among each other is nobody's business.
inline void Count(Counter& counter, std::uint64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

// What there is of something just now.
using Gauge = std::atomic<std::int64_t>;

inline void Add(Gauge& gauge, std::int64_t by) {
  gauge.fetch_add(by, std::memory_order_relaxed);
}

// Counters by an enum whose last value is `kLast`.
template <typename Enum, Enum kLast>
struct CountersBy {
  static constexpr std::size_t kSize = static_cast<std::size_t>(kLast) + 1;
  std::array<Counter, kSize> counters{};

  Counter& operator[](Enum which) {
    return counters[static_cast<std::size_t>(which)];
  }
  const Counter& operator[](Enum which) const {
    return counters[static_cast<std::size_t>(which)];
  }
};

// From 0.1 ms, a statement over a unix socket, to 10 s, in nanoseconds.
inline constexpr std::array<std::uint64_t, 16> kTimeBounds = {
    100'000,       250'000,       500'000,       1'000'000,
    2'500'000,     5'000'000,     10'000'000,    25'000'000,
    50'000'000,    100'000'000,   250'000'000,   500'000'000,
    1'000'000'000, 2'500'000'000, 5'000'000'000, 10'000'000'000};
using TimeHistogram = Histogram<kTimeBounds>;

inline void ObserveTime(TimeHistogram& histogram,
                        std::chrono::nanoseconds time) {
  histogram.Observe(time.count() > 0 ? static_cast<std::uint64_t>(time.count())
                                     : 0);
}

inline constexpr std::array<std::uint64_t, 10> kBatchBounds = {
    1, 2, 4, 8, 16, 32, 64, 128, 256, limits::kBatchItemsMax};
using BatchHistogram = Histogram<kBatchBounds>;

enum class CallKind { kClaim, kFinalize, kLookup, kRelease };
inline constexpr std::array<std::string_view, 4> kCallNames = {
    "Claim", "Finalize", "Lookup", "Release"};
inline constexpr std::size_t kCallKinds = kCallNames.size();

// As the contract names it.
inline std::string_view CallName(CallKind kind) {
  return kCallNames[static_cast<std::size_t>(kind)];
}

// One of the four calls as gRPC sees it, or as a command of Bulk.
struct CallMetrics {
  Counter started{0};
  // Apart from `started`: other threads count these.
  alignas(64) std::array<Counter, 17> handled{};  // by status code
  TimeHistogram handling_time{};                  // from start to answer
  // Errors that the service made.
  CountersBy<Reason, Reason::kInternal> refused{};
};

// One streaming method as gRPC sees it.
struct StreamMetrics {
  Counter started{0};
  std::array<Counter, 17> handled{};  // by status code
  Counter received{0};                // messages
  Counter sent{0};
  std::atomic<std::int64_t> open{0};
};

enum class ClaimResult {
  kClaimed,       // granted anew
  kClaimedAgain,  // a repeat or a renewal of the grant it has
  kReplay,
  kInProgress,
  kMismatch,
  kInDoubt,
};

// Claims that were decided, under the policy of the record.
struct PolicyMetrics {
  CountersBy<ClaimResult, ClaimResult::kInDoubt> claims{};
  // Of the claims granted anew, those that were told of an abandoned attempt.
  CountersBy<AbandonReason, AbandonReason::kServerError> takeovers{};
  // Records that the reaper deleted although their attempt never ended.
  Counter unfinished_reaped{0};
};

enum class ReleaseResult { kFreed, kGivenUp, kNothing };

// What may become of a statement, or of a call in it, other than an answer.
enum class Setback {
  kUnknown,      // the answer was lost
  kContended,    // it met a lock or a deadlock
  kUnavailable,  // the store can't be used
  kRejected,     // it would fail again
};

struct StatementMetrics {
  TimeHistogram time{};  // from sending to the answer or the failure
  CountersBy<Setback, Setback::kRejected> errors{};
};

struct Metrics {
  // By CallKind; commands of Bulk are calls of theirs.
  std::array<CallMetrics, kCallKinds> calls{};
  StreamMetrics bulk{};
  // Of answers that their callers have not read yet (reply_budget.h).
  std::atomic<std::uint64_t> reply_bytes{0};

  // The names are those of records and of the fleet's rules, never a caller's.
  static constexpr std::size_t kPoliciesMax = 100;
  NamedTable<PolicyMetrics, kPoliciesMax> policies{};
  CountersBy<FinalizeResult, FinalizeResult::kInDoubt> finalizes{};
  CountersBy<ReleaseResult, ReleaseResult::kNothing> releases{};

  // Refused responses below 500 (each is work that was done twice), those of
  // 500 and above, and those beyond the bound of kept rows a record.
  Counter conflicts{0};
  Counter conflicts_server_error{0};
  Counter conflicts_not_kept{0};

  // How many calls went to the store together, by CallKind; calls answered
  // from the outcome of another call for the same key; how long calls waited
  // until they first went to the store.
  std::array<BatchHistogram, kCallKinds> batches{};
  Counter followers_answered{0};
  TimeHistogram queue_time{};

  // Claims answered from the cache of replays, without a lane or a statement,
  // and what the cache holds.
  Counter replay_cache_hits{0};
  Gauge replay_cache_entries{0};
  Gauge replay_cache_bytes{0};

  // Calls refused before the database saw them.
  Counter overloaded{0};
  Counter expired_in_queue{0};
  Counter cancelled_in_queue{0};

  // Calls that a batch did not settle: they are tried again or refused.
  CountersBy<Setback, Setback::kRejected> setbacks{};

  // By the statement's name, of which each store has a fixed few.
  static constexpr std::size_t kStatementsMax = 32;
  NamedTable<StatementMetrics, kStatementsMax> statements{};

  // The reaper's work.
  Counter reaped{0};
  Counter parked{0};
  Counter conflicts_reaped{0};
  Counter sweeps{0};
  Counter sweeps_failed{0};
  std::atomic<std::int64_t> last_sweep_unix_ms{0};  // 0: none has succeeded

  CallMetrics& Of(CallKind kind) {
    return calls[static_cast<std::size_t>(kind)];
  }
};

// What a failure of the store (store.h) is counted as.
inline Setback SetbackOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnknown:
      return Setback::kUnknown;
    case absl::StatusCode::kAborted:
      return Setback::kContended;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kFailedPrecondition:
      return Setback::kUnavailable;
    default:
      return Setback::kRejected;
  }
}

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_METRICS_H_
