// The space that the tables of outcomes are checked over: every record that
// can be met, and every way of asking.
//
// A Situation names a record by what the tables distinguish; RecordIn() makes
// one example of it. All times are relative to Now(), the database time of
// every decision in these tests.
#ifndef IDEMPOTENCY_TESTS_UNIT_SITUATIONS_H_
#define IDEMPOTENCY_TESTS_UNIT_SITUATIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/core/types.h"

namespace idempotency {

enum class Row { kNone, kUnfinished, kFinal, kReleased };

enum class Lease { kRunning, kEndsNow, kOver };

enum class Expiry {
  kFar,    // more than the retention is left
  kNear,   // less than the retention is left
  kNow,    // expires_at is the time of the decision
  kPast,   // and not swept yet
  kNever,  // of a permanent record, or of a held one that was parked
};

enum class Keep { kRetention, kPermanent, kPermanentUntilFinal };

struct Situation {
  Row row = Row::kNone;
  Lease lease = Lease::kRunning;
  Expiry expiry = Expiry::kFar;
  GaveUp gave_up = GaveUp::kNo;
  bool took_over = false;   // the latest attempt was told of an earlier one
  bool checkpoint = false;  // the latest attempt stored one
  bool held = false;
  OnAbandoned on_abandoned = OnAbandoned::kTakeOver;
  OnServerError on_server_error = OnServerError::kRelease;
  Keep keep = Keep::kRetention;
};

// All that the types allow but records whose own fields contradict each other,
// such as a final one that was given up.
const std::vector<Situation>& AllSituations();

enum class Renewal { kNo, kThisGrant, kOtherGrant };
enum class LeaseAsked { kUnset, kTooShort, kShort, kLong, kTooLong };
enum class CheckpointSent { kNone, kLower, kEqual, kHigher };
enum class PolicyFound { kTakeOver, kHold, kRefused };

struct ClaimChoice {
  bool same_token = true;
  bool same_hash = true;
  Renewal renewal = Renewal::kNo;
  bool resolve_in_doubt = false;
  PolicyFound policy = PolicyFound::kTakeOver;
  LeaseAsked lease = LeaseAsked::kUnset;
  CheckpointSent checkpoint = CheckpointSent::kNone;
};

const std::vector<ClaimChoice>& AllClaimChoices();

struct FinalizeChoice {
  bool same_token = true;
  std::int32_t status_code = 200;
  bool same_response = true;  // as the one a final record holds
  bool body_omitted = false;
  bool headers_omitted = false;
};

const std::vector<FinalizeChoice>& AllFinalizeChoices();

struct ReleaseChoice {
  bool same_token = true;
  Disposition disposition = Disposition::kNotExecuted;
};

const std::vector<ReleaseChoice>& AllReleaseChoices();

// ---- Examples of them.

absl::Time Now();

// The latest attempt's token, and somebody else's.
Uuid OwnToken();
Uuid OtherToken();

// The policy that is kept in the record of `situation`.
Policy KeptPolicy(const Situation& situation);
// What a claim's policy name means now; it differs from KeptPolicy() in all.
Policy FoundPolicy(OnAbandoned on_abandoned);

std::optional<Record> RecordIn(const Situation& situation);
// A renewal of "this grant" names the fencing token of `situation`.
ClaimCommand ClaimOf(const Situation& situation, const ClaimChoice& choice);
FinalizeCommand FinalizeOf(const FinalizeChoice& choice);
ReleaseCommand ReleaseOf(const ReleaseChoice& choice);

// One line each, for messages.
std::string Describe(const Situation& situation);
std::string Describe(const ClaimChoice& choice);
std::string Describe(const FinalizeChoice& choice);
std::string Describe(const ReleaseChoice& choice);

// The words of the printed table and of the messages.
std::string NameOf(Row row);
std::string NameOf(Lease lease);
std::string NameOf(Expiry expiry);
std::string NameOf(Keep keep);
std::string NameOf(GaveUp gave_up);
std::string NameOf(OnAbandoned on_abandoned);
std::string NameOf(OnServerError on_server_error);
std::string NameOf(Renewal renewal);
std::string NameOf(LeaseAsked lease);
std::string NameOf(CheckpointSent checkpoint);
std::string NameOf(PolicyFound policy);
std::string NameOf(Disposition disposition);

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_UNIT_SITUATIONS_H_
