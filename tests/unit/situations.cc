#include "tests/unit/situations.h"

#include <array>
#include <string_view>

#include "server/core/errors.h"

namespace idempotency {
namespace {

constexpr std::array kBools = {false, true};
constexpr std::array kRows = {Row::kUnfinished, Row::kFinal, Row::kReleased};
constexpr std::array kLeases = {Lease::kRunning, Lease::kEndsNow, Lease::kOver};
constexpr std::array kExpiries = {Expiry::kFar, Expiry::kNear, Expiry::kNow,
                                  Expiry::kPast, Expiry::kNever};
constexpr std::array kGaveUps = {GaveUp::kNo, GaveUp::kOutcomeUnknown,
                                 GaveUp::kServerError, GaveUp::kDidNothing};
constexpr std::array kOnAbandoned = {OnAbandoned::kTakeOver,
                                     OnAbandoned::kHold};
constexpr std::array kOnServerError = {
    OnServerError::kRelease, OnServerError::kRecord, OnServerError::kHold};
constexpr std::array kKeeps = {Keep::kRetention, Keep::kPermanent,
                               Keep::kPermanentUntilFinal};

bool ExpiryIsPossible(const Situation& s) {
  const bool due = s.expiry == Expiry::kNow || s.expiry == Expiry::kPast;
  const bool never = s.expiry == Expiry::kNever;
  switch (s.row) {
    case Row::kUnfinished:
      // The lease ends at least a retention before the record expires.
      if (due && s.lease != Lease::kOver) return false;
      if (s.keep != Keep::kRetention) return never;
      return !never || s.held;
    case Row::kFinal:
      return never == (s.keep == Keep::kPermanent);
    case Row::kReleased:
      return !never;
    case Row::kNone:
      break;
  }
  return true;
}

bool IsPossible(const Situation& s) {
  if (s.gave_up != GaveUp::kNo && s.row != Row::kUnfinished) return false;
  if (s.gave_up == GaveUp::kDidNothing && !s.took_over) return false;
  if (s.row == Row::kReleased && (s.took_over || s.checkpoint || s.held)) {
    return false;
  }
  return ExpiryIsPossible(s);
}

// `values` one after the other in `field`, and `next` for each.
template <typename Struct, typename Value, typename Values, typename Next>
void ForEach(Struct& s, Value Struct::*field, const Values& values,
             const Next& next) {
  for (const auto& value : values) {
    s.*field = value;
    next();
  }
}

void AddPolicies(Situation& s, std::vector<Situation>& all) {
  ForEach(s, &Situation::on_abandoned, kOnAbandoned, [&] {
    ForEach(s, &Situation::on_server_error, kOnServerError, [&] {
      ForEach(s, &Situation::keep, kKeeps, [&] {
        ForEach(s, &Situation::expiry, kExpiries, [&] {
          if (IsPossible(s)) all.push_back(s);
        });
      });
    });
  });
}

std::vector<Situation> MakeSituations() {
  std::vector<Situation> all = {Situation{}};
  Situation s;
  ForEach(s, &Situation::row, kRows, [&] {
    ForEach(s, &Situation::lease, kLeases, [&] {
      ForEach(s, &Situation::gave_up, kGaveUps, [&] {
        ForEach(s, &Situation::took_over, kBools, [&] {
          ForEach(s, &Situation::checkpoint, kBools, [&] {
            ForEach(s, &Situation::held, kBools, [&] { AddPolicies(s, all); });
          });
        });
      });
    });
  });
  return all;
}

// Each lease with one checkpoint and each checkpoint with one lease: neither
// has a say in what the other does.
void AddLeasesAndCheckpoints(ClaimChoice c, std::vector<ClaimChoice>& all) {
  for (const LeaseAsked lease :
       {LeaseAsked::kUnset, LeaseAsked::kTooShort, LeaseAsked::kShort,
        LeaseAsked::kLong, LeaseAsked::kTooLong}) {
    c.lease = lease;
    all.push_back(c);
  }
  c.lease = LeaseAsked::kUnset;
  for (const CheckpointSent checkpoint :
       {CheckpointSent::kLower, CheckpointSent::kEqual,
        CheckpointSent::kHigher}) {
    c.checkpoint = checkpoint;
    all.push_back(c);
  }
}

std::vector<ClaimChoice> MakeClaimChoices() {
  std::vector<ClaimChoice> all;
  ClaimChoice c;
  constexpr std::array kRenewals = {Renewal::kNo, Renewal::kThisGrant,
                                    Renewal::kOtherGrant};
  constexpr std::array kPolicies = {PolicyFound::kTakeOver, PolicyFound::kHold,
                                    PolicyFound::kRefused};
  ForEach(c, &ClaimChoice::same_token, kBools, [&] {
    ForEach(c, &ClaimChoice::same_hash, kBools, [&] {
      ForEach(c, &ClaimChoice::renewal, kRenewals, [&] {
        ForEach(c, &ClaimChoice::resolve_in_doubt, kBools, [&] {
          ForEach(c, &ClaimChoice::policy, kPolicies,
                  [&] { AddLeasesAndCheckpoints(c, all); });
        });
      });
    });
  });
  return all;
}

std::vector<FinalizeChoice> MakeFinalizeChoices() {
  std::vector<FinalizeChoice> all;
  FinalizeChoice c;
  constexpr std::array kStatusCodes = {0, 200, 499, 500, 999};
  ForEach(c, &FinalizeChoice::same_token, kBools, [&] {
    ForEach(c, &FinalizeChoice::status_code, kStatusCodes, [&] {
      ForEach(c, &FinalizeChoice::same_response, kBools, [&] {
        ForEach(c, &FinalizeChoice::body_omitted, kBools, [&] {
          ForEach(c, &FinalizeChoice::headers_omitted, kBools,
                  [&] { all.push_back(c); });
        });
      });
    });
  });
  return all;
}

std::vector<ReleaseChoice> MakeReleaseChoices() {
  std::vector<ReleaseChoice> all;
  for (const bool same_token : kBools) {
    for (const Disposition disposition :
         {Disposition::kNotExecuted, Disposition::kOutcomeUnknown,
          Disposition::kNeverExecuted}) {
      all.push_back({same_token, disposition});
    }
  }
  return all;
}

Uuid TokenOf(std::uint8_t byte) {
  Uuid token;
  token.bytes.fill(byte);
  return token;
}

constexpr absl::Duration kRetention = absl::Hours(24);
constexpr absl::Duration kLease = absl::Seconds(40);
constexpr std::int64_t kCheckpointNumber = 5;

absl::Time ExpiryTime(Expiry expiry) {
  switch (expiry) {
    case Expiry::kFar:
      return Now() + kRetention + absl::Seconds(10);
    case Expiry::kNear:
      return Now() + kRetention - absl::Seconds(20);
    case Expiry::kNow:
      return Now();
    case Expiry::kPast:
      return Now() - absl::Seconds(1);
    case Expiry::kNever:
      break;
  }
  return absl::InfiniteFuture();
}

absl::Time LeaseEnd(const Situation& s) {
  switch (s.lease) {
    case Lease::kRunning:
      return Now() + absl::Seconds(15);
    case Lease::kEndsNow:
      return Now();
    case Lease::kOver:
      break;
  }
  const bool due = s.expiry == Expiry::kNow || s.expiry == Expiry::kPast;
  return due ? ExpiryTime(s.expiry) - kRetention : Now() - absl::Seconds(5);
}

// A grant's token is the database clock at the grant.
std::int64_t FencingTokenIn(const Situation& s) {
  return absl::ToUnixMicros(LeaseEnd(s) - kLease);
}

std::string RequestHash(bool same) { return std::string(32, same ? 'h' : 'x'); }

constexpr char kRecordedDigest[] = "digest of the recorded response";
constexpr char kOtherDigest[] = "digest of another response";

}  // namespace

const std::vector<Situation>& AllSituations() {
  static const auto* const all = new std::vector<Situation>(MakeSituations());
  return *all;
}

const std::vector<ClaimChoice>& AllClaimChoices() {
  static const auto* const all =
      new std::vector<ClaimChoice>(MakeClaimChoices());
  return *all;
}

const std::vector<FinalizeChoice>& AllFinalizeChoices() {
  static const auto* const all =
      new std::vector<FinalizeChoice>(MakeFinalizeChoices());
  return *all;
}

const std::vector<ReleaseChoice>& AllReleaseChoices() {
  static const auto* const all =
      new std::vector<ReleaseChoice>(MakeReleaseChoices());
  return *all;
}

absl::Time Now() { return absl::FromUnixSeconds(1'800'000'000); }

Uuid OwnToken() { return TokenOf(0x11); }

Uuid OtherToken() { return TokenOf(0x22); }

Policy KeptPolicy(const Situation& s) {
  Policy policy{.name = "kept",
                .lease = absl::Seconds(30),
                .max_lease = absl::Hours(1),
                .on_abandoned = s.on_abandoned,
                .on_server_error = s.on_server_error};
  if (s.keep == Keep::kRetention) policy.retention = kRetention;
  if (s.keep == Keep::kPermanentUntilFinal) {
    policy.retention_after_finalize = absl::Hours(48);
  }
  return policy;
}

Policy FoundPolicy(OnAbandoned on_abandoned) {
  return {.name = "found",
          .lease = absl::Seconds(7),
          .max_lease = absl::Minutes(20),
          .retention = absl::Hours(2),
          .on_abandoned = on_abandoned,
          .on_server_error = OnServerError::kRecord};
}

std::optional<Record> RecordIn(const Situation& s) {
  if (s.row == Row::kNone) return std::nullopt;
  Record record;
  record.request_hash = RequestHash(true);
  record.claim_token = OwnToken();
  record.attempt = 3;
  record.policy = KeptPolicy(s);
  record.held = s.held;
  record.freed_count = 2;
  record.lease = kLease;
  record.lease_expires_at = LeaseEnd(s);
  record.claimed_at = record.lease_expires_at - record.lease;
  record.created_at = record.claimed_at - absl::Hours(1);
  record.fencing_token = FencingTokenIn(s);
  record.version = record.fencing_token + 9;
  record.expires_at = ExpiryTime(s.expiry);
  record.owner = "own";
  if (s.checkpoint) {
    record.checkpoint = "own checkpoint";
    record.checkpoint_number = kCheckpointNumber;
  }
  if (s.took_over) {
    record.abandoned =
        Abandoned{.attempt = 2,
                  .fencing_token = record.fencing_token - 1'000'000,
                  .claimed_at = record.claimed_at - absl::Minutes(5),
                  .abandoned_at = record.claimed_at - absl::Minutes(4),
                  .checkpoint = "earlier checkpoint",
                  .reason = AbandonReason::kServerError,
                  .status_code = 503,
                  .owner = "earlier"};
  }
  if (s.gave_up != GaveUp::kNo) {
    record.gave_up = s.gave_up;
    record.gave_up_at = record.claimed_at + absl::Seconds(1);
    if (s.gave_up == GaveUp::kServerError) record.gave_up_status_code = 502;
  }
  if (s.row == Row::kReleased) record.state = RecordState::kReleased;
  if (s.row == Row::kFinal) {
    record.state = RecordState::kFinal;
    record.finalized_at = record.claimed_at + absl::Seconds(2);
    record.response = {.status_code = 201,
                       .headers = "recorded headers",
                       .body = "recorded body"};
    record.response_digest = kRecordedDigest;
  }
  return record;
}

ClaimCommand ClaimOf(const Situation& s, const ClaimChoice& c) {
  ClaimCommand command;
  command.id = {"scope", "key"};
  command.request_hash = RequestHash(c.same_hash);
  command.claim_token = c.same_token ? OwnToken() : OtherToken();
  command.resolve_in_doubt = c.resolve_in_doubt;
  command.owner = "asker";
  if (c.renewal != Renewal::kNo) {
    const std::int64_t latest = FencingTokenIn(s);
    command.renew_fencing_token =
        c.renewal == Renewal::kThisGrant ? latest : latest - 1;
  }
  switch (c.lease) {
    case LeaseAsked::kUnset:
      break;
    case LeaseAsked::kTooShort:
      command.lease = absl::Milliseconds(1);
      break;
    case LeaseAsked::kShort:
      command.lease = absl::Seconds(3);
      break;
    case LeaseAsked::kLong:
      command.lease = absl::Minutes(10);
      break;
    case LeaseAsked::kTooLong:
      command.lease = absl::Hours(1000);
      break;
  }
  if (c.checkpoint != CheckpointSent::kNone) {
    command.checkpoint = "asker's checkpoint";
    command.checkpoint_number =
        kCheckpointNumber - 2 + static_cast<std::int64_t>(c.checkpoint);
  }
  if (c.policy == PolicyFound::kRefused) {
    command.policy = MakeError(Reason::kUnknownPolicy, "no such policy");
  } else {
    command.policy =
        FoundPolicy(c.policy == PolicyFound::kHold ? OnAbandoned::kHold
                                                   : OnAbandoned::kTakeOver);
  }
  return command;
}

FinalizeCommand FinalizeOf(const FinalizeChoice& c) {
  FinalizeCommand command;
  command.id = {"scope", "key"};
  command.claim_token = c.same_token ? OwnToken() : OtherToken();
  command.response.status_code = c.status_code;
  command.response.headers = c.headers_omitted ? "" : "sent headers";
  command.response.body = c.body_omitted ? "" : "sent body";
  command.response.headers_omitted = c.headers_omitted;
  command.response.body_omitted = c.body_omitted;
  command.response_digest = c.same_response ? kRecordedDigest : kOtherDigest;
  return command;
}

ReleaseCommand ReleaseOf(const ReleaseChoice& c) {
  return {.id = {"scope", "key"},
          .claim_token = c.same_token ? OwnToken() : OtherToken(),
          .disposition = c.disposition};
}

}  // namespace idempotency
