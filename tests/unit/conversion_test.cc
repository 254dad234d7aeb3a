// What the engine decides, as callers read it: whole messages are compared.
#include "server/rpc/conversion.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <string>

#include "server/core/digest.h"
#include "server/core/errors.h"
#include "server/core/header_codec.h"

namespace idempotency {
namespace {

const absl::Time kCreated = absl::FromUnixSeconds(1000);
const absl::Time kClaimed = absl::FromUnixMicros(1'100'000'001);
const absl::Time kLeaseEnd = absl::FromUnixMillis(1'130'500);
const absl::Time kFinalized = absl::FromUnixSeconds(1200);
const absl::Time kExpiry = absl::FromUnixSeconds(90'000);

const RecordId kId{.scope = "payments", .key = "k"};
const Uuid kNamespace = *ParseUuid("6ba7b810-9dad-11d1-80b4-00c04fd430c8");

AnswerContext Context() {
  return {.id = kId, .downstream_namespace = kNamespace, .random = 0.5};
}

// Text in which $KEY<n> stands for the downstream key after n releases.
template <typename Message>
Message Parsed(std::string text) {
  for (int n = 0; n < 3; ++n) {
    const std::string name = "$KEY" + std::to_string(n);
    for (auto at = text.find(name); at != std::string::npos;
         at = text.find(name)) {
      text.replace(at, name.size(), DownstreamKey(kNamespace, kId, n));
    }
  }
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message));
  return message;
}

template <typename Message>
void ExpectSame(const Message& actual, const std::string& expected) {
  google::protobuf::util::MessageDifferencer differencer;
  std::string difference;
  differencer.ReportDifferencesToString(&difference);
  EXPECT_TRUE(differencer.Compare(Parsed<Message>(expected), actual))
      << difference;
}

v1::ClaimResponse Answer(ClaimOutcome outcome) {
  v1::ClaimResponse response;
  EXPECT_TRUE(ToProto(std::move(outcome), Context(), response).ok());
  return response;
}

v1::LookupResponse Answer(LookupOutcome outcome) {
  v1::LookupResponse response;
  EXPECT_TRUE(ToProto(std::move(outcome), Context(), response).ok());
  return response;
}

std::string TwoCookies() {
  std::string headers;
  AppendHeader({"Set-Cookie", "a=1"}, headers);
  AppendHeader({"Set-Cookie", std::string_view("\0\xff", 2)}, headers);
  return headers;
}

TEST(ClaimedToProto, FirstGrant) {
  ExpectSame(Answer(Claimed{.fencing_token = 1'700'000'000'000'000,
                            .attempt = 1,
                            .lease = absl::Milliseconds(29'999),
                            .lease_expires_at = kLeaseEnd,
                            .expires_at = kExpiry}),
             R"pb(claimed {
                    fencing_token: 1700000000000000
                    attempt: 1
                    lease { seconds: 29 nanos: 999000000 }
                    lease_expires_at { seconds: 1130 nanos: 500000000 }
                    expires_at { seconds: 90000 }
                    downstream_key: "$KEY0"
                  })pb");
}

TEST(ClaimedToProto, NeverExpiringHasNoExpiry) {
  const v1::ClaimResponse response = Answer(
      Claimed{.lease = absl::Seconds(1), .expires_at = absl::InfiniteFuture()});
  EXPECT_FALSE(response.claimed().has_expires_at());
  EXPECT_TRUE(response.claimed().has_lease_expires_at());
}

TEST(ClaimedToProto, TakeoverIsToldOfTheAbandonedAttempt) {
  ExpectSame(Answer(Claimed{
                 .fencing_token = 9,
                 .attempt = 3,
                 .lease = absl::Seconds(30),
                 .lease_expires_at = kLeaseEnd,
                 .expires_at = kExpiry,
                 .freed_count = 2,
                 .abandoned = Abandoned{.attempt = 2,
                                        .fencing_token = 8,
                                        .claimed_at = kClaimed,
                                        .abandoned_at = kFinalized,
                                        .checkpoint = "step 3",
                                        .reason = AbandonReason::kServerError,
                                        .status_code = 504,
                                        .owner = "pod-7"}}),
             R"pb(claimed {
                    fencing_token: 9
                    attempt: 3
                    lease { seconds: 30 }
                    lease_expires_at { seconds: 1130 nanos: 500000000 }
                    expires_at { seconds: 90000 }
                    downstream_key: "$KEY2"
                    abandoned {
                      attempt: 2
                      claimed_at { seconds: 1100 nanos: 1000 }
                      abandoned_at { seconds: 1200 }
                      checkpoint: "step 3"
                      reason: REASON_SERVER_ERROR
                      status_code: 504
                      downstream_key: "$KEY2"
                      fencing_token: 8
                      owner: "pod-7"
                    }
                  })pb");
}

TEST(ReplayToProto, IsTheRecordedResponse) {
  ExpectSame(Answer(Replay{.response = {.status_code = 201,
                                        .headers = TwoCookies(),
                                        .body = std::string("p\0d", 3)},
                           .created_at = kCreated,
                           .finalized_at = kFinalized,
                           .expires_at = kExpiry}),
             R"pb(replay {
                    response {
                      status_code: 201
                      headers { name: "Set-Cookie" value: "a=1" }
                      headers { name: "Set-Cookie" value: "\000\377" }
                      body: "p\000d"
                    }
                    created_at { seconds: 1000 }
                    finalized_at { seconds: 1200 }
                    expires_at { seconds: 90000 }
                  })pb");
}

TEST(ReplayToProto, SaysWhatWasLeftOut) {
  ExpectSame(Answer(Replay{.response = {.status_code = 200,
                                        .body_omitted = true,
                                        .headers_omitted = true},
                           .created_at = kCreated,
                           .finalized_at = kFinalized,
                           .expires_at = absl::InfiniteFuture()}),
             R"pb(replay {
                    response {
                      status_code: 200
                      body_omitted: true
                      headers_omitted: true
                    }
                    created_at { seconds: 1000 }
                    finalized_at { seconds: 1200 }
                  })pb");
}

TEST(ReplayToProto, HeadersThatCannotBeReadAreCorruption) {
  v1::ClaimResponse response;
  std::string headers = TwoCookies();
  headers.pop_back();
  const absl::Status status =
      ToProto(ClaimOutcome(Replay{.response = {.headers = headers}}), Context(),
              response);
  EXPECT_EQ(ReasonOf(status), Reason::kRecordCorrupt);
}

TEST(InProgressToProto, SaysWhoAndForHowLong) {
  ExpectSame(Answer(InProgress{.lease_left = absl::Seconds(20),
                               .lease_expires_at = kLeaseEnd,
                               .attempt = 2,
                               .owner = "pod-7"}),
             R"pb(in_progress {
                    retry_after { seconds: 1 }
                    lease_expires_at { seconds: 1130 nanos: 500000000 }
                    attempt: 2
                    owner: "pod-7"
                  })pb");
}

TEST(MismatchToProto, ShowsNothingButTheTimeOfCreation) {
  ExpectSame(Answer(Mismatch{.created_at = kCreated}),
             "mismatch { created_at { seconds: 1000 } }");
}

TEST(InDoubtToProto, TellsOfTheAbandonedAttempt) {
  ExpectSame(Answer(InDoubt{.abandoned = {.attempt = 1,
                                          .fencing_token = 8,
                                          .claimed_at = kClaimed,
                                          .abandoned_at = kLeaseEnd},
                            .freed_count = 1}),
             R"pb(in_doubt {
                    abandoned {
                      attempt: 1
                      claimed_at { seconds: 1100 nanos: 1000 }
                      abandoned_at { seconds: 1130 nanos: 500000000 }
                      reason: REASON_LEASE_LAPSED
                      downstream_key: "$KEY1"
                      fencing_token: 8
                    }
                  })pb");
}

TEST(AbandonedToProto, NamesEveryReason) {
  const auto reason = [](AbandonReason reason) {
    return Answer(InDoubt{.abandoned = {.reason = reason}})
        .in_doubt()
        .abandoned()
        .reason();
  };
  EXPECT_EQ(reason(AbandonReason::kLeaseLapsed),
            v1::Abandoned::REASON_LEASE_LAPSED);
  EXPECT_EQ(reason(AbandonReason::kOutcomeUnknown),
            v1::Abandoned::REASON_OUTCOME_UNKNOWN);
  EXPECT_EQ(reason(AbandonReason::kServerError),
            v1::Abandoned::REASON_SERVER_ERROR);
}

Record UnfinishedRecord() {
  Record record;
  record.request_hash = std::string(16, 'h');
  record.fencing_token = 9;
  record.attempt = 2;
  record.policy.name = "payment";
  record.freed_count = 1;
  record.created_at = kCreated;
  record.claimed_at = kClaimed;
  record.lease_expires_at = kLeaseEnd;
  record.expires_at = kExpiry;
  record.owner = "pod-7";
  record.checkpoint = "step 4";
  record.abandoned = Abandoned{.attempt = 1,
                               .fencing_token = 8,
                               .claimed_at = kCreated,
                               .abandoned_at = kClaimed,
                               .reason = AbandonReason::kOutcomeUnknown,
                               .owner = "pod-6"};
  return record;
}

TEST(LookupToProto, ShowsAnUnfinishedRecordAndWhatItsOwnerWasTold) {
  ExpectSame(Answer(LookupOutcome{.record = UnfinishedRecord(),
                                  .state = VisibleState::kInDoubt,
                                  .conflict_count = 3}),
             R"pb(record {
                    scope: "payments"
                    key: "k"
                    state: STATE_IN_DOUBT
                    request_hash: "hhhhhhhhhhhhhhhh"
                    policy: "payment"
                    fencing_token: 9
                    attempt: 2
                    created_at { seconds: 1000 }
                    lease_expires_at { seconds: 1130 nanos: 500000000 }
                    expires_at { seconds: 90000 }
                    checkpoint: "step 4"
                    downstream_key: "$KEY1"
                    conflict_count: 3
                    claimed_at { seconds: 1100 nanos: 1000 }
                    owner: "pod-7"
                    abandoned {
                      attempt: 1
                      claimed_at { seconds: 1000 }
                      abandoned_at { seconds: 1100 nanos: 1000 }
                      reason: REASON_OUTCOME_UNKNOWN
                      downstream_key: "$KEY1"
                      fencing_token: 8
                      owner: "pod-6"
                    }
                  })pb");
}

TEST(LookupToProto, ShowsAFinalRecordWithItsResponse) {
  Record record = UnfinishedRecord();
  record.state = RecordState::kFinal;
  record.finalized_at = kFinalized;
  record.expires_at = absl::InfiniteFuture();
  record.response = {
      .status_code = 201, .headers = TwoCookies(), .body = "paid"};
  const v1::Record shown =
      Answer(LookupOutcome{.record = record, .state = VisibleState::kFinalized})
          .record();
  EXPECT_EQ(shown.state(), v1::Record::STATE_FINALIZED);
  EXPECT_FALSE(shown.has_expires_at());
  EXPECT_EQ(shown.finalized_at().seconds(), 1200);
  ExpectSame(shown.response(),
             R"pb(status_code: 201
                  headers { name: "Set-Cookie" value: "a=1" }
                  headers { name: "Set-Cookie" value: "\000\377" }
                  body: "paid")pb");
}

TEST(LookupToProto, ShowsAResponseOnlyWhenThereIsOne) {
  Record record = UnfinishedRecord();
  record.response.status_code = 504;
  const v1::Record shown = Answer(LookupOutcome{.record = record}).record();
  EXPECT_FALSE(shown.has_response());
  EXPECT_FALSE(shown.has_finalized_at());
}

TEST(LookupToProto, NamesEveryState) {
  const auto state = [](VisibleState state) {
    return Answer(LookupOutcome{.state = state}).record().state();
  };
  EXPECT_EQ(state(VisibleState::kInProgress), v1::Record::STATE_IN_PROGRESS);
  EXPECT_EQ(state(VisibleState::kFinalized), v1::Record::STATE_FINALIZED);
  EXPECT_EQ(state(VisibleState::kReleased), v1::Record::STATE_RELEASED);
  EXPECT_EQ(state(VisibleState::kInDoubt), v1::Record::STATE_IN_DOUBT);
}

TEST(LookupToProto, HeadersThatCannotBeReadAreCorruption) {
  Record record;
  record.state = RecordState::kFinal;
  record.response.headers = "x";
  v1::LookupResponse response;
  EXPECT_EQ(
      ReasonOf(ToProto(LookupOutcome{.record = record}, Context(), response)),
      Reason::kRecordCorrupt);
}

TEST(FinalizeToProto, NamesEveryResult) {
  const auto result = [](FinalizeResult result) {
    v1::FinalizeResponse response;
    ToProto(FinalizeOutcome{.result = result, .expires_at = kExpiry}, response);
    EXPECT_EQ(response.expires_at().seconds(), 90'000);
    return response.result();
  };
  EXPECT_EQ(result(FinalizeResult::kRecorded),
            v1::FinalizeResponse::RESULT_RECORDED);
  EXPECT_EQ(result(FinalizeResult::kRecordedWithoutBody),
            v1::FinalizeResponse::RESULT_RECORDED_WITHOUT_BODY);
  EXPECT_EQ(result(FinalizeResult::kReleased),
            v1::FinalizeResponse::RESULT_RELEASED);
  EXPECT_EQ(result(FinalizeResult::kInDoubt),
            v1::FinalizeResponse::RESULT_IN_DOUBT);
}

TEST(FinalizeToProto, NeverExpiringHasNoExpiry) {
  v1::FinalizeResponse response;
  ToProto(FinalizeOutcome{.expires_at = absl::InfiniteFuture()}, response);
  EXPECT_FALSE(response.has_expires_at());
}

TEST(ReleaseToProto, HasAStateOnlyWhereThereIsARecord) {
  v1::ReleaseResponse none;
  ToProto(ReleaseOutcome{.released = false}, none);
  ExpectSame(none, "");
  v1::ReleaseResponse freed;
  ToProto(ReleaseOutcome{.released = true, .state = VisibleState::kReleased},
          freed);
  ExpectSame(freed, "released: true state: STATE_RELEASED");
}

TEST(TimesToProto, AreRightBeforeTheEpochToo) {
  const v1::ClaimResponse response =
      Answer(Mismatch{.created_at = absl::FromUnixMillis(-1)});
  EXPECT_EQ(response.mismatch().created_at().seconds(), -1);
  EXPECT_EQ(response.mismatch().created_at().nanos(), 999'000'000);
}

TEST(RetryAfter, IsAboutASecondSpreadByAFifth) {
  EXPECT_EQ(RetryAfter(absl::Hours(1), 0.5), absl::Seconds(1));
  EXPECT_EQ(RetryAfter(absl::Hours(1), 0), absl::Milliseconds(800));
  EXPECT_LE(RetryAfter(absl::Hours(1), 0.999999), absl::Milliseconds(1200));
  EXPECT_GT(RetryAfter(absl::Hours(1), 0.999999), absl::Milliseconds(1199));
}

TEST(RetryAfter, IsNeverLongerThanTheLeaseAndNeverZero) {
  for (const absl::Duration left :
       {absl::Nanoseconds(1), absl::Microseconds(1), absl::Milliseconds(1),
        absl::Milliseconds(999), absl::Milliseconds(1001)}) {
    for (const double random : {0.0, 0.5, 0.999999}) {
      const absl::Duration pause = RetryAfter(left, random);
      EXPECT_GT(pause, absl::ZeroDuration()) << left << " " << random;
      EXPECT_LE(pause, left) << left << " " << random;
    }
  }
}

}  // namespace
}  // namespace idempotency
