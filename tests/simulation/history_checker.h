// Compares what callers were told with what the table of records went through,
// and both with what the coordinator promises. It shares no decision with the
// server: it has its own idea of when a record counts as none.
//
// The names of the promises: S1 a fencing token has one owner; S2 fencing
// tokens grow; S3 one live owner; S4 a claim sent again is the same claim; S5
// nobody waits for himself; S6 one response; S7 only the owner ends an attempt;
// S8 a recorded response stays; S9 it is replayed byte for byte; S10 only what
// was recorded is replayed; S11 another request changes nothing; S12 a release
// is for good; S13 nothing of another scope or key is told; S14 one effect in a
// record's life, and only of an attempt that was granted; S15 an error that is
// certain is certain; S16 a takeover is told; S17 nobody who asks later is told
// of an earlier state; S18 nothing is forgotten early; S19 at the end the table
// holds what was acknowledged.
//
// When a standby takes over that lacks what nobody was told of, the table falls
// back: whatever somebody was told that a write had done must still be there:
// grants and their leases, responses, releases, what was given up, evidence.
//
// A replica with a cache of replays may tell what it read of final records for
// as long as server/core/replay_cache.h says: until it has heard of another
// database, and until they expire by the clock as it went when they were read.
// When the clock is set forward, a lease is over sooner for everybody; when it
// is set back, and a record was deleted, the next one of its key begins with
// lower numbers.
#ifndef IDEMPOTENCY_TESTS_SIMULATION_HISTORY_CHECKER_H_
#define IDEMPOTENCY_TESTS_SIMULATION_HISTORY_CHECKER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/types.h"
#include "tests/simulation/database.h"

namespace idempotency {

// Not thread-safe.
class HistoryChecker final : public DatabaseObserver {
 public:
  // Sees every change of `database`, which must outlive it, from now on.
  explicit HistoryChecker(Database& database);

  void RowChanged(const RecordId& id, const Version& after) override;
  void RowFellBack(const RecordId& id, const Version& after) override;
  void FailedOver() override;

  // How far a key has come, as told to somebody.
  struct Progress {
    // Not the time of creation: the clock may have been set back since.
    std::int64_t fencing_token = 0;
    int rank = 0;  // unfinished, released, final

    auto Tied() const { return std::tie(fencing_token, rank); }
  };

  // A call on its way.
  struct Sent {
    std::uint64_t sequence = 0;  // of all that happened
    SteadyTime at{};
    // The replica may know final records from what it read since then; max: it
    // keeps nothing.
    SteadyTime remembers_since = SteadyTime::max();
    // The newest grant of the key that somebody had been told of by then.
    std::int64_t fencing_token = 0;
    Uuid owner{};
    Progress progress{};
  };
  Sent Send(const ClaimCommand& claim);
  Sent Send(const FinalizeCommand& finalize);
  Sent Send(const LookupCommand& lookup);
  Sent Send(const ReleaseCommand& release);

  // The same call, as if sent at `time` if it was sent before.
  Sent NotBefore(const RecordId& id, Sent sent, SteadyTime time);

  // Its answer.
  void Answer(const Sent& sent, const ClaimCommand& claim,
              const absl::StatusOr<ClaimOutcome>& answer);
  void Answer(const Sent& sent, const FinalizeCommand& finalize,
              const absl::StatusOr<FinalizeOutcome>& answer);
  void Answer(const Sent& sent, const LookupCommand& lookup,
              const absl::StatusOr<LookupOutcome>& answer);
  void Answer(const Sent& sent, const ReleaseCommand& release,
              const absl::StatusOr<ReleaseOutcome>& answer);

  // The channel did what `downstream_key` names for the grant with that token.
  void Effect(const RecordId& id, std::int64_t fencing_token,
              const std::string& downstream_key);

  // Was the response ever recorded for `id`? What a failover lost counts only
  // with `even_if_lost`: it may have been replayed before, but nobody was told
  // that he had recorded it.
  bool WasRecorded(const RecordId& id, std::int32_t status_code,
                   const std::string& body, bool even_if_lost) const;

  // Nothing goes on any more.
  void CheckEnd();

  // For what others find: of the key whose call was checked last, or of `id`.
  void Violate(const std::string& promise, const std::string& what);
  void ViolateAbout(const RecordId& id, const std::string& promise,
                    const std::string& what);
  // The broken promises so far, each with its name and a colon before it.
  const std::vector<std::string>& violations() const { return violations_; }
  // How often each answer was given.
  const std::map<std::string, std::uint64_t>& answers() const {
    return answers_;
  }

  // Keeps a line of all that happens from now on.
  void KeepHistory() { keeps_history_ = true; }
  // The lines about keys with a violation; all of them where there is none.
  std::vector<std::string> History() const;
  // All of them in any case.
  std::vector<std::string> AllHistory() const;

 private:
  struct Moment {
    std::uint64_t sequence = 0;
    SteadyTime at{};
    RecordPtr row{};           // null: no row
    std::uint64_t number = 0;  // of the row's version
    bool lost = false;         // by a fall-back
  };

  // What callers were told of one claim token's grant.
  struct Told {
    std::int64_t fencing_token = 0;
    SteadyTime asked_at{};
    absl::Time lease_end;
  };

  struct Acknowledged {
    std::string digest;
    Response response;
    std::uint64_t sequence = 0;
    SteadyTime asked_at{};
    absl::Time until;
  };

  // All that is known about one key.
  struct Key {
    RecordId id;
    std::vector<Moment> moments;
    std::int64_t fencing_token = 0;                // the newest in the table
    absl::Time claimed_at = absl::InfinitePast();  // the latest of any grant
    std::map<std::int64_t, Uuid> owners;
    std::set<Uuid> resolving;       // asked with resolve_in_doubt
    std::set<Uuid> never_executed;  // sent a Release that says so
    std::set<Uuid> may_give_up;     // sent a Release or a server error
    std::map<Uuid, int> claims;     // sent so far
    std::set<Uuid> never_granted;   // certainly
    // By digest.
    std::map<std::string, std::set<Uuid>> finalizes;
    std::map<std::string, Response> responses;
    std::map<std::string, int> sendings;
    std::set<std::string> never_recorded;  // certainly

    std::map<Uuid, Told> told;
    std::int64_t told_fencing_token = 0;
    Uuid told_owner{};
    Progress told_progress;
    std::uint64_t fell_back = 0;  // when it last did
    // When a record last began with lower numbers than an earlier one, which
    // was deleted before the clock was set back.
    std::uint64_t began_anew = 0;
    std::vector<Acknowledged> acknowledged;
    // By promise and what was acknowledged, the newest moment of such a kind
    // that a caller was told was brought about.
    std::map<std::pair<std::string, std::string>, std::uint64_t> written;
    // Claim tokens and digests of refused responses.
    std::set<std::pair<Uuid, std::string>> evidence;
    // By fencing token, the beginning of the record's life; by that, what was
    // done.
    std::map<std::int64_t, absl::Time> granted_lives;
    std::map<absl::Time, std::string> effects;
  };

  using Fits = absl::FunctionRef<bool(const Record* row, absl::Time now)>;

  Key& KeyOf(const RecordId& id);
  Sent Begin(Key& key);
  // The first state of the record since the call was sent that explains the
  // answer; null, and a violation, where none does. A state may be judged by an
  // earlier time than its own, but not by one before the call.
  const Moment* Explain(const Sent& sent, Key& key, const std::string& promise,
                        const std::string& answer, Fits fits);
  const Moment* FindFitting(const Sent& sent, const Key& key, Fits fits,
                            bool even_if_lost = true) const;
  // Of an answer that says that a write has brought about `what`: by a state
  // that no fall-back has lost, and none may lose from now on.
  const Moment* ExplainWritten(const Sent& sent, Key& key,
                               const std::string& promise,
                               const std::string& promise_to_keep,
                               const std::string& what, Fits fits);
  // Did the replica's cache know it, and may it still?
  bool IsRemembered(const Sent& sent, const Key& key, Fits fits) const;
  static Progress ProgressOf(const Record& record);
  static void NoteProgress(Key& key, const Moment* moment);
  // Has the clock not been at the end of what was promised of it?
  bool IsKept(const Acknowledged& one) const {
    return database_.clock().Latest(one.asked_at) < one.until;
  }
  bool HasEvidence(const Key& key, const Uuid& claim_token,
                   const std::string& digest) const;
  void CheckEvidence(Key& key);
  absl::Time now() const { return database_.Now(); }
  SteadyTime steady_now() const { return database_.clock().steady_now(); }

  void CheckChange(Key& key, const Record* before, const Version& changed);
  void BeginAnew(Key& key, const Record& first);
  void CheckResponse(Key& key, const Record& after);
  void NoteOwner(Key& key, const Record& after);

  void CheckClaimed(const Sent& sent, Key& key, const ClaimCommand& claim,
                    const Claimed& claimed);
  void CheckSameClaim(const Key& key, const ClaimCommand& claim,
                      const Told& told, const Claimed& claimed);
  void CheckOneOwner(const Key& key, const Uuid& claim_token);
  void CheckReplay(const Sent& sent, Key& key, const ClaimCommand& claim,
                   const Replay& replay);
  void CheckRefusedClaim(const Sent& sent, Key& key, const ClaimCommand& claim,
                         const absl::Status& status);
  void CheckKept(const Sent& sent, const Key& key, const ClaimOutcome& outcome);
  void CheckRefusedFinalize(const Sent& sent, Key& key,
                            const FinalizeCommand& finalize,
                            const absl::Status& status);
  void CheckRecorded(const Sent& sent, Key& key,
                     const FinalizeCommand& finalize);
  void CheckFound(const Sent& sent, Key& key, const LookupOutcome& found);
  void CheckOwn(const Key& key, const std::string& text);
  void CheckOwn(const Key& key, const std::optional<Abandoned>& abandoned);

  void Note(const Key& key, const std::string& line);

  Database& database_;
  std::uint64_t sequence_ = 0;
  std::map<RecordId, Key> keys_;
  const Key* current_ = nullptr;  // what is being checked
  std::set<RecordId> violated_;
  std::vector<std::string> violations_;
  std::map<std::string, std::uint64_t> answers_;
  bool keeps_history_ = false;
  std::vector<std::pair<RecordId, std::string>> history_;
};

// What every text that callers store begins with, so that it can be told whose
// it is.
inline std::string TextOf(const RecordId& id, const std::string& what) {
  return id.scope + "/" + id.key + ": " + what;
}

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_HISTORY_CHECKER_H_
