// The table of Finalize, row by row, what is recorded and what is kept as
// evidence, against a real server and PostgreSQL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/integration/wire_fixture.h"

namespace idempotency {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

using Result = v1::FinalizeResponse;

constexpr milliseconds kShortLease{150};

class FinalizeTest : public WireTest {
 protected:
  static v1::ClaimRequest Running(const std::string& policy = "") {
    v1::ClaimRequest claim = ClaimFor(NewKey());
    claim.set_policy(policy);
    Granted(claim);
    return claim;
  }
  static void AddHeader(v1::FinalizeRequest& request, const std::string& name,
                        const std::string& value) {
    v1::Header& header = *request.mutable_response()->add_headers();
    header.set_name(name);
    header.set_value(value);
  }
  // status_code and count of each piece of evidence, by status code.
  static std::string Evidence(const v1::ClaimRequest& claim) {
    return Sql(
        "SELECT status_code, count FROM idempotency_conflicts WHERE key = '" +
        claim.key() + "' ORDER BY status_code, count");
  }
  // Finalizes, and expects exactly that response in every replay and Lookup.
  static void ExpectRecorded(const v1::ClaimRequest& claim,
                             const v1::FinalizeRequest& request,
                             Result::Result result) {
    EXPECT_EQ(Finalized(request).result(), result);
    const std::string response = request.response().SerializeAsString();
    EXPECT_EQ(Replayed(claim).response().SerializeAsString(), response);
    EXPECT_EQ(Replayed(ByAnother(claim)).response().SerializeAsString(),
              response);
    EXPECT_EQ(RecordOf(claim).response().SerializeAsString(), response);
  }
};

TEST_F(FinalizeTest, AResponseIsReplayedByteForByte) {
  const v1::ClaimRequest claim = Running();
  v1::FinalizeRequest request =
      FinalizeOf(claim, 201, std::string("{\0\xff\n}", 5));
  AddHeader(request, "Location", "/orders/1");
  AddHeader(request, "Set-Cookie", "a=1");
  AddHeader(request, "X-Empty", "");
  AddHeader(request, "Set-Cookie", "b=2");
  AddHeader(request, "Set-Cookie", "a=1");
  AddHeader(request, "grpc-status-details-bin", std::string("\0\x01\xfe", 3));
  AddHeader(request, "", "nameless");
  AddHeader(request, "X-Ünï", "\"quoted\\\", {NULL}");
  ExpectRecorded(claim, request, Result::RESULT_RECORDED);
}

TEST_F(FinalizeTest, AStatusWithoutABodyIsReplayedAsSuch) {
  const v1::ClaimRequest claim = Running();
  ExpectRecorded(claim, FinalizeOf(claim, 204), Result::RESULT_RECORDED);
  EXPECT_FALSE(Replayed(claim).response().body_omitted());
}

TEST_F(FinalizeTest, EveryStatusBelow500IsRecorded) {
  for (const int status : {0, 1, 200, 302, 404, 409, 429, 499}) {
    const v1::ClaimRequest claim = Running();
    ExpectRecorded(claim, FinalizeOf(claim, status, "b"),
                   Result::RESULT_RECORDED);
  }
}

TEST_F(FinalizeTest, WhatTheCallerLeavesOutIsRecordedWithoutIt) {
  const v1::ClaimRequest no_body = Running();
  v1::FinalizeRequest request = FinalizeOf(no_body, 200);
  request.mutable_response()->set_body_omitted(true);
  AddHeader(request, "ETag", "1");
  ExpectRecorded(no_body, request, Result::RESULT_RECORDED_WITHOUT_BODY);

  const v1::ClaimRequest no_headers = Running();
  request = FinalizeOf(no_headers, 200, "body");
  request.mutable_response()->set_headers_omitted(true);
  ExpectRecorded(no_headers, request, Result::RESULT_RECORDED_WITHOUT_BODY);
}

TEST_F(FinalizeTest, ARepeatIsAnsweredAsTheFirstTime) {
  const v1::ClaimRequest claim = Running();
  v1::FinalizeRequest request = FinalizeOf(claim, 201, "created");
  AddHeader(request, "Location", "/1");
  const v1::FinalizeResponse first = Finalized(request);
  const v1::Record record = RecordOf(claim);
  const v1::FinalizeResponse again = Finalized(request);
  EXPECT_EQ(again.SerializeAsString(), first.SerializeAsString());
  EXPECT_EQ(RecordOf(claim).SerializeAsString(), record.SerializeAsString());
  EXPECT_EQ(Evidence(claim), "");
}

TEST_F(FinalizeTest, AResponseThatDiffersAnywhereIsAnotherOne) {
  const v1::ClaimRequest claim = Running();
  v1::FinalizeRequest request = FinalizeOf(claim, 200, "body");
  AddHeader(request, "A", "1");
  AddHeader(request, "B", "2");
  Finalized(request);
  const v1::Record before = RecordOf(claim);

  std::vector<v1::FinalizeRequest> others(6, request);
  others[0].mutable_response()->set_status_code(201);
  others[1].mutable_response()->set_body("bodx");
  others[2].mutable_response()->mutable_headers()->SwapElements(0, 1);
  others[3].mutable_response()->mutable_headers(0)->set_value("11");
  others[4].mutable_response()->mutable_headers()->RemoveLast();
  others[5].mutable_response()->clear_body();
  others[5].mutable_response()->set_body_omitted(true);
  for (std::size_t i = 0; i < others.size(); ++i) {
    EXPECT_TRUE(IsRefusedAs(Send(others[i]), "ALREADY_FINALIZED")) << i;
    EXPECT_EQ(RecordOf(claim).conflict_count(), static_cast<int>(i) + 1);
  }
  v1::Record after = RecordOf(claim);
  after.set_conflict_count(0);
  EXPECT_EQ(after.SerializeAsString(), before.SerializeAsString());
}

TEST_F(FinalizeTest, TheSameRefusedResponseIsCountedAndKeptOnce) {
  const v1::ClaimRequest claim = Running();
  Finalized(FinalizeOf(claim, 200, "mine"));
  const v1::FinalizeRequest other = FinalizeOf(claim, 202, "not mine");
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(IsRefusedAs(Send(other), "ALREADY_FINALIZED"));
  }
  EXPECT_EQ(Evidence(claim), "202\t3");
  EXPECT_EQ(RecordOf(claim).conflict_count(), 1);
}

TEST_F(FinalizeTest, EvidenceOfOneRecordIsBounded) {
  const v1::ClaimRequest claim = Running();
  Finalized(FinalizeOf(claim, 200, "mine"));
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(
        IsRefusedAs(Send(FinalizeOf(claim, 200, "other " + std::to_string(i))),
                    "ALREADY_FINALIZED"));
  }
  EXPECT_EQ(RecordOf(claim).conflict_count(), 16);
  EXPECT_TRUE(IsRefusedAs(Send(FinalizeOf(claim, 200, "other 0")),
                          "ALREADY_FINALIZED"));
  EXPECT_EQ(Sql("SELECT count(*), max(count) FROM idempotency_conflicts WHERE "
                "key = '" +
                claim.key() + "'"),
            "16\t2");
}

TEST_F(FinalizeTest, AnotherTokenIsRefusedWhateverTheState) {
  const v1::ClaimRequest running = Running();
  const v1::ClaimRequest given_up = Running();
  Send(ReleaseOf(given_up, v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN));
  const v1::ClaimRequest final = Running();
  Finalized(FinalizeOf(final, 200, "same"));
  const v1::ClaimRequest released = Running();
  Send(ReleaseOf(released, v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED));
  v1::ClaimRequest lapsed = WithLease(ClaimFor(NewKey()), kShortLease);
  Granted(lapsed);
  WaitForLeaseEnd(lapsed);
  for (const v1::ClaimRequest& claim :
       {running, given_up, final, released, lapsed}) {
    const v1::Record before = RecordOf(claim);
    EXPECT_TRUE(IsRefusedAs(Send(FinalizeOf(ByAnother(claim), 200, "same")),
                            "CLAIM_SUPERSEDED"));
    EXPECT_TRUE(IsRefusedAs(Send(FinalizeOf(ByAnother(claim), 503)),
                            "CLAIM_SUPERSEDED"));
    EXPECT_EQ(Evidence(claim), "200\t1\n503\t1");
    v1::Record after = RecordOf(claim);
    EXPECT_EQ(after.conflict_count(), 2);
    after.set_conflict_count(0);
    EXPECT_EQ(after.SerializeAsString(), before.SerializeAsString());
  }
}

TEST_F(FinalizeTest, TheFirstOwnerIsRefusedAfterATakeover) {
  const v1::ClaimRequest first = WithLease(ClaimFor(NewKey()), kShortLease);
  Granted(first);
  WaitForLeaseEnd(first);
  const v1::ClaimRequest second = ByAnother(ClaimFor(first.key()));
  Granted(second);
  EXPECT_TRUE(
      IsRefusedAs(Send(FinalizeOf(first, 200, "late")), "CLAIM_SUPERSEDED"));
  EXPECT_EQ(RecordOf(second).state(), v1::Record::STATE_IN_PROGRESS);
  ExpectRecorded(second, FinalizeOf(second, 200, "mine"),
                 Result::RESULT_RECORDED);
  EXPECT_EQ(Evidence(first), "200\t1");
}

TEST_F(FinalizeTest, AReleasedClaimCannotBeFinalized) {
  const v1::ClaimRequest claim = Running();
  Send(ReleaseOf(claim, v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED));
  EXPECT_TRUE(IsRefusedAs(Send(FinalizeOf(claim, 200, "b")), "CLAIM_RELEASED"));
  EXPECT_TRUE(IsRefusedAs(Send(FinalizeOf(claim, 503)), "CLAIM_RELEASED"));
  EXPECT_EQ(Evidence(claim), "200\t1\n503\t1");
  EXPECT_EQ(RecordOf(claim).state(), v1::Record::STATE_RELEASED);
}

TEST_F(FinalizeTest, AnAbsentRecordCannotBeFinalized) {
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  EXPECT_TRUE(
      IsRefusedAs(Send(FinalizeOf(claim, 200, "b")), "RECORD_NOT_FOUND"));
  EXPECT_EQ(Evidence(claim), "200\t1");
  EXPECT_TRUE(IsRefusedAs(Send(LookupOf(claim)), "RECORD_NOT_FOUND"));
}

TEST_F(FinalizeTest, ALapsedOwnerMayFinalizeUntilSomebodyTakesOver) {
  const v1::ClaimRequest claim = WithLease(ClaimFor(NewKey()), kShortLease);
  const v1::Claimed claimed = Granted(claim);
  WaitForLeaseEnd(claim);
  ExpectRecorded(claim, FinalizeOf(claim, 200, "late"),
                 Result::RESULT_RECORDED);
  const v1::Record record = RecordOf(claim);
  EXPECT_GT(ToNanos(record.finalized_at()),
            ToNanos(claimed.lease_expires_at()));
  EXPECT_GE(ToNanos(record.expires_at()),
            ToNanos(record.finalized_at()) + hours(24));
}

TEST_F(FinalizeTest, TheExpiryStaysWhenTheRetentionIsLeft) {
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  const v1::Claimed claimed = Granted(claim);
  const v1::FinalizeResponse finalized = Finalized(FinalizeOf(claim, 200));
  EXPECT_EQ(ToNanos(finalized.expires_at()), ToNanos(claimed.expires_at()));
  EXPECT_EQ(ToNanos(RecordOf(claim).expires_at()),
            ToNanos(claimed.expires_at()));
}

TEST_F(FinalizeTest, AServerErrorGivesTheClaimUpAndKeepsTheRecord) {
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  const v1::Claimed first = Granted(claim);
  for (const int status : {504, 504, 500, 999}) {
    EXPECT_EQ(Finalized(FinalizeOf(claim, status)).result(),
              Result::RESULT_RELEASED);
  }
  EXPECT_EQ(RecordOf(claim).state(), v1::Record::STATE_IN_DOUBT);
  v1::ClaimRequest other = ByAnother(claim);
  other.set_request_hash(std::string(32, 'o'));
  EXPECT_TRUE(Send(other)->has_mismatch());
  const v1::Claimed second = Granted(ByAnother(claim));
  EXPECT_EQ(second.attempt(), 2);
  EXPECT_EQ(second.downstream_key(), first.downstream_key());
  EXPECT_EQ(second.abandoned().reason(), v1::Abandoned::REASON_SERVER_ERROR);
}

TEST_F(FinalizeTest, TheTruthMayFollowAServerError) {
  for (const std::string policy : {"default", "payment"}) {
    const v1::ClaimRequest claim = Running(policy);
    Finalized(FinalizeOf(claim, 504));
    ExpectRecorded(claim, FinalizeOf(claim, 201, "done after all"),
                   Result::RESULT_RECORDED);
    EXPECT_EQ(Evidence(claim), "");
  }
}

TEST_F(FinalizeTest, TheTruthComesTooLateAfterATakeover) {
  const v1::ClaimRequest claim = Running();
  Finalized(FinalizeOf(claim, 504));
  const v1::ClaimRequest second = ByAnother(claim);
  Granted(second);
  EXPECT_TRUE(
      IsRefusedAs(Send(FinalizeOf(claim, 201, "done")), "CLAIM_SUPERSEDED"));
  EXPECT_EQ(Evidence(claim), "201\t1");
  ExpectRecorded(second, FinalizeOf(second, 201, "done twice"),
                 Result::RESULT_RECORDED);
}

TEST_F(FinalizeTest, TheTruthMayFollowAnUnknownOutcome) {
  const v1::ClaimRequest claim = Running();
  Send(ReleaseOf(claim, v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN));
  ExpectRecorded(claim, FinalizeOf(claim, 200, "known now"),
                 Result::RESULT_RECORDED);
}

TEST_F(FinalizeTest, AServerErrorIsHeldWhereEitherColumnSaysSo) {
  AddPolicy("hold-errors", "'30 s', '1 h', '1 h', 'take_over', 'hold'");
  AddPolicy("hold-lapses", "'30 s', '1 h', '1 h', 'hold', 'release'");
  for (const std::string policy : {"payment", "hold-errors", "hold-lapses"}) {
    const v1::ClaimRequest claim = Running(policy);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(Finalized(FinalizeOf(claim, 500)).result(),
                Result::RESULT_IN_DOUBT)
          << policy;
    }
    const v1::Abandoned told = InDoubtOf(ByAnother(claim)).abandoned();
    EXPECT_EQ(told.reason(), v1::Abandoned::REASON_SERVER_ERROR);
    EXPECT_EQ(told.status_code(), 500);
    v1::ClaimRequest resolving = ByAnother(claim);
    resolving.set_resolve_in_doubt(true);
    EXPECT_EQ(Granted(resolving).attempt(), 2);
  }
}

TEST_F(FinalizeTest, AHeldErrorKeepsHoldingLaterAttempts) {
  AddPolicy("hold-on", "'100 ms', '1 h', '1 h', 'take_over', 'hold'");
  const v1::ClaimRequest claim = Running("hold-on");
  EXPECT_EQ(Finalized(FinalizeOf(claim, 500)).result(),
            Result::RESULT_IN_DOUBT);
  v1::ClaimRequest second = ByAnother(claim);
  second.set_resolve_in_doubt(true);
  Granted(second);
  WaitForLeaseEnd(second);
  EXPECT_EQ(InDoubtOf(ByAnother(claim)).abandoned().attempt(), 2);
}

TEST_F(FinalizeTest, AServerErrorIsRecordedWhereThePolicyRecordsIt) {
  AddPolicy("record", "'30 s', '1 h', '1 h', 'take_over', 'record'");
  for (const int status : {500, 504, 999}) {
    const v1::ClaimRequest claim = Running("record");
    ExpectRecorded(claim, FinalizeOf(claim, status, "broken"),
                   Result::RESULT_RECORDED);
  }
}

}  // namespace
}  // namespace idempotency
