// Policies of names and of scopes, and how changes of their tables reach a
// running server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "tests/integration/wire_fixture.h"

namespace idempotency {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// A change must have reached every replica by then.
constexpr seconds kChangeReaches{5};

class PolicyTest : public WireTest {
 protected:
  static v1::ClaimRequest Under(const std::string& policy,
                                const std::string& scope = kScope) {
    v1::ClaimRequest claim = ClaimFor(NewKey());
    claim.set_scope(scope);
    claim.set_policy(policy);
    return claim;
  }
  static std::string PolicyOf(const v1::ClaimRequest& claim) {
    Granted(claim);
    return RecordOf(claim).policy();
  }
  // The lease that is granted under a policy, as a round number of seconds.
  static seconds LeaseOf(const v1::ClaimRequest& claim) {
    const v1::Claimed claimed = Granted(claim);
    return std::chrono::round<seconds>(ToNanos(claimed.lease_expires_at()) -
                                       ToNanos(RecordOf(claim).claimed_at()));
  }
  static nanoseconds RetentionOf(const v1::Claimed& claimed) {
    return ToNanos(claimed.expires_at()) - ToNanos(claimed.lease_expires_at());
  }
  // Waits until something that was changed is seen, no longer than a change
  // may take.
  template <typename Seen>
  static void ExpectSoon(const Seen& seen) {
    const auto start = steady_clock::now();
    WaitUntil(seen);
    EXPECT_LT(steady_clock::now() - start, kChangeReaches);
  }
};

TEST_F(PolicyTest, TheSeededPoliciesSayWhatTheManualSays) {
  struct Row {
    const char* name;
    seconds lease;
    seconds max_lease;
    nanoseconds retention;
    bool holds;
  };
  const Row rows[] = {
      {"default", seconds(30), hours(1), hours(24), false},
      {"payment", seconds(30), hours(1), hours(24), true},
      {"order", seconds(30), hours(1), hours(7 * 24), false},
      {"form", seconds(10), hours(1), hours(1), false},
      {"task", seconds(600), hours(24), nanoseconds(0), false},
  };
  for (const Row& row : rows) {
    const v1::ClaimRequest claim = Under(row.name);
    EXPECT_EQ(LeaseOf(claim), row.lease) << row.name;
    const v1::Claimed claimed = Granted(claim);
    EXPECT_EQ(claimed.has_expires_at(), row.retention > nanoseconds(0));
    if (claimed.has_expires_at()) {
      EXPECT_GE(RetentionOf(claimed), row.retention - seconds(10)) << row.name;
      EXPECT_LE(RetentionOf(claimed), row.retention) << row.name;
    }
    const v1::ClaimRequest longest = WithLease(Under(row.name), hours(1000));
    EXPECT_EQ(LeaseOf(longest), row.max_lease) << row.name;
    EXPECT_EQ(Finalized(FinalizeOf(claim, 500)).result(),
              row.holds ? v1::FinalizeResponse::RESULT_IN_DOUBT
                        : v1::FinalizeResponse::RESULT_RELEASED)
        << row.name;
    EXPECT_EQ(Send(ByAnother(claim))->has_in_doubt(), row.holds) << row.name;
  }
}

TEST_F(PolicyTest, ANameThatNobodyKnowsIsRefused) {
  const v1::ClaimRequest claim = Under("no-such-policy");
  EXPECT_TRUE(IsRefusal(Send(claim), grpc::StatusCode::INVALID_ARGUMENT,
                        "UNKNOWN_POLICY", "policy"));
  EXPECT_TRUE(IsRefusedAs(Send(LookupOf(claim)), "RECORD_NOT_FOUND"));
}

TEST_F(PolicyTest, ANameIsCheckedOnlyWhereARecordIsCreated) {
  const v1::ClaimRequest running = Under("");
  Granted(running);
  v1::ClaimRequest unknown = ByAnother(running);
  unknown.set_policy("no-such-policy");
  EXPECT_TRUE(Send(unknown)->has_in_progress());
  Send(ReleaseOf(running, v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN));
  EXPECT_EQ(Granted(unknown).attempt(), 2);
  EXPECT_EQ(Granted(unknown).attempt(), 2);
  EXPECT_EQ(RecordOf(unknown).policy(), "default");
  Send(ReleaseOf(unknown, v1::ReleaseRequest::DISPOSITION_NEVER_EXECUTED));
  unknown = ByAnother(unknown);
  EXPECT_TRUE(IsRefusal(Send(unknown), grpc::StatusCode::INVALID_ARGUMENT,
                        "UNKNOWN_POLICY", "policy"));
  EXPECT_EQ(RecordOf(unknown).state(), v1::Record::STATE_RELEASED);
}

TEST_F(PolicyTest, ANewPolicyCanBeUsedAtOnce) {
  // The replica last read the table for an unknown name more than a second
  // ago, or never.
  const std::string long_ago =
      Sql("SELECT clock_timestamp() + interval '1100 ms'");
  WaitUntil([&] {
    return Sql("SELECT clock_timestamp() > '" + long_ago + "'") == "t";
  });
  Sql("INSERT INTO ttl_policies (name, lease) VALUES ('fresh', '40 s')");
  EXPECT_EQ(LeaseOf(Under("fresh")), seconds(40));
}

TEST_F(PolicyTest, AChangeIsSeenSoonAndTouchesOnlyLaterGrants) {
  Sql("INSERT INTO ttl_policies (name, lease, retention, on_server_error) "
      "VALUES ('changing', '20 s', '2 h', 'record')");
  ExpectSoon([] { return Send(Under("changing")).status.ok(); });
  const v1::ClaimRequest before = Under("changing");
  const v1::Claimed granted = Granted(before);
  Sql("UPDATE ttl_policies SET lease = '50 s', retention = '5 h', "
      "on_server_error = 'release' WHERE name = 'changing'");
  ExpectSoon([] { return LeaseOf(Under("changing")) == seconds(50); });
  EXPECT_EQ(RetentionOf(Granted(Under("changing"))), hours(5));

  const v1::Claimed again = Granted(before);
  EXPECT_LE(ToNanos(again.lease()), seconds(20));
  EXPECT_LE(ToNanos(again.expires_at()),
            ToNanos(granted.lease_expires_at()) + hours(3));
  EXPECT_EQ(Finalized(FinalizeOf(before, 500)).result(),
            v1::FinalizeResponse::RESULT_RECORDED);
}

TEST_F(PolicyTest, ADeletedPolicyStaysWithTheRecordsThatHaveIt) {
  AddPolicy("leaving", "'20 s', '1 h', '2 h', 'take_over', 'record'");
  const v1::ClaimRequest claim = Under("leaving");
  Granted(claim);
  Sql("DELETE FROM ttl_policies WHERE name = 'leaving'");
  ExpectSoon([] { return !Send(Under("leaving")).status.ok(); });
  EXPECT_EQ(Granted(claim).attempt(), 1);
  EXPECT_EQ(Finalized(FinalizeOf(claim, 500)).result(),
            v1::FinalizeResponse::RESULT_RECORDED);
  EXPECT_EQ(RecordOf(claim).policy(), "leaving");
}

TEST_F(PolicyTest, AScopesPolicyIsThatOfItsLongestPrefix) {
  Sql("INSERT INTO scope_policies VALUES ('shop', 'order', false), "
      "('shop/pay', 'payment', false)");
  ExpectSoon([] { return PolicyOf(Under("", "shop/pay")) == "payment"; });
  EXPECT_EQ(PolicyOf(Under("", "shop")), "order");
  EXPECT_EQ(PolicyOf(Under("", "shop/cart")), "order");
  EXPECT_EQ(PolicyOf(Under("", "shop/cart/add")), "order");
  EXPECT_EQ(PolicyOf(Under("", "shop/pay/card")), "payment");
  EXPECT_EQ(PolicyOf(Under("", "shop/payments")), "order");
  EXPECT_EQ(PolicyOf(Under("", "shopping")), "default");
  EXPECT_EQ(PolicyOf(Under("", "other/shop")), "default");
  EXPECT_EQ(PolicyOf(Under("form", "shop/pay")), "form");
}

TEST_F(PolicyTest, AnEnforcedScopeAllowsNoOtherPolicy) {
  Sql("INSERT INTO scope_policies VALUES ('bank', 'payment', true), "
      "('bank/open', 'order', false)");
  ExpectSoon([] { return PolicyOf(Under("", "bank")) == "payment"; });
  for (const std::string scope : {"bank", "bank/transfer"}) {
    EXPECT_EQ(PolicyOf(Under("payment", scope)), "payment");
    for (const std::string policy : {"default", "no-such-policy"}) {
      const v1::ClaimRequest claim = Under(policy, scope);
      EXPECT_TRUE(IsRefusal(Send(claim), grpc::StatusCode::INVALID_ARGUMENT,
                            "POLICY_NOT_ALLOWED", "policy"))
          << scope << " " << policy;
      EXPECT_TRUE(IsRefusedAs(Send(LookupOf(claim)), "RECORD_NOT_FOUND"));
    }
  }
  EXPECT_EQ(PolicyOf(Under("form", "bank/open")), "form");
}

TEST_F(PolicyTest, APermanentRecordNeverExpires) {
  const v1::ClaimRequest claim = Under("task");
  EXPECT_FALSE(Granted(claim).has_expires_at());
  EXPECT_FALSE(Finalized(FinalizeOf(claim, 200)).has_expires_at());
  EXPECT_FALSE(Replayed(ByAnother(claim)).has_expires_at());
  EXPECT_FALSE(RecordOf(claim).has_expires_at());
}

TEST_F(PolicyTest, APermanentRecordMayBeCleanedUpAfterFinalize) {
  Sql("INSERT INTO ttl_policies (name, lease, retention, "
      "retention_after_finalize) VALUES ('tidy', '30 s', NULL, '150 ms')");
  ExpectSoon([] { return Send(Under("tidy")).status.ok(); });
  const v1::ClaimRequest claim = Under("tidy");
  EXPECT_FALSE(Granted(claim).has_expires_at());
  const v1::FinalizeResponse finalized = Finalized(FinalizeOf(claim, 200));
  EXPECT_TRUE(finalized.has_expires_at());
  WaitForAbsence(claim);
  EXPECT_EQ(Granted(ByAnother(claim)).attempt(), 1);
}

TEST_F(PolicyTest, AResponseIsReplayedForTheRetentionAndNoLonger) {
  AddPolicy("short", "'30 s', '1 h', '300 ms', 'take_over', 'release'");
  const v1::ClaimRequest claim = WithLease(Under("short"), milliseconds(150));
  Granted(claim);
  WaitForLeaseEnd(claim);
  Finalized(FinalizeOf(claim, 200));
  const v1::Record record = RecordOf(claim);
  EXPECT_GE(ToNanos(record.expires_at()) - ToNanos(record.finalized_at()),
            milliseconds(300));
  WaitForAbsence(claim);
}

TEST_F(PolicyTest, TheDefaultPolicyAndOneThatAScopeNamesCannotBeDeleted) {
  AddPolicy("named", "'30 s', '1 h', '1 h', 'take_over', 'release'");
  Sql("INSERT INTO scope_policies VALUES ('naming', 'named', false)");
  for (const std::string name : {"default", "named"}) {
    EXPECT_FALSE(
        TempPostgres::RunAt(
            database(), "DELETE FROM ttl_policies WHERE name = '" + name + "'")
            .ok())
        << name;
  }
}

}  // namespace
}  // namespace idempotency
