// What a caller may send: both sides of every limit, over the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "client/environment.h"
#include "tests/integration/wire_fixture.h"

namespace idempotency {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr std::int64_t kInt64Min = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();
// The longest google.protobuf.Duration.
constexpr std::int64_t kDurationSecondsMax = 315'576'000'000;
constexpr std::int32_t kNanosMax = 999'999'999;

google::protobuf::Duration Duration(std::int64_t seconds, std::int32_t nanos) {
  google::protobuf::Duration duration;
  duration.set_seconds(seconds);
  duration.set_nanos(nanos);
  return duration;
}

// No duration at all, by google.protobuf.Duration's own rules.
std::vector<google::protobuf::Duration> BadDurations() {
  return {Duration(1, -1),
          Duration(-1, 1),
          Duration(0, kNanosMax + 1),
          Duration(1, std::numeric_limits<std::int32_t>::max()),
          Duration(0, std::numeric_limits<std::int32_t>::min()),
          Duration(kDurationSecondsMax + 1, 0),
          Duration(-kDurationSecondsMax - 1, 0),
          Duration(kInt64Max, 0),
          Duration(kInt64Min, 0),
          Duration(kInt64Max, kNanosMax)};
}

std::vector<google::protobuf::Duration> NegativeDurations() {
  return {Duration(0, -1), Duration(-1, 0), Duration(-1, -kNanosMax),
          Duration(-kDurationSecondsMax, 0)};
}

class LimitsTest : public WireTest {
 protected:
  // The same scope, key and claim token in all four calls.
  static void ExpectInvalidEverywhere(const v1::ClaimRequest& claim,
                                      const std::string& field) {
    EXPECT_TRUE(IsInvalid(Send(claim), field));
    EXPECT_TRUE(IsInvalid(Send(FinalizeOf(claim, 200)), field));
    EXPECT_TRUE(IsInvalid(
        Send(ReleaseOf(claim, v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED)),
        field));
    if (field != "claim_token") {
      EXPECT_TRUE(IsInvalid(Send(LookupOf(claim)), field));
    }
  }
  // Through all calls, and back as it was sent.
  static void ExpectFineEverywhere(const v1::ClaimRequest& claim) {
    EXPECT_EQ(Granted(claim).attempt(), 1);
    Finalized(FinalizeOf(claim, 200, claim.key()));
    EXPECT_TRUE(IsRefusedAs(
        Send(ReleaseOf(claim, v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED)),
        "ALREADY_FINALIZED"));
    const v1::Record record = RecordOf(claim);
    EXPECT_EQ(record.scope(), claim.scope());
    EXPECT_EQ(record.key(), claim.key());
    EXPECT_EQ(Replayed(ByAnother(claim)).response().body(), claim.key());
  }
  static v1::ClaimRequest WithScope(const std::string& scope) {
    v1::ClaimRequest claim = ClaimFor(NewKey());
    claim.set_scope(scope);
    return claim;
  }
  static v1::ClaimRequest WithToken(const std::string& token) {
    v1::ClaimRequest claim = ClaimFor(NewKey());
    claim.set_claim_token(token);
    return claim;
  }
  // The lease that is granted, to the database's microsecond.
  static nanoseconds LeaseOf(const v1::ClaimRequest& claim) {
    const v1::Claimed claimed = Granted(claim);
    return ToNanos(claimed.lease_expires_at()) -
           ToNanos(RecordOf(claim).claimed_at());
  }
};

TEST_F(LimitsTest, AScopeIsSegmentsJoinedBySingleSlashes) {
  for (const std::string& scope :
       {std::string("a"), std::string("A-Z.a_z/09"), std::string("..."),
        std::string("a/b/c/d"), std::string(128, 's'),
        std::string(63, 's') + "/" + std::string(64, 's')}) {
    ExpectFineEverywhere(WithScope(scope));
  }
  for (const std::string& scope :
       {std::string(), std::string(129, 's'), std::string("/"),
        std::string("/a"), std::string("a/"), std::string("a//b"),
        std::string("a b"), std::string(" a"), std::string("a\n"),
        std::string("a%"), std::string("a:b"), std::string("a\\b"),
        std::string("é"), std::string("a\0", 2), std::string("a\x7f")}) {
    ExpectInvalidEverywhere(WithScope(scope), "scope");
  }
}

TEST_F(LimitsTest, AKeyHas1To255Bytes) {
  ExpectFineEverywhere(ClaimFor("k"));
  ExpectFineEverywhere(ClaimFor(std::string(255, 'k')));
  std::string umlauts(1, 'k');
  while (umlauts.size() < 255) umlauts += "ü";
  ExpectFineEverywhere(ClaimFor(umlauts));
  ExpectInvalidEverywhere(ClaimFor(""), "key");
  ExpectInvalidEverywhere(ClaimFor(std::string(256, 'k')), "key");
  ExpectInvalidEverywhere(ClaimFor(umlauts + "k"), "key");
}

TEST_F(LimitsTest, AKeyHasNoControlCharacters) {
  for (int c = 0; c <= 0x7f; ++c) {
    const bool fine = c >= 0x20 && c != 0x7f;
    const v1::ClaimRequest claim =
        ClaimFor(NewKey() + static_cast<char>(c) + "end");
    if (fine) {
      EXPECT_EQ(Granted(claim).attempt(), 1) << c;
      EXPECT_EQ(RecordOf(claim).key(), claim.key());
    } else {
      ExpectInvalidEverywhere(claim, "key");
    }
  }
  // U+0080 and U+009F, which are not among them; U+FFFE, U+FFFF, U+10FFFF.
  for (const std::string key : {"\xc2\x80", "\xc2\x9f", "\xef\xbf\xbe",
                                "\xef\xbf\xbf", "\xf4\x8f\xbf\xbf"}) {
    ExpectFineEverywhere(ClaimFor(key));
  }
}

TEST_F(LimitsTest, KeysThatOnlyLookAlikeAreKeptApart) {
  const std::vector<std::string> keys = {
      "look", "Look", "LOOK", " look", "look ", "  look", " ", "  ",
      // A no-break space, a byte order mark, a zero-width joiner.
      "\xc2\xa0look", "\xef\xbb\xbflook", "lo\xe2\x80\x8dok",
      // é composed and decomposed; ﬁ as one and two letters; full width;
      // Kelvin sign and K; Å as letter, as unit and decomposed.
      "\xc3\xa9", "e\xcc\x81", "\xef\xac\x81", "fi", "\xef\xbd\x81", "a",
      "\xe2\x84\xaa", "K", "k", "\xc3\x85", "\xe2\x84\xab", "A\xcc\x8a",
      // Dotless and dotted i, sharp s.
      "i", "\xc4\xb1", "\xc4\xb0", "\xc3\x9f", "ss",
      // Numbers and escapes that SQL might read as the same.
      "1", "01", "1.0", "+1", "\\x31", "%31", "\\61"};
  std::vector<v1::ClaimRequest> claims;
  for (const std::string& key : keys) {
    claims.push_back(ClaimFor(key));
    claims.back().set_scope("tests/alike");
    EXPECT_EQ(Granted(claims.back()).attempt(), 1) << key;
  }
  for (const v1::ClaimRequest& claim : claims) {
    Finalized(FinalizeOf(claim, 200, "of " + claim.key()));
  }
  for (const v1::ClaimRequest& claim : claims) {
    EXPECT_EQ(Replayed(ByAnother(claim)).response().body(),
              "of " + claim.key());
  }
}

TEST_F(LimitsTest, ARequestHashHas16To64Bytes) {
  for (const std::size_t size : {16, 64}) {
    v1::ClaimRequest claim = ClaimFor(NewKey());
    claim.set_request_hash(std::string(size, '\0'));
    Granted(claim);
    EXPECT_EQ(RecordOf(claim).request_hash(), claim.request_hash());
  }
  for (const std::size_t size : {0, 15, 65, 4096}) {
    v1::ClaimRequest claim = ClaimFor(NewKey());
    claim.set_request_hash(std::string(size, 'h'));
    EXPECT_TRUE(IsInvalid(Send(claim), "request_hash"));
  }
}

TEST_F(LimitsTest, AClaimTokenIsAUuidInItsUsualForm) {
  for (const std::string token :
       {"", "token", "12345678-1234-4234-8234-12345678901",
        "12345678-1234-4234-8234-1234567890123",
        "123456781234423482341234567890ab",
        "{12345678-1234-4234-8234-1234567890ab}",
        "urn:uuid:12345678-1234-4234-8234-1234567890ab",
        "12345678-1234-4234-8234-1234567890ag",
        "12345678 1234 4234 8234 1234567890ab",
        " 12345678-1234-4234-8234-1234567890a",
        "1234567-81234-4234-8234-1234567890ab",
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF"}) {
    ExpectInvalidEverywhere(WithToken(token), "claim_token");
  }
  ExpectFineEverywhere(WithToken("00000000-0000-0000-0000-000000000001"));
  ExpectFineEverywhere(WithToken("ffffffff-ffff-ffff-ffff-fffffffffffe"));
}

TEST_F(LimitsTest, AClaimTokenIsComparedAs128Bits) {
  v1::ClaimRequest lower = WithToken("abcdef01-2345-4789-abcd-ef0123456789");
  v1::ClaimRequest upper = lower;
  upper.set_claim_token("ABCDEF01-2345-4789-ABCD-EF0123456789");
  v1::ClaimRequest other = lower;
  other.set_claim_token("abcdef01-2345-4789-abcd-ef0123456788");
  const v1::Claimed claimed = Granted(lower);
  EXPECT_EQ(Granted(upper).fencing_token(), claimed.fencing_token());
  EXPECT_TRUE(Send(other)->has_in_progress());
  EXPECT_EQ(Finalized(FinalizeOf(upper, 200)).result(),
            v1::FinalizeResponse::RESULT_RECORDED);
  EXPECT_EQ(Finalized(FinalizeOf(lower, 200)).result(),
            v1::FinalizeResponse::RESULT_RECORDED);
}

TEST_F(LimitsTest, ALeaseIsAPositiveDuration) {
  std::vector<google::protobuf::Duration> bad = BadDurations();
  bad.push_back(Duration(0, 0));
  for (const auto& negative : NegativeDurations()) bad.push_back(negative);
  for (const google::protobuf::Duration& lease : bad) {
    v1::ClaimRequest claim = ClaimFor(NewKey());
    *claim.mutable_lease() = lease;
    EXPECT_TRUE(IsInvalid(Send(claim), "lease")) << lease.ShortDebugString();
    EXPECT_TRUE(IsRefusedAs(Send(LookupOf(claim)), "RECORD_NOT_FOUND"));
  }
}

TEST_F(LimitsTest, ALeaseIsBroughtWithinItsBounds) {
  const auto granted = [](nanoseconds lease) {
    v1::ClaimRequest claim = ClaimFor(NewKey());
    *claim.mutable_lease() = ToProto(lease);
    return LeaseOf(claim);
  };
  EXPECT_EQ(granted(nanoseconds(1)), milliseconds(100));
  EXPECT_EQ(granted(milliseconds(99)), milliseconds(100));
  EXPECT_EQ(granted(milliseconds(100)), milliseconds(100));
  EXPECT_EQ(granted(milliseconds(101)), milliseconds(101));
  EXPECT_EQ(granted(hours(1)), hours(1));
  EXPECT_EQ(granted(hours(1) + milliseconds(1)), hours(1));
  v1::ClaimRequest longest = ClaimFor(NewKey());
  *longest.mutable_lease() = Duration(kDurationSecondsMax, kNanosMax);
  EXPECT_EQ(LeaseOf(longest), hours(1));
}

TEST_F(LimitsTest, AWaitIsNotNegative) {
  std::vector<google::protobuf::Duration> bad = BadDurations();
  for (const auto& negative : NegativeDurations()) bad.push_back(negative);
  for (const google::protobuf::Duration& wait : bad) {
    v1::ClaimRequest claim = ClaimFor(NewKey());
    *claim.mutable_wait() = wait;
    EXPECT_TRUE(IsInvalid(Send(claim), "wait")) << wait.ShortDebugString();
  }
  for (const google::protobuf::Duration& wait :
       {Duration(0, 0), Duration(0, 1), Duration(60, 0),
        Duration(kDurationSecondsMax, kNanosMax)}) {
    v1::ClaimRequest claim = ClaimFor(NewKey());
    *claim.mutable_wait() = wait;
    EXPECT_EQ(Granted(claim).attempt(), 1) << wait.ShortDebugString();
  }
}

TEST_F(LimitsTest, NumbersAreNotNegative) {
  for (const std::int64_t number : {std::int64_t{-1}, kInt64Min}) {
    v1::ClaimRequest claim = ClaimFor(NewKey());
    claim.set_renew_fencing_token(number);
    EXPECT_TRUE(IsInvalid(Send(claim), "renew_fencing_token"));
    claim = ClaimFor(NewKey());
    claim.set_checkpoint_number(number);
    EXPECT_TRUE(IsInvalid(Send(claim), "checkpoint_number"));
  }
  v1::ClaimRequest claim = ClaimFor(NewKey());
  claim.set_renew_fencing_token(kInt64Max);
  EXPECT_TRUE(IsRefusedAs(Send(claim), "RECORD_NOT_FOUND"));
  claim.clear_renew_fencing_token();
  claim.set_checkpoint("last");
  claim.set_checkpoint_number(kInt64Max);
  Granted(claim);
  claim.set_checkpoint("before");
  claim.set_checkpoint_number(kInt64Max - 1);
  Granted(claim);
  EXPECT_EQ(RecordOf(claim).checkpoint(), "last");
}

TEST_F(LimitsTest, ACheckpointHasAtMost4KiB) {
  for (const std::size_t size : {0, 1, 4096}) {
    v1::ClaimRequest claim = ClaimFor(NewKey());
    claim.set_checkpoint(std::string(size, '\0'));
    Granted(claim);
    EXPECT_EQ(RecordOf(claim).checkpoint(), claim.checkpoint());
  }
  v1::ClaimRequest claim = ClaimFor(NewKey());
  claim.set_checkpoint(std::string(4097, 'c'));
  EXPECT_TRUE(IsInvalid(Send(claim), "checkpoint"));
}

TEST_F(LimitsTest, AnOwnerHasAtMost128Bytes) {
  v1::ClaimRequest claim = ClaimFor(NewKey());
  claim.set_owner(std::string(126, 'o') + "ü");
  Granted(claim);
  EXPECT_EQ(RecordOf(claim).owner(), claim.owner());
  for (const std::string& owner :
       {std::string(129, 'o'), std::string(127, 'o') + "ü",
        std::string("pod\0", 4)}) {
    claim = ClaimFor(NewKey());
    claim.set_owner(owner);
    EXPECT_TRUE(IsInvalid(Send(claim), "owner"));
  }
}

TEST_F(LimitsTest, APolicyNameNeedNotBeSane) {
  for (const std::string name :
       {"'; DROP TABLE ttl_policies; --", "Default", "default ", "NULL"}) {
    v1::ClaimRequest claim = ClaimFor(NewKey());
    claim.set_policy(name);
    EXPECT_TRUE(IsRefusal(Send(claim), grpc::StatusCode::INVALID_ARGUMENT,
                          "UNKNOWN_POLICY", "policy"))
        << name;
  }
  for (const std::string& name :
       {std::string("default\0", 8), std::string(100'000, 'p')}) {
    v1::ClaimRequest claim = ClaimFor(NewKey());
    claim.set_policy(name);
    EXPECT_TRUE(IsInvalid(Send(claim), "policy"));
  }
}

TEST_F(LimitsTest, ADispositionMustSayWhatHappened) {
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  Granted(claim);
  for (const int disposition : {0, -1, 4, std::numeric_limits<int>::max()}) {
    v1::ReleaseRequest request = ReleaseOf(
        claim, static_cast<v1::ReleaseRequest::Disposition>(disposition));
    EXPECT_TRUE(IsInvalid(Send(request), "disposition")) << disposition;
  }
  EXPECT_EQ(RecordOf(claim).state(), v1::Record::STATE_IN_PROGRESS);
}

TEST_F(LimitsTest, AResponseMustBeThereAndAgreeWithItself) {
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  Granted(claim);
  v1::FinalizeRequest request = FinalizeOf(claim, 200);
  request.clear_response();
  EXPECT_TRUE(IsInvalid(Send(request), "response"));
  request = FinalizeOf(claim, 200, "b");
  request.mutable_response()->set_body_omitted(true);
  EXPECT_TRUE(IsInvalid(Send(request), "response.body_omitted"));
  request = FinalizeOf(claim, 200);
  request.mutable_response()->set_headers_omitted(true);
  request.mutable_response()->add_headers();
  EXPECT_TRUE(IsInvalid(Send(request), "response.headers_omitted"));
  for (const int status : {-1, 1000, std::numeric_limits<int>::min(),
                           std::numeric_limits<int>::max()}) {
    EXPECT_TRUE(
        IsInvalid(Send(FinalizeOf(claim, status)), "response.status_code"));
  }
  EXPECT_EQ(RecordOf(claim).state(), v1::Record::STATE_IN_PROGRESS);
  EXPECT_EQ(Finalized(FinalizeOf(claim, 0)).result(),
            v1::FinalizeResponse::RESULT_RECORDED);
}

TEST_F(LimitsTest, TheFirstBadFieldIsNamed) {
  EXPECT_TRUE(IsInvalid(Send(v1::ClaimRequest()), "scope"));
  EXPECT_TRUE(IsInvalid(Send(v1::FinalizeRequest()), "scope"));
  EXPECT_TRUE(IsInvalid(Send(v1::LookupRequest()), "scope"));
  EXPECT_TRUE(IsInvalid(Send(v1::ReleaseRequest()), "scope"));
}

}  // namespace
}  // namespace idempotency
