#include <gtest/gtest.h>

#include <string>
#include <variant>

#include "server/core/header_codec.h"
#include "tests/contract/store_contract.h"

namespace idempotency {
namespace {

TEST_P(StoreContract, TheOwnerRecordsItsResponse) {
  const Claimed claimed = MustClaim(ClaimBy(1));
  const FinalizeOutcome recorded = MustFinalize(1, Answer(201));
  EXPECT_EQ(recorded.result, FinalizeResult::kRecorded);
  EXPECT_EQ(recorded.expires_at, claimed.expires_at)
      << "the retention is left, so it stays";
  const auto found = Lookup();
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->state, VisibleState::kFinalized);
  EXPECT_EQ(found->record.response, Answer(201));
  EXPECT_EQ(found->record.response_digest,
            FinalizeBy(1, Answer(201)).response_digest);
  EXPECT_GE(found->record.finalized_at, found->record.claimed_at);
}

TEST_P(StoreContract, EveryStatusBelow500IsRecorded) {
  for (const std::int32_t status : {0, 99, 200, 301, 404, 409, 429, 499}) {
    const RecordId id = Id(std::to_string(status));
    MustClaim(ClaimBy(1, id));
    FinalizeCommand command = FinalizeBy(1, Answer(status));
    command.id = id;
    const auto answer = SendOne(store(), command);
    ASSERT_TRUE(answer.ok()) << status;
    EXPECT_EQ(answer->result, FinalizeResult::kRecorded) << status;
    EXPECT_EQ(MustLookup(id).response.status_code, status);
  }
}

TEST_P(StoreContract, HeadersKeepOrderDuplicatesAndBinaryValues) {
  const std::string binary("\0\xff\r\n", 4);
  std::string headers;
  AppendHeader({"set-cookie", "b=2"}, headers);
  AppendHeader({"set-cookie", "a=1"}, headers);
  AppendHeader({"x-bin", binary}, headers);
  AppendHeader({"x-empty", ""}, headers);
  MustClaim(ClaimBy(1));
  MustFinalize(1, {.status_code = 200, .headers = headers, .body = "b"});
  EXPECT_EQ(MustLookup().response.headers, headers);
}

TEST_P(StoreContract, AResponseThatWasLeftOutMakesTheRecordFinalAllTheSame) {
  MustClaim(ClaimBy(1));
  Response kept = Answer(200, "");
  kept.body_omitted = true;
  FinalizeCommand command = FinalizeBy(1, kept);
  command.response_digest = std::string(32, 'd');  // of what was sent
  const auto answer = SendOne(store(), command);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->result, FinalizeResult::kRecordedWithoutBody);
  const auto again = SendOne(other_store(), command);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *answer);
  const auto replay = Claim(ClaimBy(2));
  ASSERT_TRUE(Is<Replay>(replay));
  EXPECT_EQ(std::get<Replay>(*replay).response, kept);
}

TEST_P(StoreContract, OmittedHeadersAreMarkedToo) {
  MustClaim(ClaimBy(1));
  Response kept = Answer(200);
  kept.headers_omitted = true;
  EXPECT_EQ(MustFinalize(1, kept).result, FinalizeResult::kRecordedWithoutBody);
  EXPECT_EQ(MustLookup().response, kept);
}

TEST_P(StoreContract, ALapsedLeaseMayStillBeFinalizedWhileNobodyTookOver) {
  MustClaim(ClaimBy(1));
  LetTheLeaseLapse();
  EXPECT_EQ(MustFinalize(1, Answer(200)).result, FinalizeResult::kRecorded);
}

TEST_P(StoreContract, AServerErrorGivesTheClaimUp) {
  MustClaim(ClaimBy(1));
  EXPECT_EQ(MustFinalize(1, Answer(500)).result, FinalizeResult::kReleased);
  EXPECT_EQ(MustFinalize(1, Answer(503)).result, FinalizeResult::kReleased);
  EXPECT_EQ(Lookup()->state, VisibleState::kInDoubt);
  EXPECT_TRUE(IsRefused(Claim(ClaimBy(1)), Reason::kClaimReleased));
  const Claimed second = MustClaim(ClaimBy(2));
  EXPECT_EQ(second.abandoned->reason, AbandonReason::kServerError);
  EXPECT_EQ(second.abandoned->status_code, 503);
  EXPECT_EQ(second.freed_count, 0);
}

TEST_P(StoreContract, TheTruthMayFollowAServerError) {
  MustClaim(ClaimBy(1));
  MustFinalize(1, Answer(504));
  EXPECT_EQ(MustFinalize(1, Answer(200)).result, FinalizeResult::kRecorded);
  EXPECT_EQ(MustLookup().response, Answer(200));
  EXPECT_EQ(MustLookup().gave_up, GaveUp::kNo);
}

TEST_P(StoreContract, TheTruthComesTooLateAfterATakeover) {
  MustClaim(ClaimBy(1));
  MustFinalize(1, Answer(504));
  MustClaim(ClaimBy(2));
  EXPECT_TRUE(IsRefused(Finalize(1, Answer(200)), Reason::kClaimSuperseded));
}

TEST_P(StoreContract, APolicyMayHoldServerErrors) {
  MustClaim(ClaimBy(1, HoldServerErrors()));
  EXPECT_FALSE(MustLookup().held);
  EXPECT_EQ(MustFinalize(1, Answer(500)).result, FinalizeResult::kInDoubt);
  EXPECT_EQ(MustFinalize(1, Answer(500)).result, FinalizeResult::kInDoubt);
  EXPECT_TRUE(MustLookup().held);
  EXPECT_TRUE(Is<InDoubt>(Claim(ClaimBy(2))));
}

TEST_P(StoreContract, APolicyThatHoldsAbandonedClaimsHoldsServerErrorsToo) {
  Policy policy = Hold();
  policy.on_server_error = OnServerError::kRelease;
  MustClaim(ClaimBy(1, policy));
  EXPECT_EQ(MustFinalize(1, Answer(502)).result, FinalizeResult::kInDoubt);
}

TEST_P(StoreContract, APolicyMayRecordServerErrors) {
  Policy policy = TakeOver();
  policy.on_server_error = OnServerError::kRecord;
  MustClaim(ClaimBy(1, policy));
  EXPECT_EQ(MustFinalize(1, Answer(500)).result, FinalizeResult::kRecorded);
  EXPECT_TRUE(Is<Replay>(Claim(ClaimBy(2))));
}

TEST_P(StoreContract, ARecordedResponseNeverChanges) {
  MustClaim(ClaimBy(1));
  MustFinalize(1, Answer(200));
  const Record before = MustLookup();
  EXPECT_TRUE(IsRefused(Finalize(1, Answer(201)), Reason::kAlreadyFinalized));
  EXPECT_TRUE(IsRefused(Finalize(1, Answer(500)), Reason::kAlreadyFinalized));
  EXPECT_TRUE(
      IsRefused(Finalize(1, Answer(200, "other")), Reason::kAlreadyFinalized));
  EXPECT_TRUE(IsRefused(Finalize(2, Answer(200)), Reason::kClaimSuperseded));
  EXPECT_EQ(MustLookup(), before);
}

TEST_P(StoreContract, AStaleTokenIsRefusedAndTheRecordUnchanged) {
  MustClaim(ClaimBy(1));
  LetTheLeaseLapse();
  MustClaim(ClaimBy(2));
  const Record before = MustLookup();
  EXPECT_TRUE(IsRefused(Finalize(1, Answer(200)), Reason::kClaimSuperseded));
  EXPECT_EQ(MustLookup(), before);
  MustFinalize(2, Answer(200));
  EXPECT_TRUE(IsRefused(Finalize(1, Answer(200)), Reason::kClaimSuperseded))
      << "the same response too";
}

TEST_P(StoreContract, AReleasedClaimIsNotFinalized) {
  MustClaim(ClaimBy(1));
  ASSERT_TRUE(Release(1, Disposition::kNotExecuted).ok());
  EXPECT_TRUE(IsRefused(Finalize(1, Answer(200)), Reason::kClaimReleased));
  EXPECT_TRUE(IsRefused(Finalize(2, Answer(200)), Reason::kClaimSuperseded));
}

TEST_P(StoreContract, WhatIsAbsentIsNotFinalized) {
  EXPECT_TRUE(IsRefused(Finalize(1, Answer(200)), Reason::kRecordNotFound));
  MustClaim(ClaimBy(1));
  Age(Id(), kLease + kRetention + absl::Seconds(1));
  EXPECT_TRUE(IsRefused(Finalize(1, Answer(200)), Reason::kRecordNotFound));
  EXPECT_TRUE(IsRefused(Lookup(), Reason::kRecordNotFound));
}

TEST_P(StoreContract, AResponseIsKeptForItsRetentionAfterAnOldClaim) {
  MustClaim(ClaimBy(1));
  Age(Id(), kLease + absl::Hours(23));
  const FinalizeOutcome recorded = MustFinalize(1, Answer(200));
  const Record record = MustLookup();
  EXPECT_EQ(record.expires_at, record.finalized_at + kRetention);
  EXPECT_EQ(recorded.expires_at, record.expires_at);
}

TEST_P(StoreContract, APermanentResponseIsKeptForEver) {
  EXPECT_EQ(MustClaim(ClaimBy(1, Permanent())).expires_at,
            absl::InfiniteFuture());
  EXPECT_EQ(MustFinalize(1, Answer(200)).expires_at, absl::InfiniteFuture());
  Age(Id(), absl::Hours(24 * 365));
  EXPECT_TRUE(Is<Replay>(Claim(ClaimBy(2))));
}

TEST_P(StoreContract, APermanentRecordMayBeCleanedUpSomeTimeAfterFinalize) {
  Policy policy = Permanent();
  policy.retention_after_finalize = absl::Hours(1);
  EXPECT_EQ(MustClaim(ClaimBy(1, policy)).expires_at, absl::InfiniteFuture());
  MustFinalize(1, Answer(200));
  const Record record = MustLookup();
  EXPECT_EQ(record.expires_at, record.finalized_at + absl::Hours(1));
}

TEST_P(StoreContract, AHeldRecordIsFinalizedLongAfterItsExpiry) {
  MustClaim(ClaimBy(1, Hold()));
  Age(Id(), absl::Hours(24 * 365));
  EXPECT_EQ(MustFinalize(1, Answer(200)).result, FinalizeResult::kRecorded);
  const Record record = MustLookup();
  EXPECT_EQ(record.expires_at, record.finalized_at + kRetention);
}

}  // namespace
}  // namespace idempotency
