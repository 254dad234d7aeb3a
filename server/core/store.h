// The batch contract between the engine and whatever keeps the records.
#ifndef IDEMPOTENCY_SERVER_CORE_STORE_H_
#define IDEMPOTENCY_SERVER_CORE_STORE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/policies.h"
#include "server/core/types.h"

namespace idempotency {

template <typename Item>
using Batch = std::span<const Item* const>;

// A record as it was at a moment of the database's clock; nullopt: no row.
struct Observed {
  std::optional<Record> record{};
  absl::Time now{};
};

struct ClaimAnswer {
  absl::StatusOr<ClaimOutcome> outcome;
  // With ClaimCommand::wants_record and an outcome that is a decision, and with
  // every Replay: the record after it.
  std::optional<Observed> observed{};
};

// A record that somebody waits for, and the version that was seen of it.
struct Watched {
  RecordId id{};
  std::int64_t version = 0;
};

struct ClaimAndFinalizeAnswers {
  std::vector<ClaimAnswer> claims;
  std::vector<absl::StatusOr<FinalizeOutcome>> finalizes;
};

// Not thread-safe: each lane has a store of its own. Calls block until the
// answer is known or given up, within the bounds of the implementation.
//
// Every call takes items with pairwise distinct ids, sorted by id, and returns
// one answer an item, in the same order. An answer is one of
//   - an outcome;
//   - an error made by errors.h: the decision, final like an outcome;
//   - kUnavailable: nothing was changed, the store can't be used just now;
//     kFailedPrecondition likewise, until somebody mends it as the message
//     says;
//   - kUnknown: the change may or may not have been made. Sending the same
//     item again settles it: every call is idempotent by its claim token;
//   - kAborted: nothing was changed because of another's lock or a change
//     under way; sending the item again, best alone, may succeed;
//   - any other error: nothing was changed and the same batch would fail
//     again. One item of it may be the cause, for all of them.
class Store {
 public:
  virtual ~Store() = default;

  virtual std::vector<ClaimAnswer> ClaimBatch(Batch<ClaimCommand> claims) = 0;
  virtual std::vector<absl::StatusOr<FinalizeOutcome>> FinalizeBatch(
      Batch<FinalizeCommand> finalizes) = 0;
  // Both at once, at a lower price where the store knows one; no id is in
  // both. A batch that "would fail again" may do so for an item of either.
  virtual ClaimAndFinalizeAnswers ClaimAndFinalize(
      Batch<ClaimCommand> claims, Batch<FinalizeCommand> finalizes) {
    return {.claims = ClaimBatch(claims),
            .finalizes = FinalizeBatch(finalizes)};
  }
  virtual std::vector<absl::StatusOr<LookupOutcome>> LookupBatch(
      Batch<LookupCommand> lookups) = 0;
  virtual std::vector<absl::StatusOr<ReleaseOutcome>> ReleaseBatch(
      Batch<ReleaseCommand> releases) = 0;

  // Which of them are no longer as they were seen: gone, written since, or
  // with the lease over. One look for all; a non-OK status is an answer to
  // all, with the codes above.
  virtual absl::StatusOr<std::vector<bool>> FindChanged(
      Batch<Watched> watched) = 0;

  // The policies, scopes and settings as they are now.
  virtual absl::StatusOr<FleetRules> ReadRules() = 0;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_STORE_H_
