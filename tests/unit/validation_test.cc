// What a Claim may ask, and with it what every call says of its key: every
// limit from both sides, and that no refusal shows the value it is about.
#include "server/rpc/validation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "server/core/errors.h"
#include "server/core/limits.h"

namespace idempotency {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kToken[] = "0f8fad5b-d9cb-469f-a165-70867728950e";

v1::ClaimRequest GoodClaim() {
  v1::ClaimRequest request;
  request.set_scope("payments");
  request.set_key("k");
  request.set_request_hash(std::string(32, 'h'));
  request.set_claim_token(kToken);
  return request;
}

// The field that is refused, or "" when nothing is.
template <typename Command>
std::string RefusedField(const absl::StatusOr<Command>& command) {
  if (command.ok()) return "";
  EXPECT_EQ(ReasonOf(command.status()), Reason::kInvalidField);
  EXPECT_EQ(command.status().code(), absl::StatusCode::kInvalidArgument);
  return FieldOf(command.status());
}

using ChangeClaim = std::function<void(v1::ClaimRequest&)>;

std::string RefusedInClaim(const ChangeClaim& change) {
  v1::ClaimRequest request = GoodClaim();
  change(request);
  return RefusedField(ValidateClaim(request));
}

std::string RefusedScope(const std::string& scope) {
  return RefusedInClaim([&](auto& request) { request.set_scope(scope); });
}

std::string RefusedKey(const std::string& key) {
  return RefusedInClaim([&](auto& request) { request.set_key(key); });
}

std::string RefusedToken(const std::string& token) {
  return RefusedInClaim([&](auto& request) { request.set_claim_token(token); });
}

std::string RefusedLease(std::int64_t seconds, std::int32_t nanos) {
  return RefusedInClaim([&](auto& request) {
    request.mutable_lease()->set_seconds(seconds);
    request.mutable_lease()->set_nanos(nanos);
  });
}

std::string RefusedWait(std::int64_t seconds, std::int32_t nanos) {
  return RefusedInClaim([&](auto& request) {
    request.mutable_wait()->set_seconds(seconds);
    request.mutable_wait()->set_nanos(nanos);
  });
}

TEST(ValidateScope, AcceptsSegmentsJoinedBySingleSlashes) {
  for (const char* scope : {"a", "payments", "orders/create", "A-Z_0.9",
                            "a/b/c/d", ".", "-", "..", "_/.", "0"}) {
    EXPECT_EQ(RefusedScope(scope), "") << scope;
  }
}

TEST(ValidateScope, RefusesEverythingElse) {
  for (const std::string& scope :
       {std::string(), std::string("/"), std::string("/a"), std::string("a/"),
        std::string("a//b"), std::string("a b"), std::string(" a"),
        std::string("a\n"), std::string("a\0b", 3), std::string("a:b"),
        std::string("a%2fb"), std::string("caf\xc3\xa9"), std::string("a\\b"),
        std::string("\x7f"), std::string("a@"), std::string("["),
        std::string("`"), std::string("{")}) {
    EXPECT_EQ(RefusedScope(scope), "scope") << testing::PrintToString(scope);
  }
}

TEST(ValidateScope, IsAtMost128CharactersLong) {
  EXPECT_EQ(RefusedScope(std::string(128, 's')), "");
  EXPECT_EQ(RefusedScope(std::string(129, 's')), "scope");
}

TEST(ValidateKey, Has1To255Bytes) {
  EXPECT_EQ(RefusedKey(""), "key");
  EXPECT_EQ(RefusedKey("k"), "");
  EXPECT_EQ(RefusedKey(std::string(255, 'k')), "");
  EXPECT_EQ(RefusedKey(std::string(256, 'k')), "key");
}

TEST(ValidateKey, CountsBytesNotCharacters) {
  std::string key;
  for (int i = 0; i < 127; ++i) key += "\xc3\xa9";
  EXPECT_EQ(RefusedKey(key), "");
  EXPECT_EQ(RefusedKey(key + "\xc3\xa9"), "key");
}

TEST(ValidateKey, HasNoControlCharacter) {
  for (int code = 0; code < 0x80; ++code) {
    const std::string key = std::string("a") + static_cast<char>(code) + "b";
    const bool control = code < 0x20 || code == 0x7f;
    EXPECT_EQ(RefusedKey(key), control ? "key" : "") << code;
  }
}

TEST(ValidateKey, IsKeptByteByByte) {
  // Blanks, both forms of an accented letter, C1 controls and characters that
  // mean something in an array literal.
  for (const std::string key :
       {" lead", "trail ", "\xc3\xa9", "e\xcc\x81", "\xc2\x85", "NULL",
        R"({"a",\b})", "\xf0\x9f\x92\xb8"}) {
    v1::ClaimRequest request = GoodClaim();
    request.set_key(key);
    const absl::StatusOr<ClaimCommand> command = ValidateClaim(request);
    ASSERT_TRUE(command.ok()) << command.status();
    EXPECT_EQ(command->id.key, key);
  }
}

TEST(ValidateRequestHash, Has16To64Bytes) {
  const auto refused = [](std::size_t size) {
    return RefusedInClaim([&](auto& request) {
      request.set_request_hash(std::string(size, '\0'));
    });
  };
  EXPECT_EQ(refused(0), "request_hash");
  EXPECT_EQ(refused(15), "request_hash");
  EXPECT_EQ(refused(16), "");
  EXPECT_EQ(refused(64), "");
  EXPECT_EQ(refused(65), "request_hash");
}

TEST(ValidateClaimToken, IsAUuidInEitherCase) {
  EXPECT_EQ(RefusedToken(kToken), "");
  EXPECT_EQ(RefusedToken("0F8FAD5B-D9CB-469F-A165-70867728950E"), "");
  for (const char* token : {"", "x", "0f8fad5bd9cb469fa16570867728950e",
                            "{0f8fad5b-d9cb-469f-a165-70867728950e}",
                            "0f8fad5b-d9cb-469f-a165-70867728950",
                            "0f8fad5b-d9cb-469f-a165-70867728950e0",
                            "0f8fad5b-d9cb-469f-a165-70867728950g",
                            "0f8fad5b-d9cb-469f-a16570867728950e-",
                            " 0f8fad5b-d9cb-469f-a165-70867728950e",
                            "urn:uuid:0f8fad5b-d9cb-469f-a165-70867728950e"}) {
    EXPECT_EQ(RefusedToken(token), "claim_token") << token;
  }
}

TEST(ValidateClaimToken, IsNeitherNilNorMax) {
  EXPECT_EQ(RefusedToken("00000000-0000-0000-0000-000000000000"),
            "claim_token");
  EXPECT_EQ(RefusedToken("ffffffff-ffff-ffff-ffff-ffffffffffff"),
            "claim_token");
  EXPECT_EQ(RefusedToken("FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF"),
            "claim_token");
  EXPECT_EQ(RefusedToken("00000000-0000-0000-0000-000000000001"), "");
  EXPECT_EQ(RefusedToken("ffffffff-ffff-ffff-ffff-fffffffffffe"), "");
}

TEST(ValidatePolicy, IsAnyShortNameWithoutControlCharacters) {
  const auto refused = [](const std::string& policy) {
    return RefusedInClaim([&](auto& request) { request.set_policy(policy); });
  };
  EXPECT_EQ(refused(""), "");
  EXPECT_EQ(refused("no-such-policy"), "");
  EXPECT_EQ(refused(std::string(128, 'p')), "");
  EXPECT_EQ(refused(std::string(129, 'p')), "policy");
  EXPECT_EQ(refused(std::string("a\0b", 3)), "policy");
}

TEST(ValidateLease, IsMoreThanZero) {
  EXPECT_EQ(RefusedLease(0, 0), "lease");
  EXPECT_EQ(RefusedLease(-1, 0), "lease");
  EXPECT_EQ(RefusedLease(0, -1), "lease");
  EXPECT_EQ(RefusedLease(0, 1), "");
  EXPECT_EQ(RefusedLease(1, 0), "");
}

TEST(ValidateLease, IsAValidDuration) {
  EXPECT_EQ(RefusedLease(0, 999'999'999), "");
  EXPECT_EQ(RefusedLease(0, 1'000'000'000), "lease");
  EXPECT_EQ(RefusedLease(1, -1), "lease");
  EXPECT_EQ(RefusedLease(-1, 1), "lease");
  EXPECT_EQ(RefusedLease(315'576'000'000, 999'999'999), "");
  EXPECT_EQ(RefusedLease(315'576'000'001, 0), "lease");
  EXPECT_EQ(RefusedLease(std::numeric_limits<std::int64_t>::max(), 0), "lease");
  EXPECT_EQ(RefusedLease(std::numeric_limits<std::int64_t>::min(), 0), "lease");
  EXPECT_EQ(RefusedLease(0, std::numeric_limits<std::int32_t>::max()), "lease");
  EXPECT_EQ(RefusedLease(0, std::numeric_limits<std::int32_t>::min()), "lease");
}

TEST(ValidateLease, IsKeptAndOnlyCappedWhereSumsCouldOverflow) {
  v1::ClaimRequest request = GoodClaim();
  EXPECT_EQ(ValidateClaim(request)->lease, std::nullopt);
  request.mutable_lease()->set_seconds(12);
  request.mutable_lease()->set_nanos(345'000'000);
  EXPECT_EQ(ValidateClaim(request)->lease, absl::Milliseconds(12'345));
  request.mutable_lease()->set_seconds(315'576'000'000);
  EXPECT_EQ(ValidateClaim(request)->lease,
            absl::FromChrono(limits::kDurationMax));
}

TEST(ValidateWait, IsNotNegative) {
  EXPECT_EQ(RefusedWait(0, 0), "");
  EXPECT_EQ(RefusedWait(0, -1), "wait");
  EXPECT_EQ(RefusedWait(-1, 0), "wait");
  EXPECT_EQ(RefusedWait(1, -1), "wait");
  EXPECT_EQ(RefusedWait(315'576'000'001, 0), "wait");
}

TEST(ValidateWait, IsCappedAtOneMinute) {
  v1::ClaimRequest request = GoodClaim();
  EXPECT_EQ(WaitOf(request), absl::ZeroDuration());
  request.mutable_wait()->set_nanos(5);
  EXPECT_EQ(WaitOf(request), absl::Nanoseconds(5));
  request.mutable_wait()->set_seconds(60);
  EXPECT_EQ(WaitOf(request), absl::Minutes(1));
  request.mutable_wait()->set_seconds(315'576'000'000);
  EXPECT_EQ(WaitOf(request), absl::Minutes(1));
}

TEST(ValidateCheckpoint, HasAtMost4KiBAndMayBeEmpty) {
  v1::ClaimRequest request = GoodClaim();
  EXPECT_EQ(ValidateClaim(request)->checkpoint, std::nullopt);
  request.set_checkpoint("");
  EXPECT_EQ(ValidateClaim(request)->checkpoint, "");
  request.set_checkpoint(std::string(4096, '\0'));
  EXPECT_EQ(ValidateClaim(request)->checkpoint, std::string(4096, '\0'));
  request.set_checkpoint(std::string(4097, 'c'));
  EXPECT_EQ(RefusedField(ValidateClaim(request)), "checkpoint");
}

TEST(ValidateNumbers, AreNotNegative) {
  EXPECT_EQ(RefusedInClaim([](auto& r) { r.set_renew_fencing_token(-1); }),
            "renew_fencing_token");
  EXPECT_EQ(RefusedInClaim([](auto& r) { r.set_checkpoint_number(-1); }),
            "checkpoint_number");
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(RefusedInClaim([](auto& r) {
              r.set_renew_fencing_token(kMax);
              r.set_checkpoint_number(kMax);
            }),
            "");
}

TEST(ValidateOwner, HasAtMost128BytesAndNoControlCharacter) {
  const auto refused = [](const std::string& owner) {
    return RefusedInClaim([&](auto& request) { request.set_owner(owner); });
  };
  EXPECT_EQ(refused(""), "");
  EXPECT_EQ(refused("pod-7 \xc3\xa9"), "");
  EXPECT_EQ(refused(std::string(128, 'o')), "");
  EXPECT_EQ(refused(std::string(129, 'o')), "owner");
  EXPECT_EQ(refused(std::string("a\0b", 3)), "owner");
  EXPECT_EQ(refused("a\x1b[2J"), "owner");
}

TEST(ValidateClaimRequest, CarriesEveryFieldOver) {
  v1::ClaimRequest request = GoodClaim();
  request.set_policy("payment");
  request.mutable_lease()->set_seconds(7);
  request.set_checkpoint("step 3");
  request.set_resolve_in_doubt(true);
  request.set_renew_fencing_token(41);
  request.set_checkpoint_number(42);
  request.set_owner("pod-7");
  const absl::StatusOr<ClaimCommand> command = ValidateClaim(request);
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->id, (RecordId{.scope = "payments", .key = "k"}));
  EXPECT_EQ(command->request_hash, std::string(32, 'h'));
  EXPECT_EQ(FormatUuid(command->claim_token), kToken);
  EXPECT_EQ(command->policy_name, "payment");
  EXPECT_EQ(command->lease, absl::Seconds(7));
  EXPECT_EQ(command->checkpoint, "step 3");
  EXPECT_TRUE(command->resolve_in_doubt);
  EXPECT_EQ(command->renew_fencing_token, 41);
  EXPECT_EQ(command->checkpoint_number, 42);
  EXPECT_EQ(command->owner, "pod-7");
}

TEST(ValidateClaimRequest, NamesTheFirstBadFieldInTheOrderOfTheMessage) {
  const std::vector<std::pair<std::string, ChangeClaim>> last_to_first = {
      {"owner", [](auto& r) { r.set_owner(std::string(129, 'o')); }},
      {"checkpoint_number", [](auto& r) { r.set_checkpoint_number(-1); }},
      {"renew_fencing_token", [](auto& r) { r.set_renew_fencing_token(-1); }},
      {"checkpoint", [](auto& r) { r.set_checkpoint(std::string(4097, 'c')); }},
      {"wait", [](auto& r) { r.mutable_wait()->set_seconds(-1); }},
      {"lease", [](auto& r) { r.mutable_lease(); }},
      {"policy", [](auto& r) { r.set_policy("\n"); }},
      {"claim_token", [](auto& r) { r.set_claim_token(""); }},
      {"request_hash", [](auto& r) { r.set_request_hash(""); }},
      {"key", [](auto& r) { r.set_key(""); }},
      {"scope", [](auto& r) { r.set_scope(""); }},
  };
  v1::ClaimRequest request = GoodClaim();
  for (const auto& [field, change] : last_to_first) {
    change(request);
    EXPECT_EQ(RefusedField(ValidateClaim(request)), field);
  }
}

TEST(ValidateClaimRequest, SaysWhatIsWantedAndNeverTheValue) {
  v1::ClaimRequest request = GoodClaim();
  request.set_key(std::string(256, 'Q'));
  EXPECT_EQ(ValidateClaim(request).status().message(),
            "key: has 256 bytes, want 1 to 255");
  request = GoodClaim();
  request.set_owner(std::string(129, 'Q'));
  EXPECT_EQ(ValidateClaim(request).status().message(),
            "owner: has 129 bytes, want at most 128");
  for (const ChangeClaim& change :
       std::vector<ChangeClaim>{[](auto& r) { r.set_scope("Q Q"); },
                                [](auto& r) { r.set_key("QQ\n"); },
                                [](auto& r) { r.set_claim_token("QQ"); },
                                [](auto& r) { r.set_policy("QQ\n"); },
                                [](auto& r) { r.set_owner("QQ\n"); }}) {
    request = GoodClaim();
    change(request);
    const absl::Status status = ValidateClaim(request).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("Q")));
  }
}

}  // namespace
}  // namespace idempotency
