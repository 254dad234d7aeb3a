#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <variant>

#include "tests/contract/store_contract.h"

namespace idempotency {
namespace {

TEST_P(StoreContract, FirstClaimIsGranted) {
  const Claimed claimed = MustClaim(ClaimBy(1));
  EXPECT_EQ(claimed.attempt, 1);
  EXPECT_GT(claimed.fencing_token, 0);
  EXPECT_EQ(claimed.freed_count, 0);
  EXPECT_FALSE(claimed.abandoned.has_value());
  EXPECT_TRUE(IsNearly(claimed.lease, kLease));
  EXPECT_EQ(claimed.expires_at, claimed.lease_expires_at + kRetention);
}

TEST_P(StoreContract, ARecordHoldsAllThatItsClaimSaid) {
  ClaimCommand command = ClaimBy(1, Hold());
  command.checkpoint = std::string("\0step\xff", 6);
  command.checkpoint_number = 7;
  command.lease = absl::Minutes(2);
  const Claimed claimed = MustClaim(command);
  const Record record = MustLookup();
  EXPECT_EQ(record.state, RecordState::kUnfinished);
  EXPECT_EQ(record.request_hash, command.request_hash);
  EXPECT_EQ(record.claim_token, Token(1));
  EXPECT_EQ(record.fencing_token, claimed.fencing_token);
  EXPECT_EQ(record.attempt, 1);
  EXPECT_EQ(record.policy, Hold());
  EXPECT_TRUE(record.held);
  EXPECT_EQ(record.freed_count, 0);
  EXPECT_EQ(record.created_at, record.claimed_at);
  EXPECT_EQ(record.lease, absl::Minutes(2));
  EXPECT_EQ(record.lease_expires_at, record.claimed_at + absl::Minutes(2));
  EXPECT_EQ(record.lease_expires_at, claimed.lease_expires_at);
  EXPECT_EQ(record.expires_at, claimed.expires_at);
  EXPECT_EQ(record.owner, "pod-1");
  EXPECT_EQ(record.checkpoint, command.checkpoint);
  EXPECT_EQ(record.checkpoint_number, 7);
  EXPECT_EQ(record.gave_up, GaveUp::kNo);
  EXPECT_EQ(record.fencing_token, absl::ToUnixMicros(record.claimed_at));
  EXPECT_EQ(record.version, record.fencing_token);
}

TEST_P(StoreContract, ARecordKeepsTheWholePolicy) {
  Policy policy = Permanent();
  policy.name = "everything";
  policy.lease = absl::Microseconds(123'456'789);
  policy.max_lease = absl::Hours(24) + absl::Microseconds(1);
  policy.retention_after_finalize = absl::Hours(24 * 400);
  policy.on_server_error = OnServerError::kRecord;
  MustClaim(ClaimBy(1, policy));
  EXPECT_EQ(MustLookup().policy, policy);
}

TEST_P(StoreContract, AnEmptyCheckpointIsNotNone) {
  ClaimCommand command = ClaimBy(1);
  command.checkpoint = "";
  MustClaim(command);
  EXPECT_EQ(MustLookup().checkpoint, "");
}

TEST_P(StoreContract, ALeaseKeepsWithinTheBounds) {
  ClaimCommand command = ClaimBy(1, Id("short"));
  command.lease = absl::Nanoseconds(1);
  MustClaim(command);
  EXPECT_EQ(MustLookup(command.id).lease, absl::Milliseconds(100));
  command = ClaimBy(1, Id("long"));
  command.lease = absl::Hours(24 * 365 * 250);
  MustClaim(command);
  EXPECT_EQ(MustLookup(command.id).lease, absl::Hours(1));
}

TEST_P(StoreContract, OtherCallersAreToldWhoIsAtItWhileTheLeaseRuns) {
  const Claimed first = MustClaim(ClaimBy(1));
  const auto answer = SendOne(other_store(), ClaimBy(2)).outcome;
  ASSERT_TRUE(Is<InProgress>(answer));
  const auto& in_progress = std::get<InProgress>(*answer);
  EXPECT_EQ(in_progress.attempt, 1);
  EXPECT_EQ(in_progress.owner, "pod-1");
  EXPECT_EQ(in_progress.lease_expires_at, first.lease_expires_at);
  EXPECT_TRUE(IsNearly(in_progress.lease_left, kLease));
}

TEST_P(StoreContract, SecondOwnerIsToldWhenTheLeaseEnds) {
  ClaimCommand command = ClaimBy(1);
  command.checkpoint = "charged";
  const Claimed first = MustClaim(command);
  LetTheLeaseLapse();
  const Record before = MustLookup();
  const Claimed second = MustClaim(ClaimBy(2));
  EXPECT_EQ(second.attempt, 2);
  EXPECT_GT(second.fencing_token, first.fencing_token);
  EXPECT_TRUE(IsNearly(second.lease, kLease));
  EXPECT_EQ(second.abandoned,
            (Abandoned{.attempt = 1,
                       .fencing_token = first.fencing_token,
                       .claimed_at = before.claimed_at,
                       .abandoned_at = before.lease_expires_at,
                       .checkpoint = "charged",
                       .reason = AbandonReason::kLeaseLapsed,
                       .owner = "pod-1"}));
  const Record after = MustLookup();
  EXPECT_EQ(after.abandoned, second.abandoned);
  EXPECT_EQ(after.checkpoint, std::nullopt);
  EXPECT_EQ(after.owner, "pod-2");
}

TEST_P(StoreContract, ATakeoverKeepsPolicyCreationAndDownstreamKey) {
  const Claimed first = MustClaim(ClaimBy(1));
  LetTheLeaseLapse();
  const Record before = MustLookup();
  const Claimed second = MustClaim(ClaimBy(2, Hold()));
  const Record after = MustLookup();
  EXPECT_EQ(after.policy, TakeOver());
  EXPECT_EQ(after.created_at, before.created_at);
  EXPECT_EQ(second.freed_count, first.freed_count);
  EXPECT_FALSE(after.held);
}

TEST_P(StoreContract, APolicyThatWasRefusedStopsOnlyNewRecords) {
  ClaimCommand command = ClaimBy(1);
  command.policy = MakeError(Reason::kPolicyNotAllowed, "no");
  EXPECT_TRUE(IsRefused(Claim(command), Reason::kPolicyNotAllowed));
  EXPECT_TRUE(IsRefused(Lookup(), Reason::kRecordNotFound));
  MustClaim(ClaimBy(1));
  EXPECT_TRUE(IsNearly(MustClaim(command).lease, kLease));
  LetTheLeaseLapse();
  command.claim_token = Token(2);
  EXPECT_EQ(MustClaim(command).attempt, 2);
}

TEST_P(StoreContract, HeldDoubtWaitsForWhoCanResolveIt) {
  ClaimCommand command = ClaimBy(1, Hold());
  command.checkpoint = "charged";
  MustClaim(command);
  LetTheLeaseLapse();
  const auto answer = Claim(ClaimBy(2));
  ASSERT_TRUE(Is<InDoubt>(answer));
  EXPECT_EQ(std::get<InDoubt>(*answer).abandoned.attempt, 1);
  EXPECT_EQ(std::get<InDoubt>(*answer).abandoned.checkpoint, "charged");
  ClaimCommand resolving = ClaimBy(2);
  resolving.resolve_in_doubt = true;
  EXPECT_EQ(MustClaim(resolving).abandoned,
            std::get<InDoubt>(*answer).abandoned);
}

TEST_P(StoreContract, AnotherRequestHashIsAMismatchThatChangesNothing) {
  MustClaim(ClaimBy(1));
  const Record before = MustLookup();
  ClaimCommand command = ClaimBy(1);
  command.request_hash.back() = 'x';
  for (const std::uint32_t token : {1u, 2u}) {
    command.claim_token = Token(token);
    const auto answer = Claim(command);
    ASSERT_TRUE(Is<Mismatch>(answer));
    EXPECT_EQ(std::get<Mismatch>(*answer).created_at, before.created_at);
  }
  EXPECT_EQ(MustLookup(), before);
}

TEST_P(StoreContract, AllBytesOfTheRequestHashAreCompared) {
  ClaimCommand command = ClaimBy(1);
  command.request_hash = std::string(64, '\0');
  MustClaim(command);
  for (const std::size_t size : {63u, 32u}) {
    ClaimCommand shorter = command;
    shorter.request_hash.resize(size);
    EXPECT_TRUE(Is<Mismatch>(Claim(shorter))) << size;
  }
  EXPECT_TRUE(Is<Claimed>(Claim(command)));
}

TEST_P(StoreContract, ReplayIsByteForByteTheRecordedResponse) {
  MustClaim(ClaimBy(1));
  std::string every_byte;
  for (int i = 0; i < 256; ++i) every_byte.push_back(static_cast<char>(i));
  const Response response{
      .status_code = 207, .headers = every_byte, .body = every_byte + "\n"};
  const FinalizeOutcome recorded = MustFinalize(1, response);
  for (const std::uint32_t token : {1u, 2u}) {
    const auto answer = SendOne(other_store(), ClaimBy(token)).outcome;
    ASSERT_TRUE(Is<Replay>(answer));
    EXPECT_EQ(std::get<Replay>(*answer).response, response);
    EXPECT_EQ(std::get<Replay>(*answer).expires_at, recorded.expires_at);
  }
}

TEST_P(StoreContract, AnEmptyResponseIsReplayedAsSuch) {
  MustClaim(ClaimBy(1));
  MustFinalize(1, {.status_code = 204});
  const auto answer = Claim(ClaimBy(2));
  ASSERT_TRUE(Is<Replay>(answer));
  EXPECT_EQ(std::get<Replay>(*answer).response, Response{.status_code = 204});
}

TEST_P(StoreContract, ARenewalExtendsItsOwnGrant) {
  const Claimed first = MustClaim(ClaimBy(1));
  Age(Id(), absl::Minutes(4));
  ClaimCommand renewal = ClaimBy(1);
  renewal.renew_fencing_token = first.fencing_token;
  const Claimed renewed = MustClaim(renewal);
  EXPECT_EQ(renewed.fencing_token, first.fencing_token);
  EXPECT_EQ(renewed.attempt, 1);
  EXPECT_TRUE(IsNearly(renewed.lease, kLease));
  LetTheLeaseLapse();
  EXPECT_TRUE(Is<Claimed>(Claim(renewal))) << "nobody took over";
}

TEST_P(StoreContract, ARenewalNeverAcquires) {
  ClaimCommand renewal = ClaimBy(1);
  renewal.renew_fencing_token = 1;
  EXPECT_TRUE(IsRefused(Claim(renewal), Reason::kRecordNotFound));
  const Claimed first = MustClaim(ClaimBy(1));
  renewal.renew_fencing_token = first.fencing_token - 1;
  EXPECT_TRUE(IsRefused(Claim(renewal), Reason::kClaimSuperseded));
  renewal.claim_token = Token(2);
  renewal.renew_fencing_token = first.fencing_token;
  EXPECT_TRUE(IsRefused(Claim(renewal), Reason::kClaimSuperseded));
  LetTheLeaseLapse();
  EXPECT_TRUE(IsRefused(Claim(renewal), Reason::kClaimSuperseded));
  ASSERT_TRUE(Release(1, Disposition::kNotExecuted).ok());
  EXPECT_TRUE(IsRefused(Claim(renewal), Reason::kClaimSuperseded));
}

TEST_P(StoreContract, ARenewalWithAShorterLeaseShortensNothing) {
  const Claimed first = MustClaim(ClaimBy(1));
  ClaimCommand renewal = ClaimBy(1);
  renewal.renew_fencing_token = first.fencing_token;
  renewal.lease = absl::Seconds(1);
  EXPECT_EQ(MustClaim(renewal).lease_expires_at, first.lease_expires_at);
}

TEST_P(StoreContract, ARenewalMovesTheExpiryOnlyWhenItsLeaseOutgrowsIt) {
  Policy policy = TakeOver();
  policy.retention = absl::Minutes(1);
  const Claimed first = MustClaim(ClaimBy(1, policy));
  ClaimCommand renewal = ClaimBy(1, policy);
  renewal.renew_fencing_token = first.fencing_token;
  EXPECT_EQ(MustClaim(renewal).expires_at, first.expires_at);
  renewal.lease = absl::Hours(1);
  const Claimed longer = MustClaim(renewal);
  EXPECT_EQ(longer.expires_at, longer.lease_expires_at + absl::Minutes(1));
}

TEST_P(StoreContract, ACheckpointIsReplacedByALaterOneOnly) {
  ClaimCommand command = ClaimBy(1);
  command.checkpoint = "two";
  command.checkpoint_number = 2;
  MustClaim(command);
  command.checkpoint = "one";
  command.checkpoint_number = 1;
  MustClaim(command);
  EXPECT_EQ(MustLookup().checkpoint, "two");
  command.checkpoint = "two again";
  command.checkpoint_number = 2;
  MustClaim(command);
  EXPECT_EQ(MustLookup().checkpoint, "two again");
  command.checkpoint.reset();
  command.checkpoint_number = 9;
  MustClaim(command);
  EXPECT_EQ(MustLookup().checkpoint, "two again");
  EXPECT_EQ(MustLookup().checkpoint_number, 2);
}

TEST_P(StoreContract, AnAttemptWithoutCheckpointHandsOnTheEarlierOne) {
  ClaimCommand command = ClaimBy(1);
  command.checkpoint = "charged";
  MustClaim(command);
  LetTheLeaseLapse();
  MustClaim(ClaimBy(2));
  LetTheLeaseLapse();
  const Claimed third = MustClaim(ClaimBy(3));
  EXPECT_EQ(third.abandoned->attempt, 2);
  EXPECT_EQ(third.abandoned->checkpoint, "charged");
}

TEST_P(StoreContract, AnExpiredRecordIsAsIfThereWereNone) {
  const Claimed first = MustClaim(ClaimBy(1));
  MustFinalize(1, Answer(200));
  Age(Id(), kLease + kRetention + absl::Seconds(1));
  EXPECT_TRUE(IsRefused(Lookup(), Reason::kRecordNotFound));
  ClaimCommand other = ClaimBy(2, Hold());
  other.request_hash = std::string(16, 'n');
  const Claimed second = MustClaim(other);
  EXPECT_EQ(second.attempt, 1);
  EXPECT_FALSE(second.abandoned.has_value());
  EXPECT_GT(second.fencing_token, first.fencing_token);
  const Record record = MustLookup();
  EXPECT_EQ(record.policy, Hold());
  EXPECT_EQ(record.response, Response());
  EXPECT_EQ(record.created_at, record.claimed_at);
}

TEST_P(StoreContract, FencingTokensGrowOverReleaseExpiryAndCleanUp) {
  std::int64_t last = MustClaim(ClaimBy(1)).fencing_token;
  const auto grows = [&](std::uint32_t token) {
    const std::int64_t next = MustClaim(ClaimBy(token)).fencing_token;
    EXPECT_GT(next, last);
    last = next;
  };
  ASSERT_TRUE(Release(1, Disposition::kNotExecuted).ok());
  grows(2);
  LetTheLeaseLapse();
  grows(3);
  Age(Id(), absl::Hours(48));
  grows(4);
  Age(Id(), absl::Hours(48));
  EXPECT_EQ(Sweep().deleted, 1);
  grows(5);
}

TEST_P(StoreContract, AWantedRecordIsTheOneAfterTheDecision) {
  ClaimCommand command = ClaimBy(1);
  command.wants_record = true;
  for (const char* kind : {"first grant", "granted again"}) {
    const ClaimAnswer granted = SendOne(store(), command);
    ASSERT_TRUE(granted.observed.has_value()) << kind;
    EXPECT_EQ(granted.observed->record, MustLookup()) << kind;
  }
  command.claim_token = Token(2);
  ClaimAnswer answer = SendOne(store(), command);
  ASSERT_TRUE(Is<InProgress>(answer.outcome));
  ASSERT_TRUE(answer.observed.has_value());
  EXPECT_EQ(answer.observed->record, MustLookup());
  MustFinalize(1, Answer(200));
  answer = SendOne(store(), command);
  ASSERT_TRUE(Is<Replay>(answer.outcome));
  ASSERT_TRUE(answer.observed.has_value());
  EXPECT_EQ(answer.observed->record, MustLookup());
}

TEST_P(StoreContract, AWantedRecordThatIsNoneIsSaidToBeNone) {
  ClaimCommand renewal = ClaimBy(1);
  renewal.renew_fencing_token = 5;
  renewal.wants_record = true;
  const ClaimAnswer answer = SendOne(store(), renewal);
  ASSERT_TRUE(IsRefused(answer.outcome, Reason::kRecordNotFound));
  ASSERT_TRUE(answer.observed.has_value());
  EXPECT_EQ(answer.observed->record, std::nullopt);
}

}  // namespace
}  // namespace idempotency
