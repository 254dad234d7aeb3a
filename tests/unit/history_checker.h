// Compares what callers were told with what the table of records went through,
// and both with what the coordinator promises: of the table's changes that is
// in record_rules.h. It shares no decision with the server.
//
// The names of the promises (S1 and so on): S1 a fencing token has one owner;
// S2 fencing tokens grow; S3 one live owner; S5 nobody waits for himself;
// S6 one response; S7 only the owner ends an attempt; S8 a recorded response
// stays; S10 only what was recorded is replayed; S11 another request changes
// nothing; S12 a release is for good; S15 an error that is certain is certain;
// S16 a takeover is told; S18 nothing is forgotten early.
#ifndef IDEMPOTENCY_TESTS_UNIT_HISTORY_CHECKER_H_
#define IDEMPOTENCY_TESTS_UNIT_HISTORY_CHECKER_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/types.h"
#include "tests/support/memory_table.h"

namespace idempotency {

// Not thread-safe.
class HistoryChecker {
 public:
  HistoryChecker(const MemoryDatabase& database, std::vector<RecordId> ids);

  // To be called after whatever may have changed a record or the clock, before
  // anything else does.
  void Observe();

  // A call on its way.
  struct Sent {
    std::size_t moment = 0;  // when it was sent
    absl::Time time{};
    // The newest grant of the key that somebody had been told of by then.
    std::int64_t fencing_token = 0;
    Uuid owner{};
  };
  Sent Send(const ClaimCommand& claim);
  Sent Send(const FinalizeCommand& finalize);
  Sent Send(const LookupCommand& lookup);
  Sent Send(const ReleaseCommand& release);

  // The same call, as if sent at `time` if it was sent before.
  Sent NotBefore(Sent sent, absl::Time time) const;

  // Its answer.
  void Answer(const Sent& sent, const ClaimCommand& claim,
              const absl::StatusOr<ClaimOutcome>& answer);
  void Answer(const Sent& sent, const FinalizeCommand& finalize,
              const absl::StatusOr<FinalizeOutcome>& answer);
  void Answer(const Sent& sent, const LookupCommand& lookup,
              const absl::StatusOr<LookupOutcome>& answer);
  void Answer(const Sent& sent, const ReleaseCommand& release,
              const absl::StatusOr<ReleaseOutcome>& answer);

  // The broken promises so far.
  const std::vector<std::string>& violations() const { return violations_; }
  // How often each answer was given.
  const std::map<std::string, int>& answers() const { return answers_; }

 private:
  using Row = std::shared_ptr<const Record>;  // null: no row

  struct Moment {
    absl::Time now;
    std::map<RecordId, Row> rows;
  };

  // What callers were told of one claim token's grant.
  struct Told {
    std::int64_t fencing_token = 0;
    absl::Time lease_end;
    absl::Time first_told;
  };

  struct Acknowledged {
    std::string digest;
    Response response;
    std::size_t moment;
    absl::Time until;
  };

  // All that is known about one key.
  struct Key {
    std::int64_t fencing_token = 0;  // the newest in the table
    std::map<std::int64_t, Uuid> owners;
    std::set<Uuid> resolving;      // asked with resolve_in_doubt
    std::set<Uuid> may_give_up;    // sent a Release or a server error
    std::map<Uuid, int> claims;    // sent so far
    std::set<Uuid> never_granted;  // certainly
    std::map<std::string, std::set<Uuid>> finalizes;  // by digest
    std::map<Uuid, Told> told;
    std::int64_t told_fencing_token = 0;
    Uuid told_owner{};
    std::vector<Acknowledged> acknowledged;
  };

  using Fits = std::function<bool(const Record* row, absl::Time now)>;

  void Violate(const std::string& promise, const std::string& what);
  Sent Begin(const RecordId& id);
  // Was there a moment since the call was sent that explains the answer?
  void Explain(const Sent& sent, const RecordId& id, const std::string& promise,
               const std::string& answer, const Fits& fits);
  absl::Time now() const { return moments_.back().now; }

  void CheckChange(const RecordId& id, const Record* before,
                   const Record* after);
  void NoteOwner(Key& key, const Record& after);

  void CheckClaimed(const Sent& sent, const ClaimCommand& claim,
                    const Claimed& claimed);
  void CheckReplay(const Sent& sent, const ClaimCommand& claim,
                   const Replay& replay);
  void CheckRefusedClaim(const Sent& sent, const ClaimCommand& claim,
                         const absl::Status& status);
  void CheckKept(const Sent& sent, const RecordId& id,
                 const std::string& request_hash, const ClaimOutcome& outcome);
  void CheckRefusedFinalize(const Sent& sent, const FinalizeCommand& finalize,
                            const absl::Status& status);
  void CheckRecorded(const Sent& sent, const FinalizeCommand& finalize);

  const MemoryDatabase& database_;
  const std::vector<RecordId> ids_;
  std::vector<Moment> moments_;
  std::map<RecordId, Key> keys_;
  std::vector<std::string> violations_;
  std::map<std::string, int> answers_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_UNIT_HISTORY_CHECKER_H_
